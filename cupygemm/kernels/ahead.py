"""Many kernels at once: compiled into the cache, on all cores.

NVRTC runs in threads side by side, and Python beside it (12.4, 12.9 and 13.0 do, 2026-11): no processes are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.cores import num_cores
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler

Kernel = tuple[KernelSpec, KernelConfig]
Key = TypeVar("Key")
Item = TypeVar("Item")
Compiled = TypeVar("Compiled")


def compile_ahead(kernels: Iterable[Kernel], threads: int | None = None) -> dict[Kernel, CompileError]:
    """Compiles kernels that will be loaded later; one for all that differ in nothing that is compiled.

    Args:
        kernels: which.
        threads: how many at once; None for one a core.

    Returns:
        what stood in the way of those that could not be compiled; whoever loads them meets it again.
    """
    different = {(spec, *config.compiled().values()): (spec, config) for spec, config in kernels}
    found = compile_each(different, lambda kernel: compiler.compile_kernel(*kernel), threads)
    return {different[key]: outcome for key, outcome in found.items() if isinstance(outcome, CompileError)}


def compile_each(
    kernels: Mapping[Key, Item],
    compile_one: Callable[[Item], Compiled],
    threads: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[Key, Compiled | CompileError]:
    """Has each kernel compiled, and gives what came of it by its key; an interruption drops those not begun.

    Args:
        kernels: different ones, in any form that `compile_one` takes.
        compile_one: compiles one; called in threads.
        threads: how many at once; None for one a core.
        progress: told how many of how many are done, after each.
    """
    found: dict[Key, Compiled | CompileError] = {}
    pool = ThreadPoolExecutor(threads or num_cores(), thread_name_prefix="cupygemm-ahead")
    try:
        jobs = {pool.submit(compile_one, kernel): key for key, kernel in kernels.items()}
        for job in as_completed(jobs):
            try:
                found[jobs[job]] = job.result()
            except CompileError as error:
                found[jobs[job]] = error
            progress(len(found), len(jobs))
    finally:
        # An interruption waits for what is being compiled, not for all.
        pool.shutdown(cancel_futures=True)
    return found
