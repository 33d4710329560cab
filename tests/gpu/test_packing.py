"""Copies of operands that TMA cannot read, bit for bit those of CuPy, and products of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from cupygemm.errors import CaptureError
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from cupygemm.views.copies import copy_of, needs_packing
from cupygemm.views.packing import Packing, packing_of
from cupygemm.views.stacks import pose_stack
from tests.gpu.protocol import LARGE, SMALL, Kernels

pytestmark = pytest.mark.gpu

GUARD = 4096


def bits(count: int, dtype: str, seed: int = 0) -> Any:
    """Elements of every kind, NaN among them."""
    cupy = driver.cupy()
    values = cupy.random.default_rng(seed).integers(0, 2**16, count, dtype=cupy.uint32)
    return values.astype(cupy.uint16).view(verify.numpy_dtype(dtype))


def tiled(count: int) -> Any:
    """As many float16 elements, or a few more: the same ones again and again, 4099 apart, which divides no 2^n."""
    cupy = driver.cupy()
    found = cupy.empty((-(-count // 4099), 4099), cupy.uint16)
    found[...] = bits(4099, "float16").view(cupy.uint16)
    return found.reshape(-1).view(cupy.float16)


def strided(flat: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A view that begins `offset` elements in, with strides in elements."""
    as_strided = driver.cupy().lib.stride_tricks.as_strided
    return as_strided(flat[offset:], shape, tuple(2 * stride for stride in strides))


def seen(operand: Any) -> Any:
    """A `Stack` of a copy as an array of its bits."""
    cupy, buffer = driver.cupy(), operand.data.buffer
    place = buffer.data + (operand.data.ptr - buffer.data.ptr)
    return cupy.ndarray(operand.shape, cupy.uint16, memptr=place, strides=operand.strides)


def as_bits(array: Any) -> Any:
    cupy = driver.cupy()
    return cupy.ascontiguousarray(array.view(cupy.uint16))


def guarded(size: int) -> tuple[Any, Any]:
    """A poisoned buffer between guards, and all of it."""
    whole = driver.cupy().full(size + 2 * GUARD, 0xFF, dtype="uint8")
    return whole[GUARD : GUARD + size], whole


def check(a: Any, b: Any) -> None:
    """Both as CuPy copies them, zeros behind the rows, and nothing beside the buffer."""
    cupy = driver.cupy()
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    buffer, whole = guarded(packed.buffer_bytes)
    before = as_bits(a), as_bits(b)
    for each, copy, original, kept in zip(packed(a, b, buffer), packed.copies, (a, b), before, strict=True):
        if copy is None:
            assert each is original
            continue
        assert cupy.array_equal(seen(each), kept), (copy, original.data.ptr % 16)
        place = each.data.ptr - buffer.data.ptr
        rows = buffer[place : place + copy.bytes].view(cupy.uint16).reshape(-1, copy.pitch)
        assert not bool(rows[:, copy.columns :].any()), copy
        assert cupy.array_equal(as_bits(original), kept)
    assert bool((whole[:GUARD] == 0xFF).all())
    assert bool((whole[GUARD + packed.buffer_bytes :] == 0xFF).all())


def shapes() -> Iterator[tuple[int, int]]:
    yield from itertools.product((1, 2, 5, 67), (1, 2, 7, 8, 9, 63, 64, 65, 255, 511, 515, 1031))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gap", range(9))
def test_rows_of_every_alignment(dtype: str, gap: int) -> None:
    """Rows that begin at every even address, at once and one after the other, also the shortest."""
    cupy, flat = driver.cupy(), bits(80_000, dtype)
    aligned = cupy.zeros((1031, 8), flat.dtype)
    copied = 0
    for (rows, columns), offset in itertools.product(shapes(), range(8)):
        a = strided(flat, offset, (rows, columns), (columns + gap, 1))
        if needs_packing(a) is not None:
            check(a, aligned[:columns])
            check(aligned[:rows].T, a)
            copied += 1
    assert copied > 200


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("element", [-3, -2, -1, 0, 2, 3, 4, 8, 17, 64])
def test_elements_apart(dtype: str, element: int) -> None:
    flat = bits(300_000, dtype)
    aligned = driver.cupy().zeros((1031, 8), flat.dtype)
    for (rows, columns), offset, gap in itertools.product(shapes(), (0, 3), (0, 1)):
        row = abs(element) * columns + gap
        if rows * row > 140_000:
            continue
        a = strided(flat, 140_000 + offset, (rows, columns), (row, element))
        if needs_packing(a) is not None:
            check(a, aligned[:columns])
            check(aligned[:rows].T, a)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("gap", [-1, 0, 1, 7])
