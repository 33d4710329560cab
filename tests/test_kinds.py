"""What a plan asks of arrays: whoever passes lies as the array that it was made with, of whatever kind both are.

On arrays of the fake GPU and, where CuPy is installed, on CuPy's over host memory, whose flags are CuPy's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cupygemm.measuring.verify import numpy_dtype
from cupygemm.runtime.planned import _Kind, _layout
from tests.viewable_arrays import KINDS, Make, strided


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def views(make: Make) -> Iterator[Any]:
    """Arrays of few shapes and many layouts, so that most have a shape in common with others."""
    for shape in ((4, 4), (2, 8), (8, 2), (16,), (1, 16), (16, 1), (2, 2, 4), (1, 4, 4), (4, 1, 4), (4, 4, 1), (1, 1)):
        array = make(shape)
        yield from (array, array.T, array[::-1], array[..., ::-1], array.view(numpy_dtype("bfloat16")))
        yield from (array.swapaxes(0, -1), array[..., None], array[None], array.reshape(-1), array.view(np.int16))
    wide = make((16, 16))
    yield from (wide[:4, :4], wide[::4, :4], wide[:4, ::4], wide[::4, ::4], wide[3:7, 5:9], wide[:4, :4].T)
    yield from (wide[:4, 0:1], wide[0:1, :4], wide[:2, :8], wide[:8, :2], wide[:, 0], wide[0], wide[:1, :1])
    flat = make((64,))
    for strides in itertools.product((-2, 0, 2, 4, 8, 16), repeat=2):
        yield strided(flat[32:], (4, 4), strides)
        yield strided(flat[32:], (1, 4), strides)
        yield strided(flat[32:], (4, 1), strides)
    changed = make((4, 4))
    changed.shape = (2, 8)  # in place
    yield changed
    changed = make((4, 4))
    changed.shape = (4, 2, 2)
    yield changed
    yield make((4, 4)).reshape(2, 8).reshape(4, 4)


def test_what_passes_lies_alike(make: Make) -> None:
    arrays = list(views(make))
    kinds = [(_Kind(array, type(array)), _layout(array)) for array in arrays]
    passed = 0
    for (kind, layout), array in itertools.product(kinds, arrays):
        if kind.has(array):
            passed += 1
            assert _layout(array) == layout
    assert passed > 2 * len(arrays)


def test_an_array_passes_its_own_kind_and_others_like_it_do(make: Make) -> None:
    for array in views(make):
        assert _Kind(array, type(array)).has(array)
    for shape in ((4, 4), (3, 5), (7,), (2, 3, 4)):
        for turn in (lambda x: x, lambda x: x.T, lambda x: x[..., ::2]):
            assert _Kind(turn(make(shape)), type(make(shape))).has(turn(make(shape)))


def test_what_changes_in_place_does_not_pass_any_more(make: Make) -> None:
    array = make((4, 6))
    kind = _Kind(array, type(array))
    for shape in ((6, 4), (24,), (4, 6, 1), (1, 4, 6), (2, 2, 6)):
        array.shape = shape
        assert not kind.has(array)
        array.shape = (4, 6)
        assert kind.has(array)


def test_no_array_is_a_kind_of_its_own(make: Make) -> None:
    array = make((4, 6))
    kind, none = _Kind(array, type(array)), _Kind(None, type(array))
    assert (kind.has(None), none.has(None), none.has(array)) == (False, True, False)
    for other in ([[1.0]], 1.0, "a", np.zeros((4, 6), np.float16)):
        assert not kind.has(other)
        assert not none.has(other)
