"""What `tune` finds with several seeds, beside the best configs known, in one interleaved run.

    python -m bench.found 2048x2048x4096 --budget 300 --seeds 3 -o bench/results/found.json

Each seed is a `cupygemm tune` of its own, with its default strategy and nothing compiled before. The best known are the
steps of shared/steps.py and the best of the problem's recorded table. A row's step says whose config it is, and of one
that was found how long that took. cuBLAS and the best cublasLt algorithm take their turns as everywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.shared.command import Program, command_line
from bench.shared.rows import over_cublas
from bench.shared.steps import STEPS, Steps, best_of_table
from bench.shared.timed_steps import Failures, legal_steps, measured, ready
from cupygemm.bundles.bundle import Bundle
from cupygemm.commands.options import problem_argument
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.suites import SUITES
from cupygemm.names import ROTATED
from cupygemm.problem import Problem


@click.command(cls=Program)
@problem_argument
@click.option("--budget", type=click.IntRange(min=1), default=300, show_default=True, help="Evaluations of a search.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(problem: Problem, budget: int, seeds: int, commit: str | None, output: Path) -> None:
    """Searches PROBLEM on a GPU with seeds from 0 on, and measures what they find beside the best known."""
    driver.device_spec(0)  # where there is none, before anything is searched
    steps = {**dict(found_with(problem, budget, seed) for seed in range(seeds)), **best_known(problem)}
    command = command_line("bench.found")
    facts = provenance.collect(0, command, commit)
    failures: Failures = []
    rows = []
    with holding_gpu(0):
        bench = Bench(problem)
        launches, errors = ready(bench, steps, False, failures)
        for row in measured(bench, steps, launches, errors, ROTATED, False):
            rows.append(row)
            click.echo(f"{row['step']}: {over_cublas(row):.3f} of cuBLAS")
    write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
    if failures:
        sys.exit(1)


def found_with(problem: Problem, budget: int, seed: int) -> tuple[str, Any]:
    """A step for what a search ended with: its name, with the seconds that the command took, and the config."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "tuned.yaml"
        words = [*problem_words(problem), "--budget", str(budget), "--seed", str(seed), "-o", str(bundle)]
        fresh = {name: str(Path(folder) / name) for name in ("CUPYGEMM_CACHE_DIR", "CUPYGEMM_DATA_DIR")}
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "cupygemm", "tune", "--device", "cuda", *words],
            env={**os.environ, **fresh},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        took = time.perf_counter() - began
        entry = Bundle.load(bundle).entry(problem)
    if entry is None:
        raise click.ClickException(f"the search with seed {seed} left no entry for {problem}")
    click.echo(f"seed {seed}: {took:.1f} s")
    return f"found with seed {seed} in {took:.0f} s", entry.config


def problem_words(problem: Problem) -> list[str]:
    """The problem as `cupygemm tune` is told it."""
    words = [problem.shape, "--dtype", problem.a_dtype, "--out-dtype", problem.out_dtype, "--layout", problem.layout]
    return [*words, "--batch", str(problem.batch), "--epilogue", str(problem.epilogue)]


def best_known(problem: Problem) -> Steps:
    """Steps of the suites that have the problem, then the best of its recorded table, where it has one; as in
    bench/ladder.py that gets a row only where it is none of the steps."""
    steps: Steps = {}
    for suite, configs in STEPS.items():
        if problem in SUITES[suite].problems:
            steps |= configs
    return legal_steps(problem, steps | best_of_table(problem))


if __name__ == "__main__":
    main()
