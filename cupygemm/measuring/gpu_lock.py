"""One at a time: whoever measures on a GPU holds its lock, or two runs would time each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from cupygemm import settings
from cupygemm.atomic import check_folder
from cupygemm.errors import LaunchError
from cupygemm.kernels.kernel_cache import ELSEWHERE
from cupygemm.measuring import telemetry


def take_gpu(index: int) -> FileLock:
    """Takes a GPU for measuring; it is free again once the lock is released or the process has ended.

    Args:
        index: CUDA device. The lock is of the physical GPU, whatever its index elsewhere.

    Raises:
        LaunchError: another process is measuring on it.
        OSError: the folder of the lock cannot be written.
    """
    check_folder(settings.cache_dir(), ELSEWHERE)
    path = settings.cache_dir() / f"gpu-{telemetry.uuid(index) or index}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise LaunchError(
            f"another process is measuring on cuda:{index} (it holds {path}): wait until it ends"
        ) from error
    return lock


@contextmanager
def holding_gpu(index: int) -> Iterator[None]:
    """`take_gpu` for the time of a block."""
    lock = take_gpu(index)
    try:
        yield
    finally:
        lock.release()
