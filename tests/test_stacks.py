"""Products of stacks of matrices: which arrays make one without a copy, and how they are then seen.

On arrays of the fake GPU and, where CuPy is installed, on CuPy's over host memory, which need no GPU to be viewed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cupygemm.kernels.placement import misaligned_reason, unstorable_reason
from cupygemm.views.stacks import pose_stack
from tests.viewable_arrays import KINDS, Make, on_fake_gpu, strided

Shape = tuple[int, ...]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


STACKS: dict[tuple[Shape, Shape], tuple[Shape, Shape, Shape]] = {
    # a, b: both as stacks, shape of the result
    ((5, 3, 2), (5, 2, 4)): ((5, 3, 2), (5, 2, 4), (5, 3, 4)),
    ((3, 2), (5, 2, 4)): ((5, 3, 2), (5, 2, 4), (5, 3, 4)),
    ((5, 3, 2), (2, 4)): ((5, 3, 2), (5, 2, 4), (5, 3, 4)),
    ((1, 3, 2), (5, 2, 4)): ((5, 3, 2), (5, 2, 4), (5, 3, 4)),
    ((5, 3, 2), (1, 2, 4)): ((5, 3, 2), (5, 2, 4), (5, 3, 4)),
    ((6, 5, 3, 2), (6, 5, 2, 4)): ((30, 3, 2), (30, 2, 4), (6, 5, 3, 4)),
    ((6, 5, 3, 2), (2, 4)): ((30, 3, 2), (30, 2, 4), (6, 5, 3, 4)),
    ((1, 5, 3, 2), (5, 2, 4)): ((5, 3, 2), (5, 2, 4), (1, 5, 3, 4)),
    ((1, 5, 3, 2), (1, 5, 2, 4)): ((5, 3, 2), (5, 2, 4), (1, 5, 3, 4)),
    ((6, 1, 3, 2), (6, 1, 2, 4)): ((6, 3, 2), (6, 2, 4), (6, 1, 3, 4)),
    ((2,), (5, 2, 4)): ((5, 1, 2), (5, 2, 4), (5, 4)),
    ((2,), (6, 5, 2, 4)): ((30, 1, 2), (30, 2, 4), (6, 5, 4)),
    ((5, 3, 2), (2,)): ((5, 3, 2), (5, 2, 1), (5, 3)),
    ((5, 1, 2), (5, 2, 1)): ((5, 1, 2), (5, 2, 1), (5, 1, 1)),
    ((1, 3, 2), (1, 2, 4)): ((1, 3, 2), (1, 2, 4), (1, 3, 4)),
    # Without elements there is nothing to step over.
    ((0, 3, 2), (0, 2, 4)): ((0, 3, 2), (0, 2, 4), (0, 3, 4)),
    ((0, 3, 2), (1, 2, 4)): ((0, 3, 2), (0, 2, 4), (0, 3, 4)),
    ((5, 0, 2), (5, 2, 4)): ((5, 0, 2), (5, 2, 4), (5, 0, 4)),
    ((5, 3, 0), (5, 0, 4)): ((5, 3, 0), (5, 0, 4), (5, 3, 4)),
}


@pytest.mark.parametrize("shapes", STACKS)
def test_products_of_stacks(make: Make, shapes: tuple[Shape, Shape]) -> None:
    a, b = map(make, shapes)
    posed = pose_stack(a, b)
    assert posed is not None
    assert (posed.a.shape, posed.b.shape, posed.shape) == STACKS[shapes]
    assert posed.shape == np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    assert (posed.a.data.ptr, posed.b.data.ptr) == (a.data.ptr, b.data.ptr)
    for stack, array in ((posed.a, a), (posed.b, b)):
        assert (stack.dtype, stack.device, stack.ndim) == (array.dtype, array.device, 3)


@pytest.mark.parametrize("shapes", STACKS)
def test_the_result_is_seen_as_the_product(make: Make, shapes: tuple[Shape, Shape]) -> None:
    posed = pose_stack(*map(make, shapes))
    assert posed is not None
    out = make(posed.shape)
    target = posed.matrix_of(out)
    assert target is not None
    assert target.shape == posed.product_shape == (posed.a.shape[0], posed.a.shape[1], posed.b.shape[2])
    assert target.data.ptr == out.data.ptr
    assert out.size == 0 or unstorable_reason(target) is None


@pytest.mark.parametrize("shapes", [shapes for shapes in STACKS if 0 not in shapes[0]])
def test_strides_lead_to_the_same_elements(shapes: tuple[Shape, Shape]) -> None:
    a, b = map(on_fake_gpu, shapes)
    for array, primes in ((a, 7), (b, 11)):
        array[...] = (np.arange(array.size) % primes).reshape(array.shape)
    posed = pose_stack(a, b)
    assert posed is not None
    out = on_fake_gpu(posed.shape)
    target = posed.matrix_of(out)
    assert target is not None
    seen = [
        np.lib.stride_tricks.as_strided(array, stack.shape, stack.strides)
        for array, stack in ((a, posed.a), (b, posed.b), (out, target))
    ]
    seen[2][...] = np.matmul(seen[0].astype(np.float32), seen[1].astype(np.float32))
    np.testing.assert_array_equal(out, np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 2), (2, 4)),
        ((2,), (2, 4)),
        ((), (5, 2, 4)),
        ((5, 3, 2), ()),
        ((5, 3, 2), (5, 3, 4)),
        ((5, 3, 2), (4, 2, 4)),
        ((5, 3, 2), (0, 2, 4)),
        ((3,), (5, 2, 4)),
        ((5, 3, 2), (3,)),
        # Each is repeated along an axis of the other: no single step.
        ((5, 1, 3, 2), (1, 6, 2, 4)),
        ((6, 5, 3, 2), (5, 2, 4)),
        ((6, 5, 3, 2), (6, 1, 2, 4)),
    ],
)
def test_what_is_no_product_of_two_stacks(make: Make, shapes: tuple[Shape, Shape]) -> None:
    assert pose_stack(*map(make, shapes)) is None


VIEWS: dict[str, tuple[Callable[[Make], Any], Shape | None]] = {
    "part of wider rows": (lambda make: make((5, 3, 8))[..., :2], (48, 16, 2)),
    "part of each matrix": (lambda make: make((5, 4, 2))[:, :3], (16, 4, 2)),
    "every other matrix": (lambda make: make((10, 3, 2))[::2], (24, 4, 2)),
    "every other row": (lambda make: make((5, 6, 2))[:, ::2], (24, 8, 2)),
    "matrices stored transposed": (lambda make: make((5, 2, 3)).swapaxes(1, 2), (12, 2, 6)),
    "heads beside each other": (lambda make: make((3, 5, 2)).swapaxes(0, 1), (4, 20, 2)),
    "backwards": (lambda make: make((5, 3, 2))[::-1], (-12, 4, 2)),
    "all one matrix": (lambda make: strided(make((3, 2)), (5, 3, 2), (0, 4, 2)), (0, 4, 2)),
    "windows": (lambda make: strided(make((7, 2)), (5, 3, 2), (4, 4, 2)), (4, 4, 2)),
    "two axes in one step": (lambda make: make((5, 4, 3, 2))[:, :, :, :], (12, 4, 2)),
    "two axes, part of the second": (lambda make: make((5, 6, 3, 2))[:, :4], None),
    "two axes, every other of the first": (lambda make: make((10, 4, 3, 2))[::2], None),
    "two axes, every other of the second": (lambda make: make((5, 8, 3, 2))[:, ::2], (24, 4, 2)),
    "two axes exchanged": (lambda make: make((4, 5, 3, 2)).swapaxes(0, 1), None),
    "two axes, the first repeated": (lambda make: strided(make((4, 3, 2)), (5, 4, 3, 2), (0, 12, 4, 2)), None),
    "two axes, the second repeated": (lambda make: strided(make((5, 3, 2)), (5, 4, 3, 2), (12, 0, 4, 2)), None),
    "two axes repeated": (lambda make: strided(make((3, 2)), (5, 4, 3, 2), (0, 0, 4, 2)), (0, 4, 2)),
}


@pytest.mark.parametrize("case", VIEWS)
def test_views_that_are_stacks_of_equal_steps(make: Make, case: str) -> None:
    view, strides = VIEWS[case]
    left = view(make)
    right = make((*left.shape[:-2], 2, 4))
    for posed, stack in (
        (pose_stack(left, right), lambda posed: posed.a),
        (pose_stack(right.swapaxes(-1, -2), left.swapaxes(-1, -2)), lambda posed: posed.b),
    ):
        assert (posed is None) == (strides is None)
        if posed is not None and strides is not None:
            transposed = stack(posed) is posed.b
            assert stack(posed).strides == ((strides[0], strides[2], strides[1]) if transposed else strides)
            assert stack(posed).data.ptr == left.data.ptr


def test_what_tma_can_copy_of_a_stack(make: Make) -> None:
    matrices = make((6, 3, 8))
    cases = {
        "as allocated": (matrices, None),
        "one for all": (strided(matrices, (6, 3, 8), (0, 16, 2)), None),
        "windows of rows": (strided(matrices, (6, 3, 8), (16, 16, 2)), None),
        "backwards": (matrices[::-1], "matrices are -48 bytes apart"),
        "between": (strided(matrices, (6, 3, 8), (40, 16, 2)), "matrices are 40 bytes apart"),
        "a single one": (strided(matrices, (1, 3, 8), (40, 16, 2)), None),
        "rows apart": (make((6, 3, 7)), "rows are 14 bytes apart"),
        "elements apart": (make((6, 3, 16))[..., ::2], "axis 2 has a stride of 4 bytes"),
    }
    for name, (array, words) in cases.items():
        reason = misaligned_reason(array, False)
        assert (reason is None) if words is None else words in (reason or ""), name
    assert misaligned_reason(make((6, 8, 3)).swapaxes(1, 2), True) == "rows are 6 bytes apart: " + (
        "TMA needs a positive multiple of 16"
    )


def test_what_a_kernel_can_store_of_a_stack(make: Make) -> None:
    out = make((6, 3, 8))
    cases = {
        "as allocated": (out, None),
        "parts of matrices that lie apart": (out[::2, :2, :5], None),
        "one for all": (strided(out, (6, 3, 8), (0, 16, 2)), "matrices are 0 bytes apart"),
        "windows": (strided(out, (6, 3, 8), (16, 16, 2)), "matrices are 16 bytes apart"),
        "backwards": (out[::-1], "matrices are -48 bytes apart"),
        "beside each other": (make((3, 6, 8)).swapaxes(0, 1), None),
        "beside each other, too wide": (strided(out, (6, 3, 8), (16, 80, 2)), "matrices are 16 bytes apart"),
        "beside each other, too close": (strided(out, (6, 3, 8), (14, 96, 2)), "matrices are 14 bytes apart"),
        "between elements": (strided(out, (6, 3, 8), (49, 16, 2)), "matrices are 49 bytes apart"),
    }
    for name, (array, words) in cases.items():
        reason = unstorable_reason(array)
        assert (reason is None) if words is None else words in (reason or ""), name


def test_an_out_of_unequal_steps_is_none(make: Make) -> None:
    posed = pose_stack(make((5, 4, 3, 2)), make((5, 4, 2, 6)))
    assert posed is not None
    assert posed.matrix_of(make((5, 8, 3, 6))[:, :4]) is None
    apart = posed.matrix_of(make((5, 8, 3, 6))[:, ::2])
    assert apart is not None
    assert apart.strides == (72, 12, 2)
