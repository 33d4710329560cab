"""Measures problems with the configs of a bundle and writes a results file.

    python bench/headline.py 2048x2048x4096 4096x4096x4096 --bundle tuned.yaml -o bench/results/headline.json

Without shapes, all problems of the bundle. Each problem gives a row with rotated and one with resident operands.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cupygemm import compiler, driver, provenance, telemetry
from cupygemm.benchmark import benchmark
from cupygemm.bundle import Bundle, Entry
from cupygemm.compiler import compile_kernel
from cupygemm.config import KernelSpec
from cupygemm.errors import CupygemmError, ProblemError
from cupygemm.measure import MODES, Bench
from cupygemm.plan import LoadedKernel, Plan
from cupygemm.problem import Problem
from cupygemm.results import write_results
from cupygemm.telemetry import Reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        rows = list(_rows(_entries(options), options.device))
    except CupygemmError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    reading = Reading(rows[-1]["sm_clock_mhz"], rows[-1]["power_w"]) if rows else telemetry.read(options.device)
    command = shlex.join(["python", *sys.argv])
    facts = provenance.collect(options.device, command, options.commit, reading)
    write_results(options.output, options.output.stem, command, facts, rows)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="MxNxK", help="which of the bundle's problems (default: all)")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--device", type=int, default=0, help="CUDA index")
    parser.add_argument("--commit", help="of the source, where there is no git history")
    parser.add_argument("-o", "--output", type=Path, required=True, help="its stem is the name of the results")
    return parser


def _entries(options: argparse.Namespace) -> list[Entry]:
    bundle, device = Bundle.load(options.bundle), driver.device_spec(options.device)
    problems: list[Problem] = [entry.problem for entry in bundle.entries]
    missing = set(options.shapes) - {problem.shape for problem in problems}
    if missing:
        raise ProblemError(f"{options.bundle} has no entry for {', '.join(sorted(missing))}")
    wanted = [problem for problem in problems if not options.shapes or problem.shape in options.shapes]
    found = {problem: bundle.find(problem, device, compiler.source_digest()) for problem in wanted}
    unusable = [str(problem) for problem, entry in found.items() if entry is None]
    if unusable:
        raise ProblemError(f"entries of another device or of other kernel sources: {', '.join(unusable)}")
    return [entry for entry in found.values() if entry is not None]


def _rows(entries: Sequence[Entry], device: int) -> Iterator[dict[str, Any]]:
    for entry in entries:
        kernel = LoadedKernel(compile_kernel(KernelSpec.of(entry.problem), entry.config), device)
        bench, plan = Bench(entry.problem, device), Plan(entry.problem, kernel)
        for mode in MODES:
            row = benchmark(bench, plan, entry.config, mode)
            print(_line(entry.problem, row), flush=True)  # noqa: T201
            yield row


def _line(problem: Problem, row: dict[str, Any]) -> str:
    times = "  ".join(
        f"{name} {row[f'{name}_us']:.2f}" for name in ("cupygemm", "cublas", "cublaslt") if row[f"{name}_us"]
    )
    return f"{problem}  {row['mode']}  µs: {times}  error {row['error']:.2e}  spread {row['spread']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
