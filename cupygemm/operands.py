"""`Operands`, the arrays of one launch, and `Launch`, what takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Operands(NamedTuple):
    """What one launch reads, and where it writes: CuPy arrays, or NumPy's where nothing is launched.

    Attributes:
        a: [m, k] of the problem's a_dtype, stored as its layout says.
        b: [k, n] of b_dtype, likewise.
        out: [m, n] of out_dtype, rows contiguous.
    """

    a: Any
    b: Any
    out: Any


Launch = Callable[[Operands], None]
"""Queues out = a · b on CuPy's current stream, without synchronising: `Plan.launch`, for one."""
