"""`Operands`, the arrays of one launch, and `Launch`, what takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Operands(NamedTuple):
    """What one launch reads, and where it writes: CuPy arrays, or NumPy's where nothing is launched.

    Attributes:
        a: [m, k] of the problem's a_dtype, stored as its layout says; [batch, m, k] where it has a batch.
        b: [k, n] of b_dtype, likewise.
        out: [m, n] of out_dtype, likewise, rows contiguous.
        bias: [n] or [m] of out_dtype, contiguous, as the problem's epilogue says; None without.
        residual: like `out`; None without.
        alpha, beta: factors of the product and of the residual.
    """

    a: Any
    b: Any
    out: Any
    bias: Any = None
    residual: Any = None
    alpha: float = 1.0
    beta: float = 1.0


Launch = Callable[[Operands], None]
"""Queues out = a · b, and what the epilogue adds, on CuPy's current stream: `Plan.launch`, for one. Does not wait."""
