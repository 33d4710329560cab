"""Steps towards a fast kernel, each a config, measured with the baselines in one interleaved run a problem.

    python -m bench.ladder headline squares -o bench/results/ladder.json --bundle tuned.yaml

docs/ladder.md and docs/small.md say what each step of shared/steps.py was expected to do; beside them stands the best
config of a problem's recorded table. The fastest step of a problem goes into the bundle: by turns, or with --sustained
by the geometric mean of both ways of measuring.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import click

from bench.shared.command import Program, command_line
from bench.shared.rows import over_cublas
from bench.shared.steps import STEPS, steps_of
from bench.shared.timed_steps import Failures, keep, legal_steps, measured, problems_of, ready
from cupygemm.config import KernelSpec
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.suites import SIXTEEN_BITS, SUITES
from cupygemm.names import ROTATED, SUSTAINED


@click.command(cls=Program)
@click.argument("suites", nargs=-1, type=click.Choice(list(STEPS)), metavar="[SUITE]...")
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the suites' problems. Repeatable.")
@click.option("--dtype", type=click.Choice(SIXTEEN_BITS), help="Of the suites' problems. Default: all.")
@click.option("--sustained", is_flag=True, help="Measure each step in blocks of its own as well.")
@click.option("--dependent", is_flag=True, help="Launch each step before the kernel before it ends; for no bundle.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the fastest steps.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    sustained: bool,
    dependent: bool,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Measures the steps of suites, by default of all that have steps (bench/shared/steps.py)."""
    if dependent and bundle_path is not None:
        raise click.UsageError("--dependent with --bundle: what cuBLAS is compared with waits for the kernel before it")
    wanted = set(problems_of(suites or STEPS, shapes, dtype))
    plan = [
        (problem, legal_steps(problem, steps_of(suite, problem)))
        for suite in suites or STEPS
        for problem in SUITES[suite].problems
        if problem in wanted
    ]
    # What cannot be compiled, `ready` meets again, and says so.
    compile_ahead((KernelSpec.of(problem), config) for problem, steps in plan for config in steps.values())
    command = command_line("bench.ladder")
    facts = provenance.collect(0, command, commit)
    rows: list[dict[str, Any]] = []
    failures: Failures = []
    with holding_gpu(0):
        for problem, steps in plan:
            found: dict[str, list[dict[str, Any]]] = {}
            bench = Bench(problem)
            launches, errors = ready(bench, steps, dependent, failures)
            for mode in (ROTATED, SUSTAINED) if sustained else (ROTATED,):
                for row in measured(bench, steps, launches, errors, mode, dependent):
                    found.setdefault(row["step"], []).append(row)
                    click.echo(f"{problem} {mode} {row['step']}: {over_cublas(row):.3f} of cuBLAS")
            rows += sorted((row for each in found.values() for row in each), key=lambda row: str(row["mode"]))
            write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
            if bundle_path is not None and found:
                best = max(found.values(), key=lambda each: prod(map(over_cublas, each)))
                keep(bundle_path, problem, best[0], len(launches), facts)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
