"""How an array lies in memory: order of its axes, steps, gaps and where it starts; and the strides that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Storage:
    """A view into a buffer, as slicing, transposing and broadcasting make them.

    Attributes:
        order: the array's axes by how they lie in memory, the outermost first; () for C order.
        steps: of each axis: 1, 2 for every other element, -1 for backwards, 0 for one that is broadcast; () for all 1.
        gap: elements left behind each run of the innermost axis.
        spread: runs left behind each run of the axis around it.
        offset: elements before the first in memory.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    gap: int = 0
    spread: int = 0
    offset: int = 0


class Layout(NamedTuple):
    """Where the elements of an array are, in elements of its dtype.

    Attributes:
        strides: from one index of an axis to the next.
        first: where the element at index 0 of all axes is.
        extent: of the smallest buffer that holds it, its gaps and what is before it.
    """

    strides: tuple[int, ...]
    first: int
    extent: int


def layout(shape: Sequence[int], storage: Storage) -> Layout:
    """The strides of an array of a shape that is stored so."""
    order = storage.order or tuple(range(len(shape)))
    steps = storage.steps or (1,) * len(shape)
    if sorted(order) != list(range(len(shape))) or len(steps) != len(shape):
        raise ValueError(f"{storage} is not for an array of {len(shape)} axes")
    strides, first, unit = [0] * len(shape), storage.offset, 1
    for place, axis in enumerate(reversed(order)):
        size, step = shape[axis], steps[axis]
        strides[axis] = step * unit
        reach = abs(step) * max(size - 1, 0)
        first += reach * unit if step < 0 else 0
        unit *= reach + 1 + (storage.gap, storage.spread)[place] if place < 2 else reach + 1
    return Layout(tuple(strides), first, storage.offset + unit)


def stored_shape(shape: Sequence[int], storage: Storage) -> tuple[int, ...]:
    """The shape of the values that are stored: 1 along axes that are broadcast."""
    steps = storage.steps or (1,) * len(shape)
    return tuple(min(size, 1) if step == 0 else size for size, step in zip(shape, steps, strict=True))
