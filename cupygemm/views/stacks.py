"""Products of stacks of matrices as one launch: which arrays make one, without a copy.

Like posing.py it goes by shapes, strides and addresses alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cupygemm.views.axes import one_step


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


MOST_LAUNCHES = 64
"""Of a product whose stacks are no single axis of equal steps: a launch takes the host some microseconds."""


class Outer(NamedTuple):
    """Axes of the result over which a launch each is made: the rest of its stack is one axis of equal steps.

    Attributes:
        axes: which of the result's.
        extents: theirs.
        a_steps, b_steps: of the operands along them, in bytes; 0 where one is broadcast.
    """

    axes: tuple[int, ...]
    extents: tuple[int, ...]
    a_steps: tuple[int, ...]
    b_steps: tuple[int, ...]

    def offsets(self, *arrays: Any) -> list[tuple[int, ...]]:
        """For each launch where a, b and some arrays of the result's shape begin, in bytes from the first launch."""
        steps = (self.a_steps, self.b_steps, *(tuple(array.strides[axis] for axis in self.axes) for array in arrays))
        return [
            tuple(sum(i * step for i, step in zip(index, each, strict=True)) for each in steps)
            for index in itertools.product(*map(range, self.extents))
        ]


class Shifted(NamedTuple):
    """An address inside an array: what CuPy's arrays have as `data`."""

    ptr: int


class PosedStack(NamedTuple):
    """A product as one of two stacks, or as several of them.

    Attributes:
        a: [batch, m, k].
        b: [batch, k, n].
        shape: of the result as NumPy has it: batch·m·n elements, in the order of [batch, m, n].
        has_row_axis: whether the last axis of `shape` but n is m; a left operand of one axis leaves none.
        has_column_axis: whether the last axis of `shape` is n; a right operand of one axis leaves none.
        outer: where a and b are the first of several stacks, the axes that lead to the others; None otherwise.
    """

    a: Stack
    b: Stack
    shape: tuple[int, ...]
    has_row_axis: bool
    has_column_axis: bool
    outer: Outer | None = None

    @property
    def product_shape(self) -> tuple[int, int, int]:
        """[batch, m, n]."""
        return (self.a.shape[0], self.a.shape[1], self.b.shape[2])

    def matrix_of(self, out: Any) -> Stack | None:
        """An array of `shape` as a stack, or the first of several; None where its matrices step unequally."""
        shape, strides = out.shape, out.strides
        if self.outer is not None:
            if not out.flags.c_contiguous:
                return None  # stacks may lie on one another, or begin where TMA cannot store
            kept = [axis for axis in range(len(shape)) if axis not in self.outer.axes]
            shape, strides = tuple(shape[axis] for axis in kept), tuple(strides[axis] for axis in kept)
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
    given = _batched(a, b)
    if given is None:
        return None
    left = _stacked(a, given.batch, given.a_steps, given.a_matrix, given.a_strides)
    right = _stacked(b, given.batch, given.b_steps, given.b_matrix, given.b_strides)
    if left is None or right is None:
        return None
    return PosedStack(left, right, given.shape, a.ndim > 1, b.ndim > 1)


def pose_slices(a: Any, b: Any) -> PosedStack | None:
    """The product of two arrays as few products of stacks, where it is not one; None where that takes too many.

    The axes that stay in a stack are those neighbours that together are the longest axis of equal steps, in both
    operands; each combination of the others is a launch.

    Args:
        a, b: as of `pose_stack`.
    """
    given = _batched(a, b)
    if given is None:
        return None
    runs = (
        range(first, end)
        for first in range(len(given.batch))
        for end in range(first + 1, len(given.batch) + 1)
        if one_step(given.batch[first:end], given.a_steps[first:end]) is not None
        and one_step(given.batch[first:end], given.b_steps[first:end]) is not None
    )
    inner = max(runs, key=lambda run: math.prod(given.batch[axis] for axis in run))
    axes = tuple(axis for axis, size in enumerate(given.batch) if axis not in inner and size != 1)
    # Of one element, and in the way between others: part of the stack.
    kept = [axis for axis in range(len(given.batch)) if axis not in axes]
    extents = tuple(given.batch[axis] for axis in axes)
    if not 1 < math.prod(extents) <= MOST_LAUNCHES:
        return None
    batch, a_steps, b_steps = ([each[axis] for axis in kept] for each in (given.batch, given.a_steps, given.b_steps))
    left = _stacked(a, batch, a_steps, given.a_matrix, given.a_strides)
    right = _stacked(b, batch, b_steps, given.b_matrix, given.b_strides)
    if left is None or right is None:
        return None
    steps = (tuple(each[axis] for axis in axes) for each in (given.a_steps, given.b_steps))
    return PosedStack(left, right, given.shape, a.ndim > 1, b.ndim > 1, Outer(axes, extents, *steps))


def shifted(array: Any, offset: int) -> Any:
    """A matrix or a stack of them that begins some bytes later, as far as a plan looks at it; None stays None."""
    if array is None:
        return None
    place = Shifted(array.data.ptr + offset)
    return Stack(array.shape, array.strides, array.dtype, place, array.device)


class _Batched(NamedTuple):
    """Two arrays as batches of matrices, broadcast: extents and steps before the matrices, and the matrices."""

    batch: tuple[int, ...]
    shape: tuple[int, ...]
    a_steps: tuple[int, ...]
    b_steps: tuple[int, ...]
    a_matrix: tuple[int, ...]
    b_matrix: tuple[int, ...]
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]


def _batched(a: Any, b: Any) -> _Batched | None:
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
    shape = (*batch, *a_shape[-2:-1] * (a.ndim > 1), *b_shape[-1:] * (b.ndim > 1))
    steps = _broadcast(before_a, a_strides), _broadcast(before_b, b_strides)
    return _Batched(batch, shape, *steps, a_shape[-2:], b_shape[-2:], a_strides[-2:], b_strides[-2:])


def _broadcast(before: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of the axes before the matrices, 0 for those of one element and those that are not there."""
    own = strides[:-2]
    padded = (0,) * (len(before) - len(own)) + tuple(own)
    return tuple(0 if size == 1 else stride for size, stride in zip(before, padded, strict=True))


def _stacked(
    array: Any, batch: Sequence[int], steps: Sequence[int], matrix: Sequence[int], strides: Sequence[int]
) -> Stack | None:
    """The axes before the matrices as one; None where they are none."""
    step = one_step(batch, steps)
    if step is None:
        return None
    (rows, columns), (row, column) = matrix, strides
    return Stack((math.prod(batch), rows, columns), (step, row, column), array.dtype, array.data, array.device)
