"""Arrays to view, not to compute with: the fake GPU's and, where CuPy is installed, CuPy's over host memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import DeviceArray, FakeGpu

Make = Callable[[tuple[int, ...]], Any]
"""An array of float16 of a shape."""


def on_fake_gpu(shape: tuple[int, ...]) -> Any:
    return FakeGpu().empty(shape, np.float16)


def of_cupy(shape: tuple[int, ...]) -> Any:
    cupy = pytest.importorskip("cupy")
    host = np.zeros(max(1, int(np.prod(shape))), np.float16)
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, 0)
    return cupy.ndarray(shape, np.float16, cupy.cuda.MemoryPointer(memory, 0))


def strided(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A view with these strides, in bytes."""
    if isinstance(array, DeviceArray):
        return np.lib.stride_tricks.as_strided(array, shape, strides, subok=True)
    return pytest.importorskip("cupy").lib.stride_tricks.as_strided(array, shape, strides)


without_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
KINDS = [on_fake_gpu, pytest.param(of_cupy, marks=without_cupy)]
"""Of `Make`, for a fixture's params."""
