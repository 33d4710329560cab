"""`GpuRunner`: measures configs on a GPU, in child processes that may hang, fault or crash without ending the search.

Kernels are compiled in parallel processes while the GPU measures those that are ready. All GPU work is in one process
of its own with a deadline for each job; when a candidate hangs or faults, that process is killed or replaced.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.cores import num_cores
from cupygemm.device import DeviceSpec
from cupygemm.errors import CompileError, CupygemmError, LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import take_gpu
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_jobs import GPU_JOBS, Jobs, Outcome
from cupygemm.search.runners.traffic import with_l2

COMPILE_DEADLINE_S = 120.0
PREPARE_DEADLINE_S = 180.0
"""A fresh process imports CuPy, makes a CUDA context, draws operands and computes float64 products."""
KILL_GRACE_S = 90.0
"""How long starting a process, or ending one that was killed, may take before the GPU is given up."""
COMPILED_AHEAD = 4
"""Kernels that are being compiled ahead of the measuring, for each compiling process."""

_log = logging.getLogger(__name__)


class GpuRunner:
    """A `Runner` on one GPU. While it is open no other takes that GPU for measuring.

    Attributes:
        device: "cuda:N".
        device_spec: the GPU's properties.
    """

    def __init__(
        self,
        device: int = 0,
        compile_workers: int | None = None,
        deadline_s: float = 20.0,
        jobs: Jobs = GPU_JOBS,
        device_spec: DeviceSpec | None = None,
    ) -> None:
        """Takes the GPU; processes start when they are needed.

        Args:
            device: CUDA index.
            compile_workers: compiling processes; None for one a core.
            deadline_s: for measuring one kernel on one problem; a process that takes longer is killed.
            jobs: what the child processes run.
            device_spec: None to ask the driver.

        Raises:
            LaunchError: there is no such GPU, or another process is measuring on it.
        """
        self.device = f"cuda:{device}"
        self.device_spec = driver.device_spec(device) if device_spec is None else device_spec
        self._index = device
        self._deadline_s = deadline_s
        self._jobs = jobs
        self._prepared: set[Problem] = set()
        self._lock = take_gpu(device)
        num_compilers = compile_workers or num_cores()
        self._compiled_ahead = COMPILED_AHEAD * num_compilers
        self._compilers = _Workers(num_compilers)
        self._gpu = _Workers(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes and lets go of the GPU."""
        self._compilers.stop()
        self._stop_gpu()
        self._lock.release()

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Measurement]:
        """One measurement for each config, in the order given, as they end.

        Raises:
            LaunchError: the GPU cannot be used at all; what a candidate does is a status.
        """
        for measurements in self._on_each([problem], configs):
            yield measurements[0]

    def compile_ahead(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> int:
        """Compiles into the cache every kernel that a sweep will need; the number that compiled.

        Raises:
            LaunchError: compiling processes cannot be started.
        """
        specs = dict.fromkeys(KernelSpec.of(problem) for problem in problems)
        kernels = (kernel for spec in specs for kernel in self._compiled(spec, configs))
        return sum(isinstance(kernel, CompiledKernel) for kernel in kernels)

    def sweep(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> Iterator[Record]:
        """Every config on every problem, as they end; each kernel is loaded once for all problems of its spec.

        Raises:
            LaunchError: the GPU cannot be used at all.
        """
        origin = provenance.collect(self._index)
        by_spec: dict[KernelSpec, list[Problem]] = {}
        for problem in problems:
            by_spec.setdefault(KernelSpec.of(problem), []).append(problem)
        for alike in by_spec.values():
            for config, measurements in zip(configs, self._on_each(alike, configs), strict=True):
                for problem, measurement in zip(alike, measurements, strict=True):
                    yield Record(problem, config, measurement, origin)

    def confirm(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """Has configs race, all of them and cuBLAS by turns in one run, on operands drawn anew; in the order given.

        Where one of them fails, each is measured in a run of its own.

        Raises:
            LaunchError: the GPU cannot be used at all.
        """
        compiled = list(self._compiled(KernelSpec.of(problem), configs))
        kernels = [each for each in compiled if isinstance(each, CompiledKernel)]
        if kernels:
            self._renew(problem)
        confirmed = iter(self._confirm(problem, kernels))
        return [next(confirmed) if isinstance(each, CompiledKernel) else each for each in compiled]

    def baselines(self, problem: Problem) -> dict[str, Any]:
        """`cublas_us`, `cublaslt_us` and `cublaslt_algorithm` of a problem, from one interleaved run.

        Raises:
            LaunchError: the GPU or cuBLAS cannot be used.
        """
        self._prepare([problem])
        try:
            return dict(self._gpu.call(self._jobs.baselines, self._index, problem, deadline_s=PREPARE_DEADLINE_S))
        except (TimeoutError, ProcessExpired) as error:
            self._prepared.clear()
            raise LaunchError(f"timing cuBLAS on {self.device}: {_end(error, PREPARE_DEADLINE_S).detail}") from error

    def _on_each(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> Iterator[list[Measurement]]:
        """For each config, a measurement on each of the problems, which share a spec."""
        for config, compiled in zip(configs, self._compiled(KernelSpec.of(problems[0]), configs), strict=True):
            if isinstance(compiled, Measurement):
                yield [compiled] * len(problems)
                continue
            found = [_with_resources(measured, compiled) for measured in self._measure(compiled, problems)]
            pairs = zip(found, problems, strict=True)
            yield [with_l2(measured, problem, config, self.device_spec) for measured, problem in pairs]

    def _measure(self, kernel: CompiledKernel, problems: Sequence[Problem]) -> list[Measurement]:
        found = self._attempt(self._jobs.measure, problems, (kernel, problems), len(problems))
        if isinstance(found, Measurement):
            if len(problems) == 1:
                return [found]
            found = []  # on which of the problems it hung or crashed is not known
        rest = problems[len(found) :]
        return found + [measurement for problem in rest for measurement in self._measure(kernel, [problem])]

    def _confirm(self, problem: Problem, kernels: Sequence[CompiledKernel]) -> list[Measurement]:
        if not kernels:
            return []
        found = self._attempt(self._jobs.confirm, [problem], (problem, kernels), len(kernels))
        if len(kernels) == 1:
            single = found if isinstance(found, Measurement) else found[0]
            return [_with_resources(single, kernels[0])]
        if isinstance(found, Measurement) or len(found) < len(kernels):
            return [measurement for kernel in kernels for measurement in self._confirm(problem, [kernel])]
        return [_with_resources(each, kernel) for each, kernel in zip(found, kernels, strict=True)]

    def _attempt(
        self, job: Callable[..., list[Outcome]], problems: Sequence[Problem], arguments: tuple[Any, ...], count: int
    ) -> list[Measurement] | Measurement:
        """What a job measured, at most `count` measurements, or the one that says how it broke off."""
        self._prepare(problems)
        deadline_s = self._deadline_s + count - 1
        try:
            outcomes = self._gpu.call(job, self._index, *arguments, deadline_s=deadline_s)
        except (TimeoutError, ProcessExpired) as error:
            self._prepared.clear()
            return _end(error, deadline_s)
        except CupygemmError:
            raise
        except Exception as error:
            # Memory that ran out, or a defect of ours: said aloud, and the search goes on in a new process.
            _log.warning("measuring on %s failed", self.device, exc_info=error)
            self._stop_gpu()
            return Measurement(Status.LAUNCH_FAILED, detail=f"{type(error).__name__}: {error}")
        if any(outcome.poisoned for outcome in outcomes):
            self._stop_gpu()
        return [outcome.measurement for outcome in outcomes]

    def _stop_gpu(self) -> None:
        """Ends the GPU's process, and with it all that was prepared there; the next job starts another."""
        self._gpu.stop()
        self._prepared.clear()

    def _prepare(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            if problem not in self._prepared:
                self._prepare_by(self._jobs.prepare, problem)

    def _renew(self, problem: Problem) -> None:
        try:
            self._prepare_by(self._jobs.renew, problem)
        except CupygemmError:
            raise
        except Exception as error:
            # Memory that ran out: the operands of a new process are new as well.
            _log.warning("drawing new operands on %s failed", self.device, exc_info=error)
            self._stop_gpu()

    def _prepare_by(self, job: Callable[[int, Problem], None], problem: Problem) -> None:
        try:
            self._prepare_once(job, problem)
        except (TimeoutError, ProcessExpired):
            # A GPU may need a moment after a process was killed in the middle of its work.
            self._prepared.clear()
            self._prepare_again(problem)
        self._prepared.add(problem)

    def _prepare_once(self, job: Callable[[int, Problem], None], problem: Problem) -> None:
        self._gpu.call(job, self._index, problem, deadline_s=PREPARE_DEADLINE_S)

    def _prepare_again(self, problem: Problem) -> None:
        try:
            self._prepare_once(self._jobs.prepare, problem)
        except (TimeoutError, ProcessExpired) as error:
            reason = _end(error, PREPARE_DEADLINE_S).detail
            raise LaunchError(f"{self.device} cannot be prepared for {problem}, tried twice: {reason}") from error

    def _compiled(self, spec: KernelSpec, configs: Sequence[KernelConfig]) -> Iterator[CompiledKernel | Measurement]:
        """For each config, in order, the kernel, or the measurement that says why there is none.

        Configs that differ only in what a kernel learns at launch share one job.
        """
        ahead: deque[tuple[KernelConfig, Future[CompiledKernel] | Measurement]] = deque()
        running: dict[tuple[Any, ...], Future[CompiledKernel]] = {}
        for config in configs:
            ahead.append((config, self._start_compiling(spec, config, running)))
            if len(ahead) > self._compiled_ahead:
                yield _kernel(*ahead.popleft())
        while ahead:
            yield _kernel(*ahead.popleft())

    def _start_compiling(
        self, spec: KernelSpec, config: KernelConfig, running: dict[tuple[Any, ...], Future[CompiledKernel]]
    ) -> Future[CompiledKernel] | Measurement:
        reason = illegal_reason(config, spec, self.device_spec)
        if reason is not None:
            return Measurement(Status.ILLEGAL, detail=reason)
        compiled = tuple(config.compiled().values())
        if compiled not in running:
            running[compiled] = self._compilers.submit(self._jobs.compile, spec, config, deadline_s=COMPILE_DEADLINE_S)
        return running[compiled]


class _Workers:
    """Spawned processes for jobs: started by the first job, and anew by the first one after `stop`.

    A CUDA context does not survive a fork, so they are spawned. A process that outlasts its job's deadline is killed
    before the job raises TimeoutError, and another takes its place.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPool | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline_s: float) -> Future[Any]:
        """Queues a job; its deadline counts from the moment when a process takes it."""
        if self._pool is None:
            self._pool = ProcessPool(max_workers=self._count, context=multiprocessing.get_context("spawn"))
        try:
            return self._pool.schedule(function, args=arguments, timeout=deadline_s)
        except RuntimeError as error:
            raise LaunchError(f"child processes cannot be started: {error}") from error

    def call(self, function: Callable[..., Any], *arguments: Any, deadline_s: float) -> Any:
        """Runs a job and waits for it, where nothing else is queued.

        Raises:
            TimeoutError: its process was killed at the deadline.
            ProcessExpired: its process ended by itself.
            LaunchError: a process can neither be started nor killed.
            Exception: whatever the job raised.
        """
        future = self.submit(function, *arguments, deadline_s=deadline_s)
        wait([future], timeout=deadline_s + KILL_GRACE_S)
        if not future.done():
            raise LaunchError(
                f"a child process did not end {KILL_GRACE_S:.0f} s after its deadline of {deadline_s:.0f} s"
            )
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise LaunchError(f"child processes cannot be started: {error}") from error

    def stop(self) -> None:
        """Ends all processes, whatever they are doing, and waits until they are gone."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def _kernel(config: KernelConfig, pending: Future[CompiledKernel] | Measurement) -> CompiledKernel | Measurement:
    """What became of a config's compile job; a kernel that ptxas serialised is not worth running."""
    if isinstance(pending, Measurement):
        return pending
    try:
        kernel = replace(pending.result(), config=config)
    except CompileError as error:
        return Measurement(Status.COMPILE_FAILED, detail=str(error))
    except (TimeoutError, ProcessExpired) as error:
        ended = _end(error, COMPILE_DEADLINE_S)
        return ended.with_fields(detail=f"compiling: {ended.detail}")
    except BrokenProcessPool as error:
        raise LaunchError(f"compiling processes cannot be started: {error}") from error
    if kernel.advisories:
        detail = f"ptxas advisory {', '.join(kernel.advisories)}"
        return _with_resources(Measurement(Status.SERIALISED, detail=detail), kernel)
    return kernel


def _end(error: TimeoutError | ProcessExpired, deadline_s: float) -> Measurement:
    """The measurement of a job whose process was killed or ended."""
    if isinstance(error, TimeoutError):
        return Measurement(Status.TIMED_OUT, detail=f"not done after {deadline_s:g} s: its process was killed")
    code = error.exitcode
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return Measurement(Status.CRASHED, detail=f"its process {how}")


def _with_resources(measurement: Measurement, kernel: CompiledKernel) -> Measurement:
    return measurement.with_fields(registers=kernel.registers, spill_bytes=kernel.spill_bytes)
