"""Times the kernels of the portfolio and cuBLAS on hundreds of shapes: what dispatch learns from for any shape.

    python -m bench.survey -o bench/results/survey.jsonl --seconds 280

For each shape of `shapes.training` the kernels that the estimate likes best, some of them told otherwise at launch, and
a few others drawn at random are verified and timed in turns with cuBLAS (search/runners/gpu_runner.py measures, so
that a kernel that hangs or faults ends nothing). Where TMA could not read operands without gaps, all get padded ones,
as a copy would leave them, and cuBLAS is timed on those without gaps as well. A line a shape is written as soon as it
is done; a run on the same file goes on where the one before it ended.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.portfolio import read_kernels
from bench.shared.command import Program, command_line
from bench.shared.shapes import posed, training
from bench.shared.survey_jobs import SURVEY_JOBS
from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.fitting import fitted
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.errors import FileError, LaunchError
from cupygemm.kernels.compiler import source_digest
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement
from cupygemm.measuring import provenance
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_runner import GpuRunner
from cupygemm.search.spaces.space import FIELD_NAMES

SCHEMA = "cupygemm.survey/1"
SHAPES = 1100
BEST, TOLD_OTHERWISE, AT_RANDOM = 10, 2, 3
"""Configs of a shape: those with the least estimates, variants of the first of these, and others."""
FEW = (5, 1, 1)
"""The same where a launch takes `LONG_US`, or where operands have to be copied first."""
LONG_US = 600.0
NOT_HOPELESS = 1.7
"""Others are drawn among kernels whose estimate is no more than so many times the least."""
MOST_FAILURES = 3
"""Shapes in a row on which the GPU could not be used before it is given up."""

VARIANTS: tuple[Callable[[KernelConfig], KernelConfig], ...] = (
    lambda config: config.swapped(group=8),
    lambda config: config.swapped(group=1),
    lambda config: config.swapped(raster_along_n=False),
    lambda config: config.swapped(l2_promotion=256),
    lambda config: config.swapped(keep_a=0 if config.keep_a else -1),
    lambda config: config.swapped(keep_b=0 if config.keep_b else -1),
    lambda config: config.swapped(keep_out=0 if config.keep_out else -1),
    lambda config: config.swapped(prefetch=0 if config.prefetch else 2),
    lambda config: config.swapped(prefetch=12),
)
"""A config told otherwise at launch, in one thing."""


@click.command(cls=Program)
@click.option("--seconds", type=float, default=280.0, show_default=True, help="After which no shape is begun.")
@click.option("--shapes", "count", type=int, default=SHAPES, show_default=True)
@click.option("--device", type=int, default=0, show_default=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(seconds: float, count: int, device: int, commit: str | None, output: Path) -> None:
    """Times the portfolio on shapes to learn from."""
    ends = time.monotonic() + seconds
    done = recorded(output)
    with GpuRunner(device=device, jobs=SURVEY_JOBS) as runner:
        plan = [each for each in plans(count, runner.device_spec) if each[0] not in done]
        compiled = compile_all(runner, plan)
        click.echo(f"{compiled} kernels compiled, {len(done)} shapes done before, {len(plan)} to do")
        if not output.exists():
            facts = provenance.collect(device, command_line("bench.survey"), commit)
            append(output, header(runner.device_spec, facts))
        written = 0
        for line in measured(runner, plan, lambda: time.monotonic() < ends):
            append(output, line)
            click.echo(_said(line))
            written += 1
    click.echo(f"{output}: {written} shapes more, {len(plan) - written} left")


Plan = tuple[Problem, list[KernelConfig]]
"""A shape, and what is tried on it."""


def plans(count: int, device: DeviceSpec) -> list[Plan]:
    """What is tried on each shape: the same each time."""
    kernels = read_kernels()
    found = []
    for problem in training(count):
        seen = posed(problem)
        shape, copied = (problem, True) if isinstance(seen, str) else (seen, False)
        found.append((shape, candidates(shape, device, kernels, few=copied)))
    return found


def candidates(problem: Problem, device: DeviceSpec, kernels: Sequence[KernelConfig], few: bool) -> list[KernelConfig]:
    """The configs to time on a problem, different ones, those with the least estimates first."""
    generator = random.Random(str(problem))
    found = (config for kernel in kernels if (config := fitted(kernel, problem, device)) is not None)
    fitting = list(dict.fromkeys(found))
    us = dict(zip(fitting, estimated_us(problem, fitting, device), strict=True))
    ranked = sorted(us, key=lambda config: us[config])
    least = us[ranked[0]]
    best, told_otherwise, at_random = FEW if few or least > LONG_US else (BEST, TOLD_OTHERWISE, AT_RANDOM)
    others = [config for config in ranked[best:] if us[config] <= NOT_HOPELESS * least]
    others.sort(key=lambda config: generator.random())
    variants = [
        VARIANTS[int(generator.random() * len(VARIANTS))](ranked[int(generator.random() * min(3, len(ranked)))])
        for _ in range(told_otherwise)
    ]
    spec = KernelSpec.of(problem)
    legal = [config for config in variants if illegal_reason(config, spec, device) is None]
    return list(dict.fromkeys([*ranked[:best], *legal, *others[:at_random]]))


def compile_all(runner: GpuRunner, plan: Sequence[Plan]) -> int:
    """Compiles all that will be measured into the cache, in parallel; gives how many kernels there are.

    Raises:
        LaunchError: compiling processes cannot be started.
    """
    wanted: dict[KernelSpec, tuple[Problem, dict[KernelConfig, None]]] = {}
    for problem, configs in plan:
        wanted.setdefault(KernelSpec.of(problem), (problem, {}))[1].update(dict.fromkeys(configs))
    return sum(runner.compile_ahead([problem], list(configs)) for problem, configs in wanted.values())


def measured(runner: GpuRunner, plan: Sequence[Plan], goes_on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """A line a shape, as they end, until time is up.

    Raises:
        LaunchError: the GPU could not be used for several shapes in a row.
    """
    failures = 0
    for problem, configs in plan:
        if not goes_on():
            return
        started = time.monotonic()
        try:
            line = shape_line(problem, configs, runner)
            failures = 0
        except LaunchError as error:
            failures += 1
            if failures == MOST_FAILURES:
                raise
            line = {"problem": problem.to_dict(), "failed": str(error), "rows": []}
        yield {**line, "seconds": round(time.monotonic() - started, 3)}


def shape_line(problem: Problem, configs: Sequence[KernelConfig], runner: GpuRunner) -> dict[str, Any]:
    """What was measured on a shape.

    Raises:
        LaunchError: the GPU cannot be used.
    """
    measurements = runner.confirm(problem, configs)
    contiguous = runner.baselines(problem) if isinstance(posed(problem), str) else {}
    cublas = [each.cublas_us for each in measurements if each.cublas_us is not None]
    return {
        "problem": problem.to_dict(),
        "cublas_us": cublas[0] if cublas else None,
        **({"gaps": contiguous} if contiguous else {}),
        "rows": [row(config, each) for config, each in zip(configs, measurements, strict=True)],
    }


def row(config: KernelConfig, measurement: Measurement) -> dict[str, Any]:
    """A config, with its time and cuBLAS's over it in the same rounds."""
    pairs = zip(measurement.samples_us, measurement.baseline_us, strict=False)
    ratios = [theirs / ours for ours, theirs in pairs]
    found: dict[str, Any] = {"config": [int(getattr(config, name)) for name in FIELD_NAMES]}
    if not measurement.ok:
        return {**found, "status": measurement.status.value, "detail": measurement.detail}
    return {
        **found,
        "status": measurement.status.value,
        "us": measurement.us,
        "cublas_us": measurement.cublas_us,
        "ratio": median(ratios) if ratios else None,
        "spread": measurement.spread,
        "clock_mhz": measurement.clock_mhz,
    }


