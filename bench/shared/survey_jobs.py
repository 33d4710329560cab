"""What the GPU's process does for bench/survey.py: short interleaved runs, and cuBLAS on operands without gaps.

In a module of its own, since child processes import it by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CupygemmError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import is_usable
from cupygemm.measuring.timing import CUBLAS, Effort, good_us
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_jobs import GPU_JOBS, Jobs, Outcome, bench_of

TIMED_US = 250_000.0
"""About what all rounds of a shape take together."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 21
WARM_US = 20_000.0
CONTIGUOUS = "contiguous"

_loaded: dict[tuple[int, KernelSpec, KernelConfig], LoadedKernel] = {}
"""Of this process: many shapes are computed with the same kernels."""


def effort(problem: Problem, candidates: int) -> Effort:
    """As many rounds of all candidates and cuBLAS as `TIMED_US` allow, after two of trial and some of warming up."""
    graph_us = max(300.0, 1.5 * good_us(problem))
    rounds = round(TIMED_US / (graph_us * (candidates + 1)))
    return Effort(trial_rounds=2, rounds=2 + min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS), warm_us=WARM_US)


def confirm(device: int, problem: Problem, compiled: Sequence[CompiledKernel]) -> list[Outcome]:
    """As `gpu_jobs.confirm`, in a shorter run: verifies each kernel, then times all of them and cuBLAS by turns."""
    try:
        launches = [Plan(problem, _load(device, each)).launch for each in compiled]
        bench = bench_of(device, problem)
        measurements = bench.measure_all(launches, effort(problem, len(launches)))
    except CupygemmError as error:
        failed = Measurement(Status.LAUNCH_FAILED, detail=str(error))
        return [Outcome(failed, poisoned=not is_usable(device))]
    wrong = any(each.status is Status.WRONG_RESULT for each in measurements)
    spoilt = wrong and not bench.is_sound()
    return [Outcome(each, poisoned=spoilt) for each in measurements]


def baselines(device: int, problem: Problem) -> dict[str, Any]:
    """cuBLAS's time on the operands that kernels get, and on the same ones without gaps between rows.

    Raises:
        LaunchError: CUDA or cuBLAS refused.
    """
    bench = bench_of(device, problem)
    timing = bench.time({CONTIGUOUS: without_gaps(bench)}, effort(problem, 1))
    return {f"{name}_us": median(timing.samples_us[name]) for name in (CUBLAS, CONTIGUOUS)}


SURVEY_JOBS: Jobs = replace(GPU_JOBS, renew=GPU_JOBS.prepare, confirm=confirm, baselines=baselines)
"""Operands are drawn once: each shape is measured once."""


def without_gaps(bench: Bench, launch: Launch | None = None) -> Launch:
    """cuBLAS, or another launch, on copies of a bench's operands whose rows lie one after the other.

    The copies of those that are timed are made now, since none can be made while a graph is captured.
    """
    layout, run = bench.problem.layout, bench.cublas if launch is None else launch
    copies = {id(each.a): closed(each, layout) for each in bench.operands(ROTATED)}
    # The bench launches on a stream of its own, which waits for no other.
    driver.cupy().cuda.get_current_stream().synchronize()

    def launch_closed(operands: Operands) -> None:
        copy = copies.get(id(operands.a)) or closed(operands, layout)
        run(copy._replace(out=operands.out))

    return launch_closed


def closed(operands: Operands, layout: str) -> Operands:
    """The same operands without gaps between rows, as most arrays of CuPy's are."""
    a, b = (
        array.copy(order="C") if letter == "n" else array.swapaxes(-1, -2).copy(order="C").swapaxes(-1, -2)
        for array, letter in zip((operands.a, operands.b), layout, strict=True)
    )
    return operands._replace(a=a, b=b)


def _load(device: int, compiled: CompiledKernel) -> LoadedKernel:
    key = (device, compiled.spec, compiled.config)
    if key not in _loaded:
        _loaded[key] = LoadedKernel(compiled, device)
    return _loaded[key]
