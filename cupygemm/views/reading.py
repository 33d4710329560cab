"""Which problem two arrays pose, and why no kernel of this package computes it: read off shapes, strides and dtypes."""

from __future__ import annotations

import math
from typing import Any

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import NONE
from cupygemm.kernels import driver
from cupygemm.kernels.placement import misaligned_reason, unstorable_reason
from cupygemm.problem import Problem
from cupygemm.views.stacks import Stack


def problem_of(
    a: Any, b: Any, out: Any, out_dtype: str | None = None, epilogue: str = NONE, layout: str | None = None
) -> Problem | str:
    """The problem that these arrays pose, or why no kernel of this package computes it.

    Args:
        a: [m, k], or [batch, m, k].
        b: [k, n], or [batch, k, n].
        out: [m, n] or [batch, m, n] to write into; None for a new array.
        out_dtype: of the result; None for the operands'.
        epilogue: as `Epilogue` writes it.
        layout: of copies of the operands that TMA can read, whatever lies where they do; None for their own.
    """
    ndarray = driver.cupy().ndarray
    if not isinstance(a, ndarray | Stack) or not isinstance(b, ndarray | Stack):
        return "an operand is not a CuPy array"
    if a.ndim != b.ndim or a.ndim not in (2, 3):
        return f"operands have {a.ndim} and {b.ndim} axes, and are no two matrices or stacks of equal steps"
    dtype = a.dtype.name
    if b.dtype.name != dtype or dtype not in OPERAND_DTYPES:
        return f"operands are {dtype} and {b.dtype.name}, own kernels take two of {' or '.join(OPERAND_DTYPES)}"
    (m, k), n, batch = a.shape[-2:], b.shape[-1], math.prod(a.shape[:-2])
    if b.shape[-2] != k or a.shape[:-2] != b.shape[:-2]:
        return f"shapes {a.shape} and {b.shape} do not match"
    if not (m and n and k and batch):
        return "an extent is zero"
    if a.device != b.device:
        return f"operands are on devices {a.device.id} and {b.device.id}"
    layout = layout or _layout_letter(a) + _layout_letter(b)
    if "?" in layout:
        name, array = ("a", a) if layout[0] == "?" else ("b", b)
        return f"TMA cannot copy {name}: {misaligned_reason(array, array.strides[-2] == array.dtype.itemsize)}"
    out_dtype = out_dtype or dtype
    reason = None if out is None else unfit_reason(out, a, (*a.shape[:-2], m, n), out_dtype)
    return reason or Problem(
        m, n, k, batch, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, layout=layout, epilogue=epilogue
    )


def unposed_reason(problem: Problem) -> str | None:
    """Why `matmul` never asks for this problem, or None when it does."""
    if problem.out_dtype not in RESULT_DTYPES:
        return f"own kernels give {' or '.join(RESULT_DTYPES)}, not {problem.out_dtype}"
    return None


def _layout_letter(array: Any) -> str:
    if misaligned_reason(array, False) is None:
        return "n"
    return "t" if misaligned_reason(array, True) is None else "?"


def unfit_reason(out: Any, a: Any, shape: tuple[int, ...], dtype: str) -> str | None:
    """Why an own kernel cannot write a product of this shape and dtype, on the device of `a`, into `out`."""
    if not isinstance(out, driver.cupy().ndarray | Stack) or out.shape != shape or out.dtype.name != dtype:
        return f"out is not a {dtype} array of shape {shape}"
    if out.device != a.device:
        return f"out is on device {out.device.id}, the operands on {a.device.id}"
    reason = unstorable_reason(out)
    if reason is None and shape[-1] * out.dtype.itemsize % TMA_ALIGNMENT == 0:
        reason = misaligned_reason(out, False)
    return None if reason is None else f"out cannot be stored to: {reason}"
