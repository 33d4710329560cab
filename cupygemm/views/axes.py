"""Neighbouring axes of an array as one: what makes rows of a stack of matrices, and a stack of its other axes."""

from __future__ import annotations

from collections.abc import Sequence


def one_step(extents: Sequence[int], steps: Sequence[int]) -> int | None:
    """The step of some axes as one, or None: each must go on where the one after it ends.

    Args:
        extents: of the axes, the last one the fastest; those of one element are passed over.
        steps: theirs, in bytes.

    Returns:
        the step of the fastest axis of more than one element; 0 where there is none.
    """
    count, step = 1, 0
    for size, each in zip(reversed(extents), reversed(steps), strict=True):
        if size == 1:
            continue
        if count > 1 and each != count * step:
            return None
        step = each if count == 1 else step
        count *= size
    return step
