"""The memory of one call: all its arrays in one poisoned buffer, so that one comparison tells what was written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.fuzzing.cases import Array, Call, Case, numpy_dtype_of
from tests.fuzzing.storage import layout

GUARD = 512
"""Poisoned bytes between arrays, at least."""
START = 256
"""To which each array's buffer is aligned, as a fresh allocation of CuPy's is."""


def library(array: Any) -> Any:
    """The module whose functions take an array: NumPy's, or CuPy's."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    # Loaded here: this module works without CuPy too.
    import cupy

    return cupy


class Arena:
    """The arrays of a call as views of one buffer that holds 0xFF everywhere else: NaN in each dtype.

    Attributes:
        views: by name: the operands, `out` and what else the case has.
    """

    def __init__(self, case: Case, call: Call, values: Mapping[str, Any], empty: Callable[..., Any]) -> None:
        """Places all, and puts values in all but `out`.

        Args:
            values: by name, dense, with 1 along axes that are broadcast.
            empty: allocates an array of a shape and dtype.
        """
        arrays = {"a": case.a, "b": case.b, "bias": case.bias, "residual": case.residual, "out": case.out}
        shifts = {"a": call.a_shift, "b": call.b_shift, "out": call.out_shift}
        self._places: dict[str, tuple[Array, int]] = {}
        end = 0
        for name, array in arrays.items():
            if array is None:
                continue
            start = -(-(end + GUARD) // START) * START
            if name == "out" and call.out_on:
                start = self._places[call.out_on][1]
            itemsize = numpy_dtype_of(array.dtype).itemsize
            start += shifts.get(name, 0) * itemsize
            start = -(-start // itemsize) * itemsize
            self._places[name] = array, start
            end = max(end, start + layout(array.shape, array.storage).extent * itemsize)
        self._buffer = empty(-(-(end + GUARD) // 8) * 8, np.uint8)
        self._buffer.fill(0xFF)
        self.views = {name: self._view(self._buffer, name) for name in self._places}
        for name, view in self.views.items():
            if name in values and view.size:
                # One element of an axis that is broadcast stands for all.
                first = (..., *(slice(size) for size in values[name].shape))
                _bits(view[first])[...] = _bits(values[name])
        if case.b is None:
            self.views["b"] = self.views["a"].swapaxes(-1, -2)
        self._before = self._buffer.copy()

    def strayed(self, result: Any) -> Any:
        """Whether anything but the elements of `out` is not as it was, as an array of no axes.

        Args:
            result: dense, what was read of `out`; None where there is none.
        """
        expected = self._before
        if result is not None and result.size:
            expected = self._before.copy()
            _bits(self._view(expected, "out"))[...] = _bits(result)
        return (expected.view(np.uint64) != self._buffer.view(np.uint64)).any()

    def _view(self, buffer: Any, name: str) -> Any:
        array, start = self._places[name]
        element = numpy_dtype_of(array.dtype)
        strides, first, extent = layout(array.shape, array.storage)
        flat = buffer[start : start + extent * element.itemsize].view(element)
        if not math.prod(array.shape):
            return flat[:0].reshape(array.shape)
        spread = library(buffer).lib.stride_tricks.as_strided
        more = {"subok": True} if isinstance(buffer, np.ndarray) else {}
        return spread(flat[first:], array.shape, tuple(each * element.itemsize for each in strides), **more)


def _bits(array: Any) -> Any:
    """The same memory as integers, where NumPy does not have the dtype itself."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array
