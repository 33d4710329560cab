"""Random values by dtype, drawn once and cut from afterwards: a case's operands are slices of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cupygemm.measuring import verify
from tests.fuzzing.cases import Array, numpy_dtype_of
from tests.fuzzing.storage import stored_shape

SIZE = 2**23 + 4099
LONGEST = 2**22
"""Elements of the largest array that can be cut."""


class Pools:
    """Values on the device of an array module.

    Floats are standard normal or uniform in [0, 1); integers lie between -2 and 2, so that each dtype holds its sums,
    or wraps them as NumPy does.
    """

    def __init__(self, place: Callable[[Any], Any], size: int = SIZE, seed: int = 0) -> None:
        """Draws nothing yet.

        Args:
            place: puts a NumPy array where values are wanted.
            size: of each pool, in elements.
        """
        self._place = place
        self._size = size
        self._seed = seed
        self._pools: dict[tuple[str, str], Any] = {}

    def cut(self, array: Array, kind: str, key: int) -> Any:
        """Values for an array, dense, with 1 along axes that are broadcast.

        Args:
            kind: one of `verify.DATA_KINDS`.
            key: other values for another one.
        """
        shape = stored_shape(array.shape, array.storage)
        size = math.prod(shape)
        start = key * 7_368_787 % (self._size - size)
        return self._pool(array.dtype, kind)[start : start + size].reshape(shape)

    def _pool(self, dtype: str, kind: str) -> Any:
        found = self._pools.get((dtype, kind))
        if found is None:
            found = self._pools[dtype, kind] = self._place(_drawn(dtype, kind, self._size, self._seed))
        return found


def _drawn(dtype: str, kind: str, size: int, seed: int) -> Any:
    rng, element = np.random.default_rng((seed, len(dtype))), numpy_dtype_of(dtype)
    if element.kind in "iu":
        return rng.integers(-2 if element.kind == "i" else 0, 3, size).astype(element)
    draw = rng.standard_normal if kind == verify.ZERO_MEAN else rng.random
    values = draw(size, dtype=np.float32)
    if element.kind == "c":
        return (values + 1j * draw(size, dtype=np.float32)).astype(element)
    return values.astype(element)