def test_stacks(dtype: str, batch: int, gap: int) -> None:
    """By rows, by columns, backwards, with the axis of the stack last, and one matrix for all."""
    flat, far = bits(900_000, dtype), 450_000
    for rows, columns in ((1, 9), (3, 65), (64, 64), (65, 63), (67, 515)):
        step = rows * columns + gap
        strides = {
            "rows": (step, columns, 1),
            "columns": (step, 1, rows),
            "backwards": (-step, columns, 1),
            "last": (1, columns * batch, batch),
            "shared": (0, columns, 1),
            "apart": (2 * step + 2, 2 * columns, 2),
        }
        other = bits(batch * columns * 9, dtype, seed=1).reshape(batch, columns, 9)
        for each in strides.values():
            a = strided(flat, far, (batch, rows, columns), each)
            check(a, other)  # whose rows are 18 bytes apart, so that both are copied


def test_broadcast_rows_and_columns() -> None:
    cupy = driver.cupy()
    row, column = bits(65, "float16").reshape(1, 65), bits(65, "float16", seed=1).reshape(65, 1)
    check(cupy.broadcast_to(row, (33, 65)), cupy.broadcast_to(column, (65, 9)))


def test_a_matrix_and_its_transpose() -> None:
    x = bits(67 * 129, "float16").reshape(67, 129)
    check(x, x.T)
    check(x.T, x)
    packed = packing_of(x, x.T)
    assert isinstance(packed, Packing)
    left, right = packed(x, x.T)
    assert left.data.ptr == right.data.ptr


def test_offsets_beyond_32_bits() -> None:
    """Strides of 2^30 elements and more, so that the last rows and matrices lie beyond 2^31."""
    cupy = driver.cupy()
    large = tiled(3 * 2**30 + 2**13)
    aligned = cupy.zeros((4099, 8), cupy.float16)
    check(strided(large, 1, (4, 4099), (2**30 - 1, 1)), aligned)
    check(strided(large, 2**31 + 2**30, (4, 4099), (-(2**30) + 1, 1)), aligned)
    check(strided(large, 0, (3, 4099), (2**29 + 1, 2**18 - 3)), aligned)
    stack = strided(large, 1, (4, 5, 129), (2**30 - 3, 129, 1))
    check(stack, cupy.zeros((4, 129, 8), cupy.float16))


def test_a_copy_of_more_than_2_31_elements() -> None:
    cupy = driver.cupy()
    a = tiled(65537 * 32775)[: 65537 * 32775].reshape(65537, 32775)
    b = cupy.zeros((32775, 8), cupy.float16)
    copy = copy_of(a)
    assert not isinstance(copy, str)
    assert copy.rows * copy.pitch > 2**31
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    left, _ = packed(a, b)
    found = seen(left)
    for start in range(0, 65537, 8192):
        assert cupy.array_equal(found[start : start + 8192], a[start : start + 8192].view(cupy.uint16))


CASES = {
    "odd": ((257, 511, 129), lambda x: x, lambda x: x),
    "odd, both by columns": ((257, 511, 129), lambda x: x.T, lambda x: x.T),
    "one element in": ((200, 320, 136), lambda x: x[1:, 1:-7], lambda x: x[1:-7, 1:]),
    "steps": ((200, 320, 136), lambda x: x[::3, ::2], lambda x: x[::2, ::5]),
    "backwards": ((200, 320, 136), lambda x: x[::-1, ::-1], lambda x: x[::-1, ::-1]),
    "one row": ((1, 511, 129), lambda x: x, lambda x: x),
    "one column": ((257, 511, 1), lambda x: x, lambda x: x),
}


