"""What the child processes of `GpuRunner` run: compiling, and all that touches the GPU.

Module-level functions on picklable arguments, so that a spawned process can be handed them. The GPU's process keeps
its benches from job to job; a candidate that faults takes the process with it, never the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CupygemmError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import CompiledKernel, compile_kernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import is_usable
from cupygemm.measuring.timing import QUICK
from cupygemm.problem import Problem


@dataclass(frozen=True)
class Outcome:
    """A measurement, and whether the process that made it is no longer to be trusted with the GPU."""

    measurement: Measurement
    poisoned: bool = False


@dataclass(frozen=True)
class Jobs:
    """The functions that run in child processes; a test without a GPU puts others in their place.

    Attributes:
        compile: (spec, config) → kernel, in one of the compiling processes.
        prepare: (device, problem): makes later jobs on the problem quick.
        renew: (device, problem): has later jobs on the problem use other operands in other memory.
        measure: (device, kernel, problems) → an outcome for each problem, or for the first few when the last of
            them is poisoned.
        confirm: (device, problem, kernels) → an outcome for each kernel, raced in one run, or the single
            outcome of a failure that ended the run.
        baselines: (device, problem) → times of the libraries.
    """

    compile: Callable[[KernelSpec, KernelConfig], CompiledKernel]
    prepare: Callable[[int, Problem], None]
    renew: Callable[[int, Problem], None]
    measure: Callable[[int, CompiledKernel, Sequence[Problem]], list[Outcome]]
    confirm: Callable[[int, Problem, Sequence[CompiledKernel]], list[Outcome]]
    baselines: Callable[[int, Problem], dict[str, Any]]


BOTH_SHARE = 4
"""A bench of more than this part of the device's memory goes before the one that takes its place is made."""

_benches: dict[tuple[int, Problem], Bench] = {}
"""Of this process, the least recently used first."""
_draws = count(1)
"""Seeds of the operands that take the place of others; those of the search have 0."""


def prepare(device: int, problem: Problem) -> None:
    """Draws the operands of a problem and computes its references, unless that is done already.

    Raises:
        LaunchError: no such GPU, no cuBLAS, or CUDA refused.
    """
    bench_of(device, problem)


def renew(device: int, problem: Problem) -> None:
    """Draws the operands of a problem anew. Those before stay until then, so that the new ones lie elsewhere: how
    addresses fall into the L2 is luck too.

    Raises:
        LaunchError: no such GPU, no cuBLAS, or CUDA refused.
    """
    key = (device, problem)
    if key in _benches and _benches[key].device_bytes > _memory_bytes(device) // BOTH_SHARE:
        del _benches[key]
    fresh = _make_bench(device, problem, next(_draws))
    _benches.pop(key, None)
    _benches[key] = fresh


def measure(device: int, compiled: CompiledKernel, problems: Sequence[Problem]) -> list[Outcome]:
    """Verifies and times one kernel, loaded once, on each problem; stops after a fault."""
    try:
        kernel = LoadedKernel(compiled, device)
    except CupygemmError as error:
        refused = _failed(device, error)
        return [refused] if refused.poisoned else [refused] * len(problems)
    return list(_until_poisoned(device, kernel, problems))


def _until_poisoned(device: int, kernel: LoadedKernel, problems: Sequence[Problem]) -> Iterator[Outcome]:
    for problem in problems:
        bench = bench_of(device, problem)
        try:
            measurement = bench.measure(Plan(problem, kernel).launch, QUICK)
            # A wrong kernel may have written where it should not, and every later one would be found wrong.
            spoilt = measurement.status is Status.WRONG_RESULT and not bench.is_sound()
            outcome = Outcome(measurement, poisoned=spoilt)
        except CupygemmError as error:
            outcome = _failed(device, error)
        yield outcome
        if outcome.poisoned:
            return


def confirm(device: int, problem: Problem, compiled: Sequence[CompiledKernel]) -> list[Outcome]:
    """Verifies kernels and has them race, all of them and cuBLAS by turns in one run; ends where one cannot run."""
    bench = bench_of(device, problem)
    try:
        launches = [Plan(problem, LoadedKernel(each, device)).launch for each in compiled]
        return [Outcome(measurement) for measurement in bench.race(launches)]
    except CupygemmError as error:
        return [_failed(device, error)]


def baselines(device: int, problem: Problem) -> dict[str, Any]:
    """`Bench.baselines`: cuBLAS and the best cublasLt algorithm.

    Raises:
        LaunchError: CUDA or cuBLAS refused.
    """
    return bench_of(device, problem).baselines()


GPU_JOBS = Jobs(compile_kernel, prepare, renew, measure, confirm, baselines)


def _failed(device: int, error: Exception) -> Outcome:
    return Outcome(Measurement(Status.LAUNCH_FAILED, detail=str(error)), poisoned=not is_usable(device))


def bench_of(device: int, problem: Problem) -> Bench:
    """The bench of a problem, kept from job to job while there is memory.

    Raises:
        LaunchError, VerificationError: as `Bench`.
    """
    key = (device, problem)
    bench = _benches.pop(key, None) or _make_bench(device, problem)
    _benches[key] = bench  # behind all others: the one used last
    return bench


def _make_bench(device: int, problem: Problem, seed: int = 0) -> Bench:
    """A new bench, and half of the device's memory at most for those kept beside it."""
    bench = Bench(problem, device, seed)
    while _benches and sum(kept.device_bytes for kept in _benches.values()) > _memory_bytes(device) // 2:
        del _benches[next(iter(_benches))]
    return bench


def _memory_bytes(device: int) -> int:
    return int(driver.cupy().cuda.runtime.getDeviceProperties(device)["totalGlobalMem"])
