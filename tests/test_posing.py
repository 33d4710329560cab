"""Arrays of any number of axes as products of two matrices: which are, without a copy; and which share memory.

On arrays of the fake GPU and, where CuPy is installed, on CuPy's over host memory, which need no GPU to be viewed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cupygemm.views.posing import overlap, pose
from tests.viewable_arrays import KINDS, Make, on_fake_gpu


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


MATRICES = {
    # a, b: rows and columns of the matrices, shape of the result
    ((3, 2), (2, 4)): ((3, 2), (2, 4), (3, 4)),
    ((2,), (2, 4)): ((1, 2), (2, 4), (4,)),
    ((3, 2), (2,)): ((3, 2), (2, 1), (3,)),
    ((2,), (2,)): ((1, 2), (2, 1), ()),
    ((5, 3, 2), (2, 4)): ((15, 2), (2, 4), (5, 3, 4)),
    ((6, 5, 3, 2), (2, 4)): ((90, 2), (2, 4), (6, 5, 3, 4)),
    ((5, 3, 2), (2,)): ((15, 2), (2, 1), (5, 3)),
    ((5, 3, 2), (1, 2, 4)): ((15, 2), (2, 4), (5, 3, 4)),
    ((5, 3, 2), (1, 1, 2, 4)): ((15, 2), (2, 4), (1, 5, 3, 4)),
    ((3, 2), (1, 1, 2, 4)): ((3, 2), (2, 4), (1, 1, 3, 4)),
    ((2,), (1, 2, 4)): ((1, 2), (2, 4), (1, 4)),
    ((1, 3, 2), (2, 4)): ((3, 2), (2, 4), (1, 3, 4)),
    ((5, 1, 2), (2, 4)): ((5, 2), (2, 4), (5, 1, 4)),
    ((3, 0), (0, 4)): ((3, 0), (0, 4), (3, 4)),
}


@pytest.mark.parametrize("shapes", MATRICES)
def test_products_that_are_one_of_two_matrices(make: Make, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = map(make, shapes)
    a_shape, b_shape, shape = MATRICES[shapes]
    posed = pose(a, b)
    assert posed is not None
    assert (posed.a.shape, posed.b.shape, posed.shape) == (a_shape, b_shape, shape)
    assert shape == np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    assert (posed.a.data.ptr, posed.b.data.ptr) == (a.data.ptr, b.data.ptr)
    out = make(shape)
    target = posed.matrix_of(out)
    assert target.shape == (a_shape[0], b_shape[1])
    assert target.data.ptr == out.data.ptr


@pytest.mark.parametrize(
    "shapes",
    [
        ((), (3, 2)),
        ((3, 2), ()),
        ((), ()),
        ((3, 2), (1,)),
        ((3,), (2,)),
        ((3, 2), (3, 2)),
        ((5, 3, 2), (4, 4)),
        ((5, 3, 2), (5, 2, 4)),
        ((3, 2), (5, 2, 4)),
        ((2,), (5, 2, 4)),
        ((1, 3, 2), (5, 2, 4)),
        ((0, 3, 2), (2, 4)),
        ((5, 3, 2), (0, 2, 4)),
    ],
)
def test_what_is_no_product_or_several_is_not_posed(
    make: Make, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert pose(*map(make, shapes)) is None


STACKS: dict[str, tuple[Callable[[Make], Any], tuple[int, int] | None]] = {
    "part of wider rows": (lambda make: make((5, 3, 8))[..., :2], (16, 2)),
    "part of each matrix": (lambda make: make((5, 4, 2))[:, :3], None),
    "every other matrix of one row": (lambda make: make((10, 1, 2))[::2], (8, 2)),
    "every other matrix": (lambda make: make((10, 3, 2))[::2], None),
    "every other row of all": (lambda make: make((5, 6, 2))[:, ::2], (8, 2)),
    "matrices stored transposed": (lambda make: make((5, 2, 3)).swapaxes(1, 2), None),
    "one matrix stored transposed": (lambda make: make((1, 2, 3)).swapaxes(1, 2), (2, 6)),
    "axes changed": (lambda make: make((3, 5, 2)).swapaxes(0, 1), None),
    "upside down": (lambda make: make((5, 3, 2))[::-1, ::-1], (-4, 2)),
    "matrices upside down": (lambda make: make((5, 3, 2))[::-1], None),
    "columns backwards": (lambda make: make((5, 3, 2))[..., ::-1], (4, -2)),
}


@pytest.mark.parametrize("case", STACKS)
def test_rows_of_a_stack_must_be_equally_far_apart(make: Make, case: str) -> None:
    view, strides = STACKS[case]
    stack = view(make)
    posed = pose(stack, make((2, 4)))
    if strides is None:
        assert posed is None
        return
    assert posed is not None
    assert (posed.a.strides, posed.a.data.ptr) == (strides, stack.data.ptr)


def test_rows_in_one_place_are_no_matrix() -> None:
    rows = np.lib.stride_tricks.as_strided(on_fake_gpu((3, 2)), (5, 3, 2), (0, 4, 2), subok=True)
    assert pose(rows, on_fake_gpu((2, 4))) is None


def test_out_need_not_be_contiguous_to_be_a_matrix(make: Make) -> None:
    posed = pose(make((5, 3, 2)), make((2, 4)))
    assert posed is not None
    wide = make((5, 3, 8))[..., 2:6]
    assert (posed.matrix_of(wide).strides, posed.matrix_of(wide).data.ptr) == ((16, 2), wide.data.ptr)
    assert posed.matrix_of(make((5, 4, 4))[:, :3]) is None
    vector = pose(make((3, 2)), make((2,)))
    assert vector is not None
    assert vector.matrix_of(make((6,))[::2]).strides[0] == 4


def test_overlap_goes_by_addresses(make: Make) -> None:
    array = make((8, 8))
    cases = {
        "itself": (array, array, True),
        "its transpose": (array, array.T, True),
        "halves": (array[:4], array[4:], False),
        "halves with a row in common": (array[:5], array[4:], True),
        "the same half backwards": (array[:4], array[3::-1], True),
        "the other half backwards": (array[:4], array[:3:-1], False),
        "columns between each other": (array[:, ::2], array[:, 1::2], True),
        "neighbours in a row": (array[0, :4], array[0, 4:], False),
        "nothing": (array[:0], array, False),
        "another": (array, make((8, 8)), False),
        "no axes": (array[:1, :1].reshape(()), array, True),
    }
    for name, (x, y, wanted) in cases.items():
        assert overlap(x, y) is overlap(y, x) is wanted, name