@pytest.mark.parametrize("config", ["SMALL", "LARGE"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_products_of_copies(kernels: Kernels, name: str, dtype: str, config: str) -> None:
    (m, k, n), left, right = CASES[name]
    cupy = driver.cupy()
    rng, element = cupy.random.default_rng(0), verify.numpy_dtype(dtype)

    def draw(shape: tuple[int, int], view: Any) -> Any:
        turned = shape[::-1] if "by columns" in name else shape
        return view(rng.standard_normal(turned, dtype=cupy.float32).astype(element))

    a, b = draw((m, k), left), draw((k, n), right)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    problem = Problem(
        a.shape[0], b.shape[1], a.shape[1], a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, layout=packed.layout
    )
    plan = kernels.plan(problem, {"SMALL": SMALL, "LARGE": LARGE}[config])
    out = verify.GuardedOutput(cupy, (problem.m, problem.n), dtype)
    plan(*packed(a, b), out.array)
    verdict = verify.check(out.array, verify.Reference.of(Operands(a, b, out.array), problem))
    assert verdict.ok, verdict.detail
    assert out.intact()


def test_products_of_stacks_that_share_a_matrix(kernels: Kernels) -> None:
    cupy = driver.cupy()
    rng = cupy.random.default_rng(0)
    a = rng.standard_normal((5, 65, 129), dtype=cupy.float32).astype(cupy.float16)
    b = rng.standard_normal((129, 33), dtype=cupy.float32).astype(cupy.float16)
    posed = pose_stack(a, b)
    assert posed is not None
    packed = packing_of(posed.a, posed.b)
    assert isinstance(packed, Packing)
    problem = Problem(65, 33, 129, 5, layout=packed.layout)
    out = cupy.full((5, 65, 33), float("nan"), cupy.float16)
    kernels.plan(problem, SMALL)(*packed(posed.a, posed.b), out)
    shared = cupy.broadcast_to(b, (5, 129, 33))
    verdict = verify.check(out, verify.Reference.of(Operands(a, shared, out), problem))
    assert verdict.ok, verdict.detail


def test_memory_of_copies_is_used_again_in_order(kernels: Kernels) -> None:
    """Each copy is freed while its product may not have begun; the pool gives it to the next on the same stream."""
    cupy = driver.cupy()
    problem = Problem(511, 257, 1023)
    plan = kernels.plan(problem, SMALL)
    rng = cupy.random.default_rng(0)
    a = rng.standard_normal((8, 511, 1023), dtype=cupy.float32).astype(cupy.float16)
    b = rng.standard_normal((8, 1023, 257), dtype=cupy.float32).astype(cupy.float16)
    packed = packing_of(a[0], b[0])
    assert isinstance(packed, Packing)
    out = cupy.empty((64, 511, 257), cupy.float16)
    cupy.cuda.Device().synchronize()  # what was drawn was so on another stream
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for index in range(64):
            plan(*packed(a[index % 8], b[index % 8]), out[index])
        stream.synchronize()
    for index in range(8):
        reference = verify.Reference.of(Operands(a[index], b[index], out[index]), problem)
        assert verify.check(out[index], reference).ok
    assert bool((out.reshape(8, 8, 511, 257) == out[:8]).all())


def test_a_graph_with_a_buffer_of_its_own(kernels: Kernels) -> None:
    cupy = driver.cupy()
    problem = Problem(65, 33, 129)
    plan = kernels.plan(problem, SMALL)
    a, b, out = (cupy.zeros(shape, cupy.float16) for shape in ((65, 129), (129, 33), (65, 33)))
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    packed.load()
    buffer = cupy.empty(packed.buffer_bytes, cupy.uint8)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        plan(*packed(a, b, buffer), out)
        stream.begin_capture()
        with pytest.raises(CaptureError, match="copies would need memory"):
            packed(a, b)
        plan(*packed(a, b, buffer), out)
        graph = stream.end_capture()
        for factor in (1, 3):
            a.fill(factor)
            b.fill(0.25)
            graph.launch()
            stream.synchronize()
            assert bool((out == factor * 0.25 * 129).all())
