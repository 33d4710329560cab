"""Configs of a problem, measured beside each other and both baselines: for bench/ladder.py, found.py and grid.py.

All of a problem run in one interleaved run, or each in blocks of its own, with cuBLAS and the best of cublasLt's
algorithms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.shared.steps import Steps
from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import CompileError, ConfigError, LaunchError, VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import compile_kernel, source_digest
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Launch
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring.benchmark import OWN, result_row
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.suites import SUITES
from cupygemm.measuring.timing import CUBLAS, CUBLASLT, QUICK, THOROUGH, Timing
from cupygemm.problem import Problem

Failures = list[dict[str, Any]]
"""Of a results file: a problem, the step, how its trial ended and why."""


def problems_of(suites: Iterable[str], shapes: Collection[str], dtype: str | None = None) -> list[Problem]:
    """The problems of suites, each once.

    Args:
        suites: names.
        shapes: "MxNxK" of those that are wanted; none for all.
        dtype: of the operands of those that are wanted; None for all.

    Raises:
        click.UsageError: no suite has a shape, or nothing is left.
    """
    all_of_them = list(dict.fromkeys(problem for suite in suites for problem in SUITES[suite].problems))
    unknown = set(shapes) - {problem.shape for problem in all_of_them}
    if unknown:
        raise click.UsageError(f"--only {min(unknown)}: none of the problems has this shape")
    found = [each for each in all_of_them if not shapes or each.shape in shapes]
    of_dtype = [each for each in found if dtype in (None, each.a_dtype)]
    if not of_dtype:
        raise click.UsageError(f"--dtype {dtype}: none of {', '.join(str(each) for each in found)} has it")
    return of_dtype


def fastest(bench: Bench, launches: Mapping[str, Launch], most: int) -> dict[str, Launch]:
    """Those that are fastest in a short run, the fastest first.

    Raises:
        LaunchError: one faulted.
    """
    timing = bench.time(launches, QUICK)
    ranked = sorted(launches, key=lambda name: median(timing.samples_us[name]))
    return {name: launches[name] for name in ranked[:most]}


def legal_steps(problem: Problem, steps: Steps) -> Steps:
    """The steps that the problem's spec allows, each config once, by the first of its names."""
    names: dict[KernelConfig, str] = {}
    spec = KernelSpec.of(problem)
    for name, config in steps.items():
        names.setdefault(_stored(config, spec), name)
    return {names[config]: config for config in legal(problem, names)}


def legal(problem: Problem, configs: Iterable[KernelConfig]) -> Iterator[KernelConfig]:
    """The configs that the problem's spec allows, in their order, each once: stored from registers where TMA cannot."""
    spec = KernelSpec.of(problem)
    for config in dict.fromkeys(_stored(config, spec) for config in configs):
        if illegal_reason(config, spec, H200) is None:
            yield config


def _stored(config: KernelConfig, spec: KernelSpec) -> KernelConfig:
    return config if spec.out_aligned else config.swapped(store_stages=0, keep_out=0)


def ready(
    bench: Bench, steps: Mapping[str, KernelConfig], dependent: bool, failures: Failures
) -> tuple[dict[str, Launch], dict[str, float]]:
    """What each step launches, and its error against float64; steps that do not run, or are wrong, become failures.

    Raises:
        LaunchError: one faulted.
        VerificationError: one is wrong, and has written into operands or references.
    """
    problem = bench.problem
    launches: dict[str, Launch] = {}
    errors: dict[str, float] = {}

    def failed(name: str, status: Status, detail: str) -> None:
        failures.append({**problem.to_dict(), "step": name, "status": status.value, "detail": detail})
        click.echo(f"{problem} {name}: {detail}", err=True)

    for name, config in steps.items():
        try:
            compiled = compile_kernel(KernelSpec.of(problem), config)
            if compiled.advisories:
                failed(name, Status.SERIALISED, f"ptxas advisory {', '.join(compiled.advisories)}")
                continue
            plan = Plan(problem, LoadedKernel(compiled), dependent_launch=dependent)
        except CompileError as error:
            failed(name, Status.COMPILE_FAILED, str(error))
            continue
        except ConfigError as error:
            failed(name, Status.ILLEGAL, str(error))
            continue
        except LaunchError as error:
            failed(name, Status.LAUNCH_FAILED, str(error))
            continue
        verdict = bench.verify(plan.launch)
        if not verdict.ok:
            failed(name, Status.WRONG_RESULT, f"wrong result: {verdict.detail}")
            if not bench.is_sound():
                raise VerificationError(f"{problem} {name}: it has spoilt operands: what comes after cannot be trusted")
            continue
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
    """A row a step, of one run with cuBLAS and the best cublasLt algorithm.

    Raises:
        LaunchError: one faulted.
    """
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
    path: Path,
    problem: Problem,
    row: Mapping[str, Any],
    ran: int,
    facts: dict[str, Any],
    strategy: str = "ladder",
    in_any_case: bool = False,
) -> None:
    """Writes the step of a row into a bundle, unless the entry for its problem is the better one.

    Args:
        path: of the bundle; made where there is none.
        problem: of the row.
        row: of `measured`, by turns.
        ran: how many steps it was the best of.
        facts: date, commit, driver and so on.
        strategy: what the bundle says it was found by.
        in_any_case: whatever the entry says.

    Raises:
        BundleError: there is something else at the path.
        OSError: it cannot be written.
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
        search=SearchInfo(strategy=strategy, evaluations=ran),
        provenance={**facts, "source_digest": source_digest(config)},
    )
    bundle = Bundle.load(path) if path.exists() else None
    before = bundle.entry(problem) if bundle else None
    if before is None or in_any_case or entry.beats(before):
        new = new_bundle(BundleDevice.of(driver.device_spec(0), facts), source_digest(), [entry])
        (bundle.merged(new) if bundle else new).save(path)
