"""Products of stacks of matrices as one launch: which arrays make one, without a copy.

Like posing.py it goes by shapes, strides and addresses alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Stack(NamedTuple):
    """A stack of matrices, [batch, rows, columns], as far as a plan looks at an array; all may be the same one.

    Or one matrix, [rows, columns]. CuPy's own views of such a kind take longer to make than a launch takes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    data: Any
    device: Any

    @property
    def ndim(self) -> int:
        """Axes: three, or two."""
        return len(self.shape)


class PosedStack(NamedTuple):
    """A product as one of two stacks.

    Attributes:
        a: [batch, m, k].
        b: [batch, k, n].
        shape: of the result as NumPy has it: batch·m·n elements, in the order of [batch, m, n].
        has_row_axis: whether the last axis of `shape` but n is m; a left operand of one axis leaves none.
        has_column_axis: whether the last axis of `shape` is n; a right operand of one axis leaves none.
    """

    a: Stack
    b: Stack
    shape: tuple[int, ...]
    has_row_axis: bool
    has_column_axis: bool

    @property
    def product_shape(self) -> tuple[int, int, int]:
        """[batch, m, n]."""
        return (self.a.shape[0], self.a.shape[1], self.b.shape[2])

    def matrix_of(self, out: Any) -> Stack | None:
        """An array of `shape` as a stack; None where its matrices are not equally far apart."""
        shape, strides = out.shape, out.strides
        if not self.has_column_axis:
            shape, strides = (*shape, 1), (*strides, out.dtype.itemsize)
        if not self.has_row_axis:
            shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], 0, strides[-1])
        return _stacked(out, shape[:-2], strides[:-2], shape[-2:], strides[-2:])


def pose_stack(a: Any, b: Any) -> PosedStack | None:
    """The product of two arrays as one of two stacks, each broadcast to the other; None where it is none.

    A single axis becomes the row of each left matrix, or the column of each right one. None too where the axes before
    the last two are no single axis of equal steps once they are broadcast: (1, 5, m, k) by (3, 1, k, n), for one.

    Args:
        a, b: CuPy arrays, or NumPy's with `data.ptr`. Without one of more than two axes there is no stack.
    """
    if a.ndim == 0 or b.ndim == 0 or max(a.ndim, b.ndim) < 3:
        return None
    a_shape, a_strides = (a.shape, a.strides) if a.ndim > 1 else ((1, *a.shape), (0, *a.strides))
    b_shape, b_strides = (b.shape, b.strides) if b.ndim > 1 else ((*b.shape, 1), (*b.strides, b.dtype.itemsize))
    if a_shape[-1] != b_shape[-2]:
        return None
    axes = max(len(a_shape), len(b_shape)) - 2
    before_a, before_b = ((1,) * (axes + 2 - len(s)) + s[:-2] for s in (a_shape, b_shape))
    if any(x != y and 1 not in (x, y) for x, y in zip(before_a, before_b, strict=True)):
        return None
    batch = tuple(y if x == 1 else x for x, y in zip(before_a, before_b, strict=True))
    left = _stacked(a, batch, _broadcast(before_a, a_strides), a_shape[-2:], a_strides[-2:])
    right = _stacked(b, batch, _broadcast(before_b, b_strides), b_shape[-2:], b_strides[-2:])
    if left is None or right is None:
        return None
    shape = (*batch, *a_shape[-2:-1] * (a.ndim > 1), *b_shape[-1:] * (b.ndim > 1))
    return PosedStack(left, right, shape, a.ndim > 1, b.ndim > 1)


def _broadcast(before: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of the axes before the matrices, 0 for those of one element and those that are not there."""
    own = strides[:-2]
    padded = (0,) * (len(before) - len(own)) + tuple(own)
    return tuple(0 if size == 1 else stride for size, stride in zip(before, padded, strict=True))


def _stacked(
    array: Any, batch: Sequence[int], steps: Sequence[int], matrix: Sequence[int], strides: Sequence[int]
) -> Stack | None:
    """The axes before the matrices as one, or None: each must go on where the one after it ends."""
    count, step = 1, 0
    for size, each in zip(reversed(batch), reversed(steps), strict=True):
        if size == 1:
            continue
        if count > 1 and each != count * step:
            return None
        step = each if count == 1 else step
        count *= size
    (rows, columns), (row, column) = matrix, strides
    return Stack((math.prod(batch), rows, columns), (step, row, column), array.dtype, array.data, array.device)
