"""What a call must give: the result in float64, and how far from it an own kernel, or CuPy, may be.

An own kernel is held to the bounds of `verify`, which an accumulator of 16 bits cannot meet. CuPy promises less: cuBLAS
may round partial sums to the operands' dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cupygemm.dtypes import DTYPES
from cupygemm.measuring import verify
from cupygemm.measuring.verify import EPILOGUE_TOLERANCE, SLOPES, activated, element_tolerance, frobenius_tolerance
from tests.fuzzing.arena import library
from tests.fuzzing.cases import Case, numpy_dtype_of

SIXTEEN = ("float16", "bfloat16")
ROUNDING = {"float64": (2.0**-53, 2.0**-1022), "complex128": (2.0**-53, 2.0**-1022), "complex64": (2.0**-23, 2.0**-126)}
"""Unit roundoff and smallest absolute error of what `DTYPES` does not have."""


class Expected(NamedTuple):
    """The right result, and what may be between it and another.

    Attributes:
        product: float64 or complex128, of the result's shape.
        bound: largest |result - product|, element by element.
        norm: largest Frobenius norm of the difference, as an array of no axes; None where the bound is all there is.
    """

    product: Any
    bound: Any
    norm: Any = None


def expected(case: Case, values: Mapping[str, Any], own: bool) -> Expected:
    """What the values of a call come to.

    Args:
        values: by name: dense, with 1 along axes that are broadcast.
        own: whether an own kernel is to run.
    """
    promoted = numpy_dtype_of(case.promoted_dtype)
    if promoted.kind in "iu":
        return _integral(case, values, promoted)
    wide = np.complex128 if promoted.kind == "c" else np.float64
    a, b = _operands(case, values, wide)
    xp = library(a)
    product, magnitude = xp.matmul(a, b), xp.matmul(abs(a), abs(b))
    off = _accumulated(case, own) * magnitude
    if not own:
        off = off + _rounded_on_the_way(case) * (abs(product) + 2 * magnitude)
    added, slope = magnitude, 1.0
    if case.is_fused:
        product, added, off, slope = _fused(case, values, product, magnitude, off)
    roundoff, tiny = _rounding(case.natural_dtype)
    # What is copied to an `out` of another dtype is rounded twice.
    cast, smallest = (0.0, 0.0) if case.result_dtype == case.natural_dtype else _rounding(case.result_dtype)
    bound = (roundoff + cast) * abs(product) + off + tiny + smallest
    if not own:
        # Of sums of nothing but subnormal addends each is off by as much.
        return Expected(product, bound + (case.k + 1) * tiny * slope)
    return Expected(product, bound, _norm_allowed(case, product, added, cast))


def _integral(case: Case, values: Mapping[str, Any], dtype: np.dtype[Any]) -> Expected:
    """Exact, and wrapped as integers wrap."""
    a, b = _operands(case, values, np.int64)
    product = library(a).matmul(a, b).astype(dtype).astype(np.float64)
    return Expected(product, 0.0 * product)


def _operands(case: Case, values: Mapping[str, Any], wide: Any) -> tuple[Any, Any]:
    """Both in a dtype that holds all of them, broadcast to their shapes."""
    xp = library(values["a"])
    a = xp.broadcast_to(values["a"].astype(wide), case.a.shape)
    if case.b is None:
        return a, a.swapaxes(-1, -2)
    return a, xp.broadcast_to(values["b"].astype(wide), case.b.shape)


def _accumulated(case: Case, own: bool) -> float:
    """The largest error of a sum, relative to the sum of magnitudes."""
    name = case.promoted_dtype
    if name in SIXTEEN:
        return element_tolerance(case.k, DTYPES[name].mma_k)
    factor = 4.0 if name.startswith("complex") else 1.0
    return factor * (case.k + 16) * 2.0 * _rounding("float64" if name in ("float64", "complex128") else "float32")[0]


def _rounded_on_the_way(case: Case) -> float:
    """Unit roundoff of what CuPy rounds a product and its parts to before anything else."""
    name = case.promoted_dtype
    if name not in SIXTEEN or case.natural_dtype == "float32":
        return 0.0
    return _rounding(name)[0]


def _rounding(dtype: str) -> tuple[float, float]:
    found = DTYPES.get(dtype)
    return ROUNDING[dtype] if found is None else (found.unit_roundoff, found.tiny)


def _fused(
    case: Case, values: Mapping[str, Any], product: Any, magnitude: Any, off: Any
) -> tuple[Any, Any, Any, float]:
    """The result, what is added up for it, how far off it may be before it is rounded, and the activation's slope."""
    xp = library(product)
    result, added = case.alpha * product, abs(case.alpha) * magnitude
    for name, factor in (("bias", 1.0), ("residual", case.beta)):
        array = getattr(case, name)
        if array is not None:
            term = factor * xp.broadcast_to(values[name].astype(np.float64), array.shape)
            result, added = result + term, added + abs(term)
    activation = case.activation or "none"
    slope = SLOPES[activation]
    wide = "float64" in (case.promoted_dtype, case.natural_dtype)
    tolerance = 2.0**-45 if wide else EPILOGUE_TOLERANCE
    off = slope * (abs(case.alpha) * off + tolerance * added)
    return activated(activation, result, verify._erf(result)), slope * added, off, slope


def _norm_allowed(case: Case, product: Any, added: Any, cast: float) -> Any:
    """By the triangle inequality: what rounding this very product costs, plus twice what fp32 accumulation adds."""
    xp = library(product)
    rounded = _norm(product.astype(numpy_dtype_of(case.natural_dtype)).astype(np.float64) - product)
    norm = _norm(product)
    # Where a product cancels, errors are relative to what was added up, which is never less than this.
    summed = xp.maximum(norm, _norm(added) / math.sqrt(max(case.k, 1)))
    tiny = _rounding(case.natural_dtype)[1] * math.sqrt(product.size)
    return rounded + 2 * frobenius_tolerance(case.k) * summed + cast * norm + tiny


def _norm(array: Any) -> Any:
    return library(array).sqrt((array * array).sum())
