"""Cubins on their way to the disk cache: each compiled once at a time, by who needs it or in the background.

It makes no call of CUDA, which could break off a capture of another thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from cupygemm import settings
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CompileError, CupygemmError
from cupygemm.kernels import compiler, pack_kernel
from cupygemm.kernels.background import Background
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


def compiles_in_background(problem: Problem) -> bool:
    """Whether a kernel for this problem is to be compiled in the background, and cuBLAS to run meanwhile.

    Raises:
        SettingError: CUPYGEMM_COMPILE is not what it may be.
    """
    if not settings.compiles_in_background() or _at_once.get():
        return False
    # CuPy refuses to multiply stacks of bfloat16.
    return problem.batch == 1 or problem.a_dtype != "bfloat16"


class Cubin(NamedTuple):
    """What the compiler makes of a kernel.

    Attributes:
        key: the same for all kernels that are one cubin.
        name: for a person.
        compile: has it in the disk cache; raises CompileError.
        is_cached: whether it is there; raises CompileError where NVRTC is missing.
    """

    key: tuple[Any, ...]
    name: str
    compile: Callable[[], object]
    is_cached: Callable[[], bool]


def cubin_of(spec: KernelSpec, config: KernelConfig, name: str = "its kernel") -> Cubin:
    """That of a kernel; what a config tells at launch makes no other one."""
    return Cubin(
        (spec, tuple(config.compiled().values())),
        name,
        lambda: compiler.compile_kernel(spec, config),
        lambda: compiler.is_cached(spec, config),
    )


PACKING = Cubin(
    (pack_kernel.PAGE,),
    "the kernel that copies operands for TMA",
    lambda: pack_kernel.compile_now(),
    lambda: pack_kernel.is_compiled(),
)


class StillCompiling(Exception):
    """A kernel is being compiled in the background. No error: cuBLAS is to run meanwhile.

    Attributes:
        job: what compiles it.
    """

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(f"{name} is being compiled in the background (CUPYGEMM_COMPILE), and cuBLAS runs meanwhile")
        self.job = job


class Job:
    """A cubin compiled in the background.

    Attributes:
        is_over: whether it has ended, one way or the other.
        error: what stood in its way.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.error: CupygemmError | None = None


class Compilations:
    """What is being compiled, and was in the background. Safe from any thread."""

    def __init__(self) -> None:
        """Nothing is compiled yet."""
        # Signal handlers and finalizers may multiply too: locks that their own thread may take again.
        self._lock = threading.RLock()
        self._locks: dict[Any, threading.RLock] = {}
        self._jobs: dict[Any, Job] = {}
        self._background = Background()

    def lock_of(self, cubin: Cubin) -> threading.RLock:
        """Whoever compiles or loads it holds this, so that a slow one keeps nobody waiting but those who need it."""
        with self._lock:
            return self._locks.setdefault(cubin.key, threading.RLock())

    def compile(self, cubin: Cubin) -> bool:
        """Has a cubin in the disk cache, and says whether it was there already.

        Raises:
            CompileError: as said by it.
        """
        with self.lock_of(cubin):
            was_there = cubin.is_cached()
            cubin.compile()
            return was_there

    def is_under_way(self, cubin: Cubin) -> bool:
        """Whether it is being compiled in the background."""
        with self._lock:
            job = self._jobs.get(cubin.key)
        return job is not None and not job.is_over

    def begin(self, cubin: Cubin, what: object) -> Job | None:
        """The job that compiles a cubin in the background; None where it takes no time, or there can be no thread.

        Args:
            what: it is for, for the log.
        """
        with self._lock:
            job = self._jobs.get(cubin.key)
        if job is not None or _takes_no_time(cubin):
            return job
        with self._lock:
            job = self._jobs.get(cubin.key)
            if job is not None:
                return job
            job = Job()
            if not self._background.submit(lambda: self._run(job, cubin, what)):
                return None  # as when the process is ending
            self._jobs[cubin.key] = job
        return job

    def begin_or_raise(self, cubin: Cubin, what: object) -> CupygemmError | None:
        """Begins to compile a cubin in the background, and raises; comes back where loading it takes no compiling.

        Args:
            what: as of `begin`.

        Returns:
            What stood in the way of compiling it, which is not to be tried again; None for nothing.

        Raises:
            StillCompiling: it is being compiled in the background.
        """
        job = self.begin(cubin, what)
        if job is not None and not job.is_over:
            raise StillCompiling(cubin.name, job)
        return None if job is None else job.error

    def _run(self, job: Job, cubin: Cubin, what: object) -> None:
        """In a thread of its own."""
        try:
            self.compile(cubin)
        except CupygemmError as error:
            job.error = error
            log.warning("%s: %s cannot be compiled: %s", what, cubin.name, error)
        except Exception as error:
            # Memory that ran out, or a defect of ours: nobody but the log would hear of it.
            job.error = CompileError(f"compiling it failed: {type(error).__name__}: {error}")
            log.warning("%s: compiling %s failed", what, cubin.name, exc_info=error)
        finally:
            job.is_over = True


def _takes_no_time(cubin: Cubin) -> bool:
    """Whether compiling takes no time: the cubin is in the disk cache, or there is no NVRTC."""
    try:
        return cubin.is_cached()
    except CompileError:
        return True
