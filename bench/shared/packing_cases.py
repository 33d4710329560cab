"""The products that bench/packing.py measures: float16 operands of which TMA cannot read one, or both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupygemm.kernels import driver
from cupygemm.problem import Problem

View = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """Operands as allocated, [m, k] and [k, n] or stacks of them, and what of them is multiplied."""

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_view: View = lambda x: x
    b_view: View = lambda x: x


CASES = {
    "4095x4095x4095": Case((4095, 4095), (4095, 4095)),
    "2047x2047x2047": Case((2047, 2047), (2047, 2047)),
    "1023x1023x1023": Case((1023, 1023), (1023, 1023)),
    "511x511x511": Case((511, 511), (511, 511)),
    "8191x4095x1023": Case((8191, 1023), (1023, 4095)),
    "2047x2049x4097": Case((2047, 4097), (4097, 2049)),
    "7x4097x4097": Case((7, 4097), (4097, 4097)),
    "129x4097x4097": Case((129, 4097), (4097, 4097)),
    "4 of 1023x1023x1023": Case((4, 1023, 1023), (4, 1023, 1023)),
    "64 of 255x255x65": Case((64, 255, 65), (64, 65, 255)),
    "every second column: 4096x4096x4096": Case((4096, 8192), (4096, 4096), lambda x: x[:, ::2]),
    "one element in: 4096x4096x4096": Case((4097, 4097), (4097, 4097), lambda x: x[1:, 1:], lambda x: x[1:, 1:]),
    "rows 4 bytes off: 2048x2048x4096": Case((2048, 4098), (4096, 2048), lambda x: x[:, :4096]),
    "rows 8 bytes off: 2048x2048x4096": Case((2048, 4100), (4096, 2048), lambda x: x[:, :4096]),
    "k of 4098: 2048x2048x4098": Case((2048, 4098), (4098, 2048)),
    "k of 4100: 2048x2048x4100": Case((2048, 4100), (4100, 2048)),
}


def draw(case: Case, rng: Any) -> tuple[Any, Any]:
    cupy = driver.cupy()
    a, b = (
        rng.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16) for shape in (case.a_shape, case.b_shape)
    )
    return case.a_view(a), case.b_view(b)


def problem_of(case: Case) -> Problem:
    """The product by its extents alone, as if it were read by rows."""
    a, b = (
        view(np.empty(shape, np.uint8)) for shape, view in ((case.a_shape, case.a_view), (case.b_shape, case.b_view))
    )
    return Problem(a.shape[-2], b.shape[-1], a.shape[-1], math.prod(a.shape[:-2]))
