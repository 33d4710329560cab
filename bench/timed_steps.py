"""Configs of a problem, measured beside each other and both baselines for bench/ladder.py and bench/grid.py.

All of a problem run by turns, in one interleaved run with cuBLAS and the best of cublasLt's algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.steps import Steps
from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import CupygemmError, VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import compile_kernel, source_digest
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Launch
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring.benchmark import OWN, result_row
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.timing import CUBLAS, CUBLASLT, QUICK, THOROUGH, Timing
from cupygemm.problem import Problem


def fastest(bench: Bench, launches: Mapping[str, Launch], most: int) -> dict[str, Launch]:
    """Those that are fastest in a short run, the fastest first."""
    timing = bench.time(launches, QUICK)
    ranked = sorted(launches, key=lambda name: median(timing.samples_us[name]))
    return {name: launches[name] for name in ranked[:most]}


def legal_steps(problem: Problem, steps: Steps) -> Steps:
    """The steps that the problem's spec allows, each config once, by the first of its names."""
    spec = KernelSpec.of(problem)
    found: Steps = {}
    for name, config in steps.items():
        fitting = config if spec.out_aligned else config.swapped(store_stages=0, keep_out=0)
        if illegal_reason(fitting, spec, H200) is None and fitting not in found.values():
            found[name] = fitting
    return found


def ready(
    bench: Bench, steps: Mapping[str, KernelConfig], dependent: bool, failures: list[dict[str, Any]]
) -> tuple[dict[str, Launch], dict[str, float]]:
    """What each step launches, and its error against float64; steps that do not run become failures.

    Raises:
        VerificationError: a step is wrong.
    """
    problem = bench.problem
    launches: dict[str, Launch] = {}
    errors: dict[str, float] = {}
    for name, config in steps.items():
        try:
            kernel = LoadedKernel(compile_kernel(KernelSpec.of(problem), config))
            plan = Plan(problem, kernel, dependent_launch=dependent)
        except CupygemmError as error:
            failures.append({**problem.to_dict(), "step": name, "detail": str(error)})
            click.echo(f"{problem} {name}: {error}", err=True)
            continue
        verdict = bench.verify(plan.launch)
        if not verdict.ok:
            raise VerificationError(f"{problem} {name}: {verdict.detail}")
        launches[name], errors[name] = plan.launch, verdict.error
    return launches, errors


def measured(
    bench: Bench,
    steps: Mapping[str, KernelConfig],
    launches: Mapping[str, Launch],
    errors: Mapping[str, float],
    mode: str,
    dependent: bool,
) -> Iterator[dict[str, Any]]:
    """A row a step, of one run with cuBLAS and the best cublasLt algorithm."""
    best = bench.cublaslt(mode)
    baselines = {} if best is None else {CUBLASLT: best.run}
    timing = bench.time({**launches, **baselines}, THOROUGH, mode)
    for name in launches:
        error = errors[name]
        samples = {OWN: timing.samples_us[name], **{key: timing.samples_us[key] for key in (*baselines, CUBLAS)}}
        # By turns there is one clock, which all make together.
        own = Timing(samples, timing.readings.get(name, timing.reading))
        yield {
            "step": name,
            **result_row(bench.problem, own, error, steps[name], mode, bench.bytes_rotated(mode), dependent),
        }


def keep(
    path: Path, problem: Problem, row: Mapping[str, Any], tried: int, facts: dict[str, Any], strategy: str = "ladder"
) -> None:
    """Writes the step of a row into a bundle, unless the entry for its problem is the better one.

    Args:
        path: of the bundle; made where there is none.
        problem: of the row.
        row: of `measured`, by turns.
        tried: how many steps it was the best of.
        facts: date, commit, driver and so on.
        strategy: what the bundle says it was found by.
    """
    measurement = Measurement(
        Status.OK,
        samples_us=(row["cupygemm_us"],),
        baseline_us=(row["cublas_us"],),
        error=row["error"],
        clock_mhz=row["sm_clock_mhz"],
    )
    config = KernelConfig.from_dict(row["config"])
    entry = Entry(
        problem=problem,
        config=config,
        measured=Measured.of(measurement, cublaslt_us=row["cublaslt_us"], spread=row["spread"]),
        search=SearchInfo(strategy=strategy, evaluations=tried),
        provenance={**facts, "source_digest": source_digest(config)},
    )
    before = Bundle.load(path).entry(problem) if path.exists() else None
    if before is None or entry.beats(before):
        new = new_bundle(BundleDevice.of(driver.device_spec(0), facts), source_digest(), [entry])
        (Bundle.load(path).merged(new) if path.exists() else new).save(path)
