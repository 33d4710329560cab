"""From a config that was chosen to a kernel that can be launched: compiled, now or in the background, and loaded once.

Kernels are compiled and loaded under a lock each, so that a slow one keeps nobody waiting but those who need it. What
goes on in the background is compiling alone, for the disk cache: it makes no call of CUDA, which could break off a
capture of another thread. The call that finds the kernel compiled loads it, which takes milliseconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cupygemm import compiler, driver, settings
from cupygemm.background import Background
from cupygemm.capture import is_capturing
from cupygemm.compiler import CompiledKernel
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CaptureError, CompileError, ConfigError, CupygemmError, LaunchError
from cupygemm.kernel_plan import LoadedKernel
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem

log = logging.getLogger(__name__)

_at_once: ContextVar[bool] = ContextVar("compiling_at_once", default=False)


@contextmanager
def compiling_at_once() -> Iterator[None]:
    """Inside, this thread waits for the kernels that it needs, whatever CUPYGEMM_COMPILE says."""
    token = _at_once.set(True)
    try:
        yield
    finally:
        _at_once.reset(token)


class StillCompiling(Exception):
    """A kernel is being compiled in the background. No error: cuBLAS is to run meanwhile.

    Attributes:
        job: what compiles it.
    """

    def __init__(self, job: Job) -> None:
        super().__init__("its kernel is being compiled in the background (CUPYGEMM_COMPILE), and cuBLAS runs meanwhile")
        self.job = job


class Job:
    """A kernel compiled in the background.

    Attributes:
        is_over: whether it has ended, one way or the other.
        error: what stood in its way.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.error: CupygemmError | None = None


class Kernels:
    """The kernels that are loaded, by spec, config and device, and those that are on their way. Safe from any thread.

    What cannot be compiled or loaded is remembered too, so that a broken config is tried once.
    """

    def __init__(self) -> None:
        """Nothing is compiled or loaded yet."""
        # Signal handlers and finalizers may multiply too: locks that their own thread may take again.
        self._lock = threading.RLock()
        self._loaded: dict[tuple[KernelSpec, KernelConfig, int], LoadedKernel | CupygemmError] = {}
        self._cubin_locks: dict[Any, threading.RLock] = {}
        self._jobs: dict[Any, Job] = {}
        self._background = Background()

    def may_wait(self, problem: Problem) -> bool:
        """Whether a kernel for this problem is to be compiled in the background, and cuBLAS to run meanwhile.

        Raises:
            SettingError: CUPYGEMM_COMPILE is not what it may be.
        """
        if not settings.compiles_in_background() or _at_once.get():
            return False
        # CuPy refuses to multiply stacks of bfloat16.
        return problem.batch == 1 or problem.a_dtype != "bfloat16"

    def load(self, problem: Problem, config: KernelConfig, index: int, may_wait: bool = False) -> LoadedKernel:
        """The kernel for a problem on a CUDA device; compiled and loaded if it is not.

        Args:
            may_wait: compile in the background what is not in the disk cache.

        Raises:
            CaptureError: it is not loaded, and a CUDA graph is being captured.
            StillCompiling: it is being compiled in the background.
            ConfigError, CompileError, LaunchError: what stands in its way.
        """
        spec = KernelSpec.of(problem)
        key = (spec, config, index)
        kernel = self._loaded.get(key)
        if kernel is None:
            if is_capturing():
                raise CaptureError(self._capture_words(problem, spec, config))
            if may_wait:
                self._see_to_it(problem, spec, config, index)
            with self._lock_of(spec, config):
                kernel = self._loaded.get(key)
                if kernel is None:
                    kernel = self._loaded[key] = _try_loading(spec, config, index)
        if isinstance(kernel, CupygemmError):
            # Else the traceback of one error would grow with every call.
            raise kernel.with_traceback(None)
        return kernel

    def compile(self, spec: KernelSpec, config: KernelConfig) -> tuple[CompiledKernel, bool]:
        """The kernel in the disk cache, and whether it was there already.

        Raises:
            CompileError: as `compile_kernel`.
        """
        with self._lock_of(spec, config):
            was_there = compiler.is_cached(spec, config)
            return compiler.compile_kernel(spec, config), was_there

    def _see_to_it(self, problem: Problem, spec: KernelSpec, config: KernelConfig, index: int) -> None:
        """Comes back where loading takes no compiling, or cannot be done; else it has it compiled, and says so."""
        with self._lock:
            job = self._jobs.get(cubin_key(spec, config))
        if job is None:
            if illegal_reason(config, spec, driver.device_spec(index)) is not None or _takes_no_time(spec, config):
                return
            job = self._start(problem, spec, config)
        if job is not None and not job.is_over:
            raise StillCompiling(job)
        if job is not None and job.error is not None:
            # Not to be tried again in the foreground.
            self._loaded.setdefault((spec, config, index), job.error)

    def _start(self, problem: Problem, spec: KernelSpec, config: KernelConfig) -> Job | None:
        """The job that compiles a kernel; None where there can be no thread for it, as when the process is ending."""
        with self._lock:
            job = self._jobs.get(cubin_key(spec, config))
            if job is not None:
                return job
            job = Job()
            if not self._background.submit(lambda: self._run(job, problem, spec, config)):
                return None
            self._jobs[cubin_key(spec, config)] = job
        return job

    def _run(self, job: Job, problem: Problem, spec: KernelSpec, config: KernelConfig) -> None:
        """In a thread of its own."""
        try:
            self.compile(spec, config)
        except CupygemmError as error:
            job.error = error
            log.warning("%s: its kernel cannot be compiled: %s", problem, error)
        except Exception as error:
            # Memory that ran out, or a defect of ours: nobody but the log would hear of it.
            job.error = CompileError(f"compiling it failed: {type(error).__name__}: {error}")
            log.warning("%s: compiling its kernel failed", problem, exc_info=error)
        finally:
            job.is_over = True

    def _capture_words(self, problem: Problem, spec: KernelSpec, config: KernelConfig) -> str:
        with self._lock:
            job = self._jobs.get(cubin_key(spec, config))
        state = "is not loaded" if job is None or job.is_over else "is still being compiled in the background"
        return (
            f"{problem}: its kernel {state}, and a CUDA graph is being captured: before the capture call matmul once "
            "with operands of this shape, or cupygemm.plan or cupygemm.warmup, which wait for it"
        )

    def _lock_of(self, spec: KernelSpec, config: KernelConfig) -> threading.RLock:
        with self._lock:
            return self._cubin_locks.setdefault(cubin_key(spec, config), threading.RLock())


def cubin_key(spec: KernelSpec, config: KernelConfig) -> tuple[Any, ...]:
    """What kernels have in common that are one cubin: not what a config tells at launch."""
    return spec, tuple(config.compiled().values())


def _takes_no_time(spec: KernelSpec, config: KernelConfig) -> bool:
    """Whether compiling takes no time: the kernel is in the disk cache, or there is no NVRTC."""
    try:
        return compiler.is_cached(spec, config)
    except CompileError:
        return True


def _try_loading(spec: KernelSpec, config: KernelConfig, index: int) -> LoadedKernel | CupygemmError:
    """The kernel, or what stands in its way."""
    reason = illegal_reason(config, spec, driver.device_spec(index))
    if reason is not None:
        return ConfigError(reason)
    try:
        return LoadedKernel(compiler.compile_kernel(spec, config), index)
    except (CompileError, ConfigError, LaunchError) as error:
        return error
