"""What `matmul` decides for 200 shapes that were never tuned, and what that comes to beside `cupy.matmul`.

    python bench/unseen.py -o bench/results/unseen.json

The shapes are those of `shapes.unseen`, by the seed in the file. Where an own kernel is chosen it is verified and timed
in turns with cuBLAS as CuPy calls it and the best of cublasLt's algorithms: GPU time, operands out of the L2. Where the
product is left to `cupy.matmul` both are the same launch, which is timed once: there the ratio is 1 by construction.
Operands have no gaps between rows; where TMA cannot read those, cuBLAS alone is timed.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import shapes
from survey_jobs import without_gaps

from cupygemm import driver, provenance
from cupygemm.benchmark import OWN, benchmark, result_row
from cupygemm.choice import Choice
from cupygemm.compiler import compile_kernel
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.dispatch import Dispatcher
from cupygemm.errors import CupygemmError
from cupygemm.gpu_lock import holding_gpu
from cupygemm.measure import CUBLAS, CUBLASLT, THOROUGH, Bench, Timing, is_usable
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.results import times_document, write_results

DECISIONS = 5
"""Timed for a shape, of which the median counts."""

Row = dict[str, Any]


@click.command()
@click.option("--only", type=int, help="So many of the shapes, evenly taken. Default: all.")
@click.option("--seconds", type=float, default=540.0, show_default=True, help="After which no shape is begun.")
@click.option("--device", type=int, default=0, show_default=True)
@click.option("--commit", help="Of the source, where there is no git history.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(only: int | None, seconds: float, device: int, commit: str | None, output: Path) -> None:
    """Measures what dispatch makes of shapes that were never tuned."""
    ends = time.monotonic() + seconds
    try:
        device_spec = driver.device_spec(device)
    except CupygemmError as error:
        raise click.ClickException(str(error)) from error
    problems = shapes.unseen()
    problems = problems if only is None else problems[:: max(1, len(problems) // only)]
    dispatcher = Dispatcher()
    command = shlex.join(["python", *sys.argv])
    facts = provenance.collect(device, command, commit)
    decided = decisions(dispatcher, problems, device_spec)
    compile_ahead([(choice.problem, choice.config) for choice, _ in decided.values()])
    rows: list[Row] = []
    failures: list[Row] = []
    with holding_gpu(device):
        for problem, (choice, decision_us) in decided.items():
            try:
                if time.monotonic() > ends:
                    raise TimeoutError("time was up")
                rows.append({**measured(problem, dispatcher, device), **told(choice, decision_us)})
                click.echo(f"{problem}: {ratio(rows[-1]):.3f} of cuBLAS, {choice.kernel}")
            except (CupygemmError, MemoryError, TimeoutError) as error:
                failures.append({**problem.to_dict(), "detail": str(error) or "out of memory"})
                click.echo(f"{problem}: {error}", err=True)
                if not is_usable(device):
                    raise click.ClickException("the device cannot be used any more") from error
            document = times_document(output.stem, command, facts, rows, failures=failures, **summary(rows))
            write_results(output, document)
    for name, value in summary(rows)["summary"].items():
        click.echo(f"{name}: {value}")
    if failures:
        sys.exit(1)


def decisions(
    dispatcher: Dispatcher, problems: Sequence[Problem], device: DeviceSpec
) -> dict[Problem, tuple[Choice, float]]:
    """What dispatch says of each problem, and how long it takes to, µs on the host, once its files are read."""
    dispatcher.choose_on(Problem(8, 8, 8), device)
    return {problem: _timed(partial(decision, dispatcher, problem, device)) for problem in problems}


def decision(dispatcher: Dispatcher, problem: Problem, device: DeviceSpec) -> Choice:
    """What dispatch says of a problem whose operands have no gaps; nothing is compiled."""
    seen = shapes.posed(problem)
    return Choice("cublas", seen) if isinstance(seen, str) else dispatcher.choose_on(seen, device)


def _timed(decide: Callable[[], Choice]) -> tuple[Choice, float]:
    samples = []
    for _ in range(DECISIONS):
        started = time.perf_counter()
        choice = decide()
        samples.append((time.perf_counter() - started) * 1e6)
    return choice, median(samples)


def compile_ahead(kernels: Sequence[tuple[Problem | None, KernelConfig | None]]) -> None:
    """Compiles into the cache what will be launched, in parallel."""
    wanted = {(KernelSpec.of(problem), config) for problem, config in kernels if problem and config}
    with ProcessPoolExecutor() as pool:
        list(pool.map(_compile, wanted))


def _compile(kernel: tuple[KernelSpec, KernelConfig]) -> None:
    compile_kernel(*kernel)


def measured(problem: Problem, dispatcher: Dispatcher, device: int) -> Row:
    """The row of a problem.

    Raises:
        CupygemmError: a result is wrong, or CUDA refused.
    """
    seen = shapes.posed(problem)
    if isinstance(seen, str):
        bench = Bench(problem, device)
        timing = bench.time({OWN: without_gaps(bench)}, THOROUGH)
        timing.samples_us = {OWN: timing.samples_us[OWN], CUBLAS: timing.samples_us[OWN]}
        return _row(bench, timing)
    choice, plan = dispatcher.choose_for(seen, device)
    bench = Bench(seen, device)
    if plan is not None:
        return benchmark(bench, plan.launch, choice.config, effort=THOROUGH)
    best = bench.cublaslt()
    timing = bench.time({} if best is None else {CUBLASLT: best.run}, THOROUGH)
    timing.samples_us[OWN] = timing.samples_us[CUBLAS]
    return _row(bench, timing)


def _row(bench: Bench, timing: Timing) -> Row:
    """Of a product that is left to `cupy.matmul`."""
    error = bench.verify(bench.cublas).error
    return result_row(bench.problem, timing, error, None, ROTATED, bench.bytes_rotated(ROTATED))


def told(choice: Choice, decision_us: float) -> Row:
    """What a row says of the decision."""
    return {"reason": choice.reason, "decision_us": round(decision_us, 1)}


def ratio(row: Mapping[str, Any]) -> float:
    """cuBLAS's time over what `matmul` takes."""
    return float(row["cublas_us"] / row["cupygemm_us"])


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that all rows come to, and the seed of the shapes."""
    ratios = [ratio(row) for row in rows]
    own = [ratio(row) for row in rows if row["kernel"] == "own"]
    figures = {
        "shapes": len(rows),
        "geometric mean over cupy.matmul": mean(ratios),
        "worst": round(min(ratios, default=1.0), 4),
        "below 0.97": sum(each < 0.97 for each in ratios),
        "share of own kernels": round(len(own) / max(1, len(rows)), 3),
        "geometric mean of own kernels": mean(own),
        "decision, µs, median": round(median([row["decision_us"] for row in rows] or [0.0]), 1),
        "decision, µs, longest": max((row["decision_us"] for row in rows), default=0.0),
    }
    return {"seed": shapes.SEED, "summary": figures}


def mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return round(math.exp(math.fsum(map(math.log, ratios)) / len(ratios)), 4) if ratios else None


if __name__ == "__main__":
    main()
