"""Jobs for `GpuRunner` without a GPU: a config's fields say what its kernel is to do.

Handed to spawned processes by name, so this is a module of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CompileError, LaunchError
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_jobs import Jobs, Outcome

# `block_n` is eight times what a config is to do.
GOOD, SERIALISED, REFUSED, COMPILER_DIES = 1, 2, 3, 4
HANGS, EXITS, SEGFAULTS, RAISES, FAULTS, WRONG, HANGS_ON_LARGE, NO_GPU = 11, 12, 13, 14, 15, 16, 17, 18
LARGE = 4096

prepared: set[Problem] = set()
"""Of this process."""


def task(config: KernelConfig) -> int:
    """What a config is to do; what is none of the above is good."""
    return config.block_n // 8


def note(line: str) -> None:
    """Appends a line to the log that the test named in the environment."""
    with Path(os.environ["FAKE_JOBS_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


def compile_job(spec: KernelSpec, config: KernelConfig) -> CompiledKernel:
    """A kernel, a refusal, or the end of the process."""
    note(f"compile {task(config)}")
    if task(config) == REFUSED:
        raise CompileError("NVRTC refused the kernel", "a log")
    if task(config) == COMPILER_DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    advisories = ("C7510",) if task(config) == SERIALISED else ()
    return CompiledKernel(spec, config, Path("none.cubin"), "gemm", 168, 8, advisories)


def prepare(device: int, problem: Problem) -> None:
    """Notes that it was called."""
    prepared.add(problem)
    note(f"prepare {problem.m}")


def renew(device: int, problem: Problem) -> None:
    """Notes that it was called; there is no memory for the large problem."""
    note(f"renew {problem.m}")
    if problem.m == LARGE:
        raise MemoryError("no memory")
    prepared.add(problem)


def measure(device: int, compiled: CompiledKernel, problems: Sequence[Problem]) -> list[Outcome]:
    """Does to each problem what the config says."""
    note(f"measure {task(compiled.config)} {len(problems)} {os.getpid()}")
    outcomes = []
    for problem in problems:
        assert problem in prepared, "measured in a process where it was not prepared"
        outcomes.append(behave(task(compiled.config), problem))
        if outcomes[-1].poisoned:
            break
    return outcomes


def behave(doing: int, problem: Problem) -> Outcome:
    """One launch."""
    if doing == HANGS:
        # A process that waits inside the CUDA driver does not see SIGTERM either.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        time.sleep(600)
    if doing == HANGS_ON_LARGE and problem.m == LARGE:
        time.sleep(600)
    if doing == EXITS:
        os._exit(7)
    if doing == SEGFAULTS:
        os.kill(os.getpid(), signal.SIGSEGV)
    if doing == RAISES:
        raise ValueError("a defect")
    if doing == NO_GPU:
        raise LaunchError("no GPU at all")
    if doing == FAULTS:
        return Outcome(Measurement(Status.LAUNCH_FAILED, detail="an illegal memory access"), poisoned=True)
    if doing == WRONG:
        return Outcome(Measurement(Status.WRONG_RESULT, error=0.5))
    return Outcome(Measurement(Status.OK, samples_us=(float(problem.m),), baseline_us=(100.0,), error=2e-4))


def confirm(device: int, problem: Problem, compiled: Sequence[CompiledKernel]) -> list[Outcome]:
    """All kernels in one run; the first that faults ends it."""
    assert problem in prepared, "confirmed in a process where it was not prepared"
    note(f"confirm {len(compiled)}")
    outcomes = [behave(task(kernel.config), problem) for kernel in compiled]
    failed = [outcome for outcome in outcomes if outcome.poisoned]
    return failed[:1] or outcomes


def baselines(device: int, problem: Problem) -> dict[str, Any]:
    """Ends the process on the large problem."""
    if problem.m == LARGE:
        os._exit(3)
    return {"cublas_us": 100.0, "cublaslt_us": 95.0, "cublaslt_algorithm": {"id": 66}}


FAKE_JOBS = Jobs(compile_job, prepare, renew, measure, confirm, baselines)
