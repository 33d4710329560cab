"""How a product of arrays of any number of axes is posed as one of two matrices, without a copy.

Goes by shapes, strides and addresses alone; nothing is launched or allocated.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cupygemm.views.axes import one_step


class Posed(NamedTuple):
    """A product as matrices.

    Attributes:
        a: [m, k], a view of the left operand.
        b: [k, n], a view of the right one.
        shape: of the result as NumPy has it: m·n elements, in the order of [m, n].
        has_column_axis: whether the last axis of `shape` is n; a right operand of one axis leaves none.
    """

    a: Any
    b: Any
    shape: tuple[int, ...]
    has_column_axis: bool

    @property
    def product_shape(self) -> tuple[int, int]:
        """[m, n]."""
        return (self.a.shape[0], self.b.shape[1])

    def matrix_of(self, out: Any) -> Any:
        """An array of `shape` as a view of [m, n]; None where its rows are not equally far apart.

        Args:
            out: of `shape`.
        """
        view = out if self.has_column_axis else out[..., None]
        return _rows_of(view if view.ndim > 1 else view[None])


def pose(a: Any, b: Any) -> Posed | None:
    """The product of two arrays as one of two matrices; None where it is none, or needs a copy to be one.

    A single axis becomes the row of the left operand, or the column of the right one. A stack goes with one matrix on
    its right: (…, m, k) · (k, n) is (…·m, k) · (k, n) where the rows of all its matrices are equally far apart. What
    makes no product at all (an operand without axes, sizes that differ) is None too.

    Args:
        a, b: CuPy arrays, or NumPy's.
    """
    if a.ndim == 0 or b.ndim == 0:
        return None
    if a.ndim == b.ndim == 2:
        return Posed(a, b, (a.shape[0], b.shape[1]), True) if a.shape[1] == b.shape[0] else None
    left = a if a.ndim > 1 else a[None]
    right = b if b.ndim > 1 else b[:, None]
    stack, ones = left.shape[:-2], right.shape[:-2]
    if left.shape[-1] != right.shape[-2] or any(size != 1 for size in ones):
        return None
    rows = _rows_of(left)
    if rows is None:
        return None
    # What broadcasting the axes before the matrices makes of them, where the right ones are all 1.
    shape = (*ones[: max(len(ones) - len(stack), 0)], *stack)
    shape += a.shape[-2:-1] + b.shape[-1:] * (b.ndim > 1)
    return Posed(rows, right[(0,) * len(ones)] if ones else right, shape, b.ndim > 1)


def _rows_of(stack: Any) -> Any:
    """[…, m, n] as a view of [… · m, n], or None where its rows are not equally far apart."""
    if stack.ndim == 2:
        return stack
    extents, steps = stack.shape[:-1], stack.strides[:-1]
    if 0 in extents or one_step(extents, steps) is None:
        return None
    view = stack.reshape(math.prod(extents), stack.shape[-1])
    return view if view.data.ptr == stack.data.ptr else None


def overlap(x: Any, y: Any) -> bool:
    """Whether two arrays may share memory: whether the addresses between which they lie do.

    By addresses, and not by the allocation that an array belongs to: arrays that came in through DLPack have each their
    own, even where they are views of one tensor.
    """
    (x_start, x_end), (y_start, y_end) = bounds(x), bounds(y)
    return x_start < y_end and y_start < x_end


def bounds(array: Any) -> tuple[int, int]:
    """The first address of an array and the one after its last; nowhere if it has no elements."""
    if array.size == 0:
        return 0, 0
    start = end = array.data.ptr
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride > 0:
            end += (size - 1) * stride
        else:
            start += (size - 1) * stride
    return start, end + array.dtype.itemsize