def header(device: DeviceSpec, facts: dict[str, Any]) -> dict[str, Any]:
    """The first line of a file."""
    return {"schema": SCHEMA, "device": device.to_dict(), "fields": list(FIELD_NAMES), "provenance": facts}


def recorded(path: Path) -> set[Problem]:
    """The problems that a file has lines of; a last line that broke off is taken away.

    Raises:
        FileError: the file is none of this program's, or of other kernel sources.
    """
    if not path.exists():
        return set()
    whole, _, broken = path.read_bytes().rpartition(b"\n")
    if broken:
        path.write_bytes(whole + b"\n" if whole else b"")
    if not whole:
        path.unlink()
        return set()
    try:
        head, *lines = [json.loads(line) for line in whole.splitlines()]
        known = head["schema"], head["fields"], head["provenance"]["source_digest"]
        if known != (SCHEMA, list(FIELD_NAMES), source_digest()):
            raise FileError(f"{path}: of another schema or of other kernel sources: name another file")
        return {Problem.from_dict(line["problem"]) for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: no survey ({error}): name another file") from error


def append(path: Path, line: dict[str, Any]) -> None:
    """Writes a line to the end of a file, so that it is there whatever happens next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _said(line: dict[str, Any]) -> str:
    problem = Problem.from_dict(line["problem"])
    ratios = [each["ratio"] for each in line["rows"] if each.get("ratio")]
    best = f"{max(ratios):.3f} of cuBLAS" if ratios else line.get("failed", "nothing ran")
    return f"{problem}: {best}, {line['seconds']} s"


if __name__ == "__main__":
    main()
