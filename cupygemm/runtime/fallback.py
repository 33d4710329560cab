"""CuPy's own matmul, for what no kernel of this package runs, whatever stands in its place by now."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.kernels import driver
from cupygemm.views.posing import Posed, overlap

_kept: list[Any] = []
"""CuPy's own matmul, from the first `patch` on."""


def cupy_matmul() -> Any:
    """CuPy's own matmul, also while `cupy.matmul` is ours."""
    return _kept[0] if _kept else driver.cupy().matmul


def keep() -> None:
    """What `cupy.matmul` is now, `cupy_matmul` stays.

    For good: what somebody puts in its place later may call ours, which must not fall back to it then.
    """
    _kept[:] = [cupy_matmul()]


def fall_back(a: Any, b: Any, out: Any, options: dict[str, Any], posed: Posed | None) -> Any:
    """The product by CuPy, with the results and errors that it has.

    Three things are done for it. Operands that `out` overlaps are copied: CuPy sees an overlap only within one
    allocation. A stack of 16-bit matrices times one matrix, with a result of their dtype, goes as one product of two
    matrices, where CuPy would widen float16 and refuse bfloat16. With dtype=float32 alone, 16-bit operands are widened
    before they are multiplied, as by NumPy: CuPy 14 rounds the product of two matrices to 16 bits and widens that.

    Args:
        a, b, out: as of `matmul`.
        options: as of `matmul`, without those at their defaults.
        posed: the same product as matrices, where it can be.

    Raises:
        TypeError: an operand is None, or something else that CuPy does not multiply.
    """
    if a is None or b is None:
        # CuPy 14 would crash the process.
        raise TypeError(f"matmul: operand {'a' if a is None else 'b'} is None, CuPy arrays are needed")
    matmul = cupy_matmul()
    if set(options) == {"dtype"} and wants_float32(a, b, options["dtype"]):
        a, b, options = a.astype("float32"), b.astype("float32"), {}
    elif posed is not None and max(a.ndim, b.ndim) > 2 and _sixteen_bits(a, b) and _is_usual(out, options, posed, a):
        product = matmul(posed.a, posed.b).reshape(posed.shape)
        if out is None:
            return product
        out[...] = product
        return out
    for each in out if isinstance(out, tuple) else (out,):
        a, b = (x.copy() if are_arrays(each, x) and overlap(each, x) else x for x in (a, b))
    return matmul(a, b, out=out, **options)


def needs_cublas(a: Any, b: Any) -> bool:
    """Whether CuPy would call cuBLAS, which it refuses to while a CUDA graph is being captured.

    Integers, sums of nothing, and one row times one column are kernels of its own.
    """
    if not are_arrays(a, b) or not a.size or not b.size:
        return False
    if max(a.ndim, b.ndim) <= 2 and min(a.ndim, b.ndim) > 0 and a.size == b.size == a.shape[-1]:
        return False
    if {a.dtype.kind, b.dtype.kind} - set("biu"):
        return True
    return np.promote_types(a.dtype, b.dtype).kind == "f"  # int64 and uint64


def wants_float32(a: Any, b: Any, dtype: Any) -> bool:
    """Whether 16-bit operands are to be multiplied in float32, and the product left in it."""
    return dtype_name(dtype) == "float32" and _sixteen_bits(a, b)


def dtype_name(dtype: Any) -> str | None:
    """The name of what NumPy takes for a dtype; None for everything else, None included."""
    try:
        return None if dtype is None else np.dtype(dtype).name
    except TypeError:
        return None


def are_arrays(*values: Any) -> bool:
    """Whether all of these are CuPy arrays."""
    return all(isinstance(value, driver.cupy().ndarray) for value in values)


def _is_usual(out: Any, options: dict[str, Any], posed: Posed, a: Any) -> bool:
    """Whether nothing is asked for but the product in the operands' dtype."""
    if options and (set(options) != {"dtype"} or dtype_name(options["dtype"]) != a.dtype.name):
        return False
    if out is None:
        return True
    return are_arrays(out) and (out.shape, out.dtype, out.device) == (posed.shape, a.dtype, a.device)


def _sixteen_bits(a: Any, b: Any) -> bool:
    return are_arrays(a, b) and a.dtype == b.dtype and a.dtype.name in OPERAND_DTYPES
