"""The stream on which a device is measured, and whether the device can still be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from cupygemm.errors import LaunchError
from cupygemm.kernels import driver


@cache
def stream(device: int) -> Any:
    """The one stream on which a device is measured: memory freed by one bench serves the next in stream order."""
    cupy = driver.cupy()
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True)


@contextlib.contextmanager
def active(device: int) -> Iterator[None]:
    """Makes a device and its measuring stream current.

    Raises:
        LaunchError: in place of CuPy's own exceptions.
    """
    cupy = driver.cupy()
    try:
        with cupy.cuda.Device(device), stream(device):
            yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise LaunchError(str(error)) from error


def is_usable(device: int) -> bool:
    """Whether this process can still use the device: after a fault inside a kernel it cannot, until it ends."""
    try:
        with active(device):
            driver.cupy().cuda.Device(device).synchronize()
    except LaunchError:
        return False
    return True
