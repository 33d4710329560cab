"""What `matmul` decides for 200 shapes that were never tuned, and what that comes to beside `cupy.matmul`.

    python -m bench.unseen -o bench/results/unseen.json

The shapes are those of `shapes.unseen`, by the seed in the file; operands have no gaps between rows, as most arrays of
CuPy's. Where an own kernel is chosen it is verified and timed in turns with cuBLAS as CuPy calls it: GPU time, operands
out of the L2. Where TMA cannot read the operands that is the copy and the kernel, beside cuBLAS on the operands as they
lie. Where the product is left to `cupy.matmul` both are the same launch, which is timed once: there the ratio is 1 by
construction.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.shared import shapes
from bench.shared.command import Program, command_line
from bench.shared.rows import over_cublas
from bench.shared.survey_jobs import CONTIGUOUS, closed, without_gaps
from bench.shared.survey_jobs import effort as survey_effort
from cupygemm.choosing.choice import Choice
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.errors import CupygemmError, VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.measuring import provenance
from cupygemm.measuring.benchmark import OWN, result_row
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import WRONG_BASELINE, Bench
from cupygemm.measuring.measuring_stream import is_usable
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.timing import CUBLAS
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.runtime.product import Own, decide

DECISIONS = 5
"""Timed for a shape, of which the median counts."""
WARM_US = 60_000.0
"""Of turns before those that count."""

Row = dict[str, Any]


@click.command(cls=Program)
@click.option("--only", type=int, help="So many of the shapes, evenly taken. Default: all.")
@click.option("--seconds", type=float, default=220.0, show_default=True, help="After which no shape is begun.")
@click.option("--device", type=int, default=0, show_default=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(only: int | None, seconds: float, device: int, commit: str | None, output: Path) -> None:
    """Measures what dispatch makes of shapes that were never tuned."""
    ends = time.monotonic() + seconds
    device_spec = driver.device_spec(device)
    problems = shapes.unseen()
    problems = problems if only is None else problems[:: max(1, len(problems) // only)]
    dispatcher = Dispatcher()
    command = command_line("bench.unseen")
    facts = provenance.collect(device, command, commit)
    decided = decisions(dispatcher, problems, device_spec)
    chosen = [(choice.problem, choice.config) for choice, _ in decided.values()]
    # Dispatch says what fails.
    compile_ahead((KernelSpec.of(problem), config) for problem, config in chosen if problem and config)
    rows: list[Row] = []
    failures: list[Row] = []
    with holding_gpu(device), driver.cupy().cuda.Device(device):
        for problem, (_, decision_us) in decided.items():
            try:
                if time.monotonic() > ends:
                    raise TimeoutError("time was up")
                found = measured(problem, dispatcher, device)
                rows.append({**found, "decision_us": round(decision_us, 1)})
                click.echo(f"{problem}: {over_cublas(found):.3f} of cuBLAS, {found['kernel']}")
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
    """What dispatch says of each problem, and how long it takes to, µs on the host, once its files are read.

    All problems take turns: nothing that is kept of the last one answers for the next.
    """
    dispatcher.choose_on(Problem(8, 8, 8), device)
    samples: dict[Problem, list[float]] = {problem: [] for problem in problems}
    choices = {}
    for _ in range(DECISIONS):
        for problem in problems:
            started = time.perf_counter()
            choices[problem] = decision(dispatcher, problem, device)
            samples[problem].append((time.perf_counter() - started) * 1e6)
    return {problem: (choices[problem], median(samples[problem])) for problem in problems}


def decision(dispatcher: Dispatcher, problem: Problem, device: DeviceSpec) -> Choice:
    """What dispatch says of a problem whose operands have no gaps; nothing is compiled.

    Where TMA cannot read them it is what would run if copies paid, which `product.decide` settles with arrays at hand.
    """
    seen = shapes.posed(problem)
    if isinstance(seen, Problem):
        return dispatcher.choose_on(seen, device)
    dispatcher.predict(problem, device)
    return dispatcher.choose_on(problem, device, copied=True)


def measured(problem: Problem, dispatcher: Dispatcher, device: int) -> Row:
    """The row of a problem.

    Raises:
        CupygemmError: a result is wrong, or CUDA refused.
    """
    seen = shapes.posed(problem)
    if isinstance(seen, str):
        return copied(problem, dispatcher, device)
    choice, plan = dispatcher.choose_for(seen, device)
    bench = Bench(seen, device)
    launches = {} if plan is None else {OWN: plan.launch}
    return {**row(bench, launches, choice.config), "reason": choice.reason}


def copied(problem: Problem, dispatcher: Dispatcher, device: int) -> Row:
    """The row of a problem whose operands TMA cannot read: with copies of them, if `matmul` would make any."""
    bench = Bench(problem, device)
    a, b = closed(bench.operands(ROTATED)[0], problem.layout)[:2]
    decided = decide(dispatcher, a, b, None, {})
    launches = {CONTIGUOUS: without_gaps(bench)}
    if decided.own is not None:
        launches[OWN] = without_gaps(bench, with_copies(decided.own))
    return {**row(bench, launches, decided.choice.config), "reason": decided.choice.reason}


def with_copies(own: Own) -> Launch:
    """What `matmul` launches, with memory for copies that a graph can use again."""
    packing, plan = own.packing, own.plan
    if packing is None:
        return plan.launch
    buffer = driver.cupy().empty(packing.buffer_bytes, "uint8")

    def launch(operands: Operands) -> None:
        plan(*packing(operands.a, operands.b, buffer), operands.out)

    return launch


def row(bench: Bench, launches: Mapping[str, Launch], config: KernelConfig | None) -> Row:
    """Times by turns; without an own kernel, those of the product that is left to `cupy.matmul`.

    Raises:
        VerificationError: a result is wrong.
    """
    verdict = bench.verify(launches.get(OWN, bench.cublas))
    if not (verdict.ok if OWN in launches else verdict.error < WRONG_BASELINE):
        raise VerificationError(f"{bench.problem}: {verdict.detail}")
    effort = replace(survey_effort(bench.problem, len(launches)), warm_us=WARM_US)
    samples = (timing := bench.time(launches, effort)).samples_us
    samples[CUBLAS] = samples.pop(CONTIGUOUS, samples[CUBLAS])
    samples.setdefault(OWN, samples[CUBLAS])
    return result_row(bench.problem, timing, verdict.error, config, ROTATED, bench.bytes_rotated(ROTATED))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that all rows come to, and the seed of the shapes."""
    ratios = [over_cublas(row) for row in rows]
    own = [over_cublas(row) for row in rows if row["kernel"] == "own"]
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
