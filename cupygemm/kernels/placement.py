"""Whether arrays lie in memory as a kernel can read and write them: by shapes, strides and addresses alone."""

from __future__ import annotations

from typing import Any

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.errors import ProblemError
from cupygemm.kernels.tensor_map import Matrix


def check_array(name: str, array: Any, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype.name != dtype:
        raise ProblemError(
            f"{name} is {array.dtype.name}{list(array.shape)}: the plan was made for {dtype}{list(shape)}"
        )


def check_rows(name: str, array: Any, shape: tuple[int, ...], dtype: str) -> None:
    check_array(name, array, shape, dtype)
    reason = unstorable_reason(array)
    if reason is not None:
        raise ProblemError(f"{name}: {reason}")


def matrix_of(name: str, array: Any, shape: tuple[int, ...], dtype: str, transposed: bool) -> Matrix:
    """The rows of `array`, or of its transpose, that TMA copies."""
    check_array(name, array, shape, dtype)
    reason = misaligned_reason(array, transposed)
    if reason is not None:
        raise ProblemError(f"{name}: {reason}")
    rows, columns = shape[:-3:-1] if transposed else shape[-2:]
    row_stride = array.strides[-1 if transposed else -2]
    if len(shape) == 2:
        return Matrix(array.data.ptr, rows, columns, row_stride, dtype)
    # A stack of one and the same matrix is that matrix.
    depth_stride = array.strides[0]
    return Matrix(array.data.ptr, rows, columns, row_stride, dtype, shape[0] if depth_stride else 1, depth_stride)


def unstorable_reason(array: Any) -> str | None:
    """Why a kernel cannot store the rows of this array from registers, or None when it can.

    Args:
        array: a matrix, or a stack of them.
    """
    (rows, columns), (row, column), itemsize = array.shape[-2:], array.strides[-2:], array.dtype.itemsize
    if columns > 1 and column != itemsize:
        return f"its rows are not contiguous, elements of a row are {column} bytes apart"
    if rows > 1 and (row < columns * itemsize or row % itemsize):
        return f"its rows are {row} bytes apart: they overlap, run backwards or start between elements"
    if len(array.shape) > 2 and array.shape[0] > 1:
        step, width = array.strides[0], columns * itemsize
        # One after the other, or side by side in rows that hold one of each, as attention heads lie.
        apart = step >= (rows - 1) * row + width or (step >= width and row >= (array.shape[0] - 1) * step + width)
        if not apart or step % itemsize:
            return f"its matrices are {step} bytes apart: they overlap, run backwards or start between elements"
    return None


def misaligned_reason(array: Any, transposed: bool) -> str | None:
    """Why TMA cannot copy this matrix or stack of matrices (or their transposes), or None when it can."""
    outer, inner = (-1, -2) if transposed else (-2, -1)
    itemsize = array.dtype.itemsize
    if array.shape[inner] > 1 and array.strides[inner] != itemsize:
        return f"axis {len(array.shape) + inner} has a stride of {array.strides[inner]} bytes: it must be contiguous"
    stride = array.strides[outer]
    if array.shape[outer] > 1 and (stride <= 0 or stride % TMA_ALIGNMENT or stride >= 2**40):
        return f"rows are {stride} bytes apart: TMA needs a positive multiple of {TMA_ALIGNMENT}"
    if len(array.shape) > 2 and array.shape[0] > 1:
        step = array.strides[0]
        if step < 0 or step % TMA_ALIGNMENT or step >= 2**40:
            return f"matrices are {step} bytes apart: TMA needs a multiple of {TMA_ALIGNMENT} that is not negative"
    if array.data.ptr % TMA_ALIGNMENT:
        return f"the data start at an address that is no multiple of {TMA_ALIGNMENT}"
    return None
