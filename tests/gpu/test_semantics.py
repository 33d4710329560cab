"""`cupygemm.matmul` on real arrays means what `numpy.matmul` means: shapes, views, dtypes, `out`, devices, errors.

Operands are small integers, so that each dtype holds the exact result and nothing needs a tolerance. Own kernels have a
config for every problem; `own` and `cublas` say what is to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from tests.gpu.everything import everything

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def in_force() -> Iterator[None]:
    with cupygemm.use(everything()):
        yield


def draw(shape: tuple[int, ...], dtype: str = "float16", seed: int = 0) -> Any:
    cupy = driver.cupy()
    low = 0 if dtype[0] in "ub" and dtype != "bfloat16" else -2
    drawn = np.random.default_rng(seed).integers(low, 3, shape)
    if dtype == "bfloat16":
        return cupy.asarray(drawn.astype(np.float32)).astype(verify.numpy_dtype(dtype))
    return cupy.asarray(drawn.astype(dtype))


def exact(array: Any) -> Any:
    """On the host, in a dtype that holds every value here."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    narrow = array.astype("float32") if array.dtype.name == "bfloat16" else array
    return narrow.get().astype(wide)


def check(result: Any, a: Any, b: Any) -> None:
    wanted = np.matmul(exact(a), exact(b))
    assert result.shape == wanted.shape
    np.testing.assert_array_equal(exact(result), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((40, 64), (64, 48)),
        ((64,), (64, 48)),
        ((40, 64), (64,)),
        ((64,), (64,)),
        ((63,), (63,)),
        ((5, 40, 64), (64, 48)),
        ((2, 3, 40, 64), (64, 48)),
        ((5, 40, 64), (1, 1, 64, 48)),
        ((5, 40, 64), (64,)),
        ((2, 3, 1, 64), (64, 48)),
        ((1, 64), (64, 8)),
        ((1, 1), (1, 1)),
    ],
)
def test_own_kernels_run_vectors_and_stacks(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> None:
    cupy = driver.cupy()
    a, b = (draw(shape, dtype, seed) for seed, shape in enumerate(shapes))
    assert cupygemm.explain(a, b).kernel == "own"
    result = cupygemm.matmul(a, b)
    assert (result.dtype, result.flags.c_contiguous) == (a.dtype, True)
    check(result, a, b)
    out = cupy.empty(result.shape, a.dtype)
    assert cupygemm.matmul(a, b, out=out) is out
    check(out, a, b)
    apart = cupy.empty((*result.shape, 3), a.dtype)[..., 1]
    assert cupygemm.matmul(a, b, out=apart) is apart
    check(apart, a, b)


SHAPES = [
    ((3, 2), (2, 4)),
    ((2,), (2, 4)),
    ((3, 2), (2,)),
    ((2,), (2,)),
    ((7, 3, 2), (7, 2, 4)),
    ((7, 3, 2), (2, 4)),
    ((3, 2), (7, 2, 4)),
    ((7, 1, 3, 2), (1, 5, 2, 4)),
    ((2,), (7, 2, 4)),
    ((7, 3, 2), (2,)),
    ((3, 0), (0, 4)),
    ((0,), (0,)),
    ((7, 3, 0), (0, 4)),
    ((0, 2), (2, 4)),
    ((0, 3, 2), (2, 4)),
    ((5, 0, 3, 2), (2, 4)),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8", "bool"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes_are_numpys(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> None:
    a, b = (draw(shape, dtype, seed) for seed, shape in enumerate(shapes))
    result = cupygemm.matmul(a, b)
    assert result.dtype == a.dtype
    if dtype == "bool":
        np.testing.assert_array_equal(result.get(), np.matmul(a.get(), b.get()))
    else:
        check(result, a, b)


def test_stacks_of_bfloat16_times_one_matrix_need_no_config() -> None:
    a, b = draw((7, 3, 2), "bfloat16"), draw((2, 4), "bfloat16", 1)
    assert cupygemm.explain(a, b).kernel == "cublas", "TMA cannot read rows of 4 bytes"
    check(cupygemm.matmul(a, b), a, b)


@pytest.mark.parametrize("left", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("right", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64"])
def test_dtypes_are_promoted(left: str, right: str) -> None:
    a, b = draw((8, 16), left), draw((16, 8), right, 1)
    result = cupygemm.matmul(a, b)
    wanted = np.matmul(a.get(), b.get())
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(result.get(), wanted)
    assert (cupygemm.explain(a, b).kernel == "own") == (left == right == "float16")


VIEWS: dict[str, Any] = {
    "as it is": lambda: draw((40, 64)),
    "transposed": lambda: draw((64, 40)).T,
    "part of wider rows": lambda: draw((40, 128))[:, 8:72],
    "every other row": lambda: draw((80, 64))[::2],
    "every other column": lambda: draw((40, 128))[:, ::2],
    "upside down": lambda: draw((40, 64))[::-1],
    "columns backwards": lambda: draw((40, 64))[:, ::-1],
    "a late start": lambda: draw((40, 72))[:, 3:67],
    "one row many times": lambda: driver.cupy().broadcast_to(draw((1, 64)), (40, 64)),
}


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("case", VIEWS)
def test_views_are_multiplied_as_they_are_seen(case: str, side: str) -> None:
    view, other = VIEWS[case](), draw((64, 48), seed=1)
    a, b = (view, other) if side == "a" else (other.T, view.T)
    check(cupygemm.matmul(a, b), a, b)


OUTS: dict[str, Any] = {
    "C": lambda cupy: cupy.empty((40, 48), "f2"),
    "F": lambda cupy: cupy.empty((48, 40), "f2").T,
    "part of wider rows": lambda cupy: cupy.empty((40, 64), "f2")[:, 8:56],
    "a late start": lambda cupy: cupy.empty((40, 64), "f2")[:, 3:51],
    "every other column": lambda cupy: cupy.empty((40, 96), "f2")[:, ::2],
    "upside down": lambda cupy: cupy.empty((40, 48), "f2")[::-1],
    "float32": lambda cupy: cupy.empty((40, 48), "f4"),
    "float64, F": lambda cupy: cupy.empty((48, 40), "f8").T,
    "complex64": lambda cupy: cupy.empty((40, 48), "c8"),
}


@pytest.mark.parametrize("case", OUTS)
def test_out_of_any_layout_and_dtype(case: str) -> None:
    a, b, out = draw((40, 64)), draw((64, 48), seed=1), OUTS[case](driver.cupy())
    assert cupygemm.explain(a, b, out).kernel == "own"
    assert cupygemm.matmul(a, b, out=out) is out
    check(out, a, b)


def test_a_wide_out_gets_what_was_rounded_and_dtype_what_was_not() -> None:
    cupy = driver.cupy()
    a, b = cupy.full((40, 16), 3, "f2"), cupy.full((16, 48), 683, "f2")
    out = cupy.empty((40, 48), "f4")
    theirs = cupy.matmul(a, b, out=cupy.empty((40, 48), "f4"))
    assert bool((cupygemm.matmul(a, b, out=out) == theirs).all())
    assert float(out[0, 0]) != 16 * 3 * 683, "12 bits, of which float16 holds 11"
    check(cupygemm.matmul(a, b, dtype="float32"), a, b)
    assert cupygemm.explain(a, b, dtype="float32").kernel == "own"
    odd_a, odd_b = a[:, 1:], b[1:]
    assert cupygemm.explain(odd_a, odd_b, dtype="float32").kernel == "cublas"
    check(cupygemm.matmul(odd_a, odd_b, dtype="float32"), odd_a, odd_b)


def test_what_cannot_be_cast_is_an_error() -> None:
    cupy = driver.cupy()
    a, b = draw((40, 64)), draw((64, 48), seed=1)
    with pytest.raises(TypeError, match=r"\w"):
        cupygemm.matmul(a, b, out=cupy.empty((40, 48), "i4"))
    check(cupygemm.matmul(a, b, out=cupy.empty((40, 48), "i4"), casting="unsafe"), a, b)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("case", ["a", "b", "both", "part of a", "a transposed", "through another allocation"])
def test_out_may_overlap_an_operand(case: str, dtype: str) -> None:
    cupy = driver.cupy()
    buffer = draw((96, 64), dtype)
    a, b = buffer[:64].copy(), draw((64, 64), dtype, 1)
    if case == "part of a":
        a, out = buffer[:64], buffer[32:]
    elif case == "a transposed":
        out = a.T
    elif case == "both":
        b = out = a
    elif case == "through another allocation":
        # As views of one tensor are that come in through DLPack each.
        size = buffer.nbytes // 3 * 2
        memories = [cupy.cuda.UnownedMemory(start, size, buffer) for start in (buffer.data.ptr, buffer[32:].data.ptr)]
        a, out = (cupy.ndarray((64, 64), dtype, cupy.cuda.MemoryPointer(memory, 0)) for memory in memories)
        assert not cupy.may_share_memory(a, out)
    else:
        out = {"a": a, "b": b}[case]
    wanted = exact(a) @ exact(b)
    assert cupygemm.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(exact(out), wanted)


MISTAKES = [
    ((), (3, 2)),
    ((3, 2), ()),
    ((), ()),
    ((3, 2), (3, 2)),
    ((3, 2), (1,)),
    ((5, 3, 2), (4, 2, 4)),
    ((0, 1, 1), (2, 1, 1)),
    ((0, 2), (3, 0)),
]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shapes", MISTAKES)
def test_mistakes_are_value_errors(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> None:
    a, b = (draw(shape, dtype) for shape in shapes)
    with pytest.raises(ValueError, match=r"\w"):
        cupygemm.matmul(a, b)


@pytest.mark.parametrize("value", [[[1.0]], 3.0, np.ones((64, 48), np.float16), None])
def test_what_is_no_array_of_cupy_is_a_type_error(value: Any) -> None:
    a = draw((40, 64))
    for operands in ((a, value), (value, a)):
        with pytest.raises(TypeError, match=r"\w"):
            cupygemm.matmul(*operands)


def test_patch_routes_cupy_and_the_operator() -> None:
    cupy = driver.cupy()
    a, b = draw((40, 64)), draw((64, 48), seed=1)
    stack = draw((5, 64, 48), seed=2)
    theirs = cupy.matmul
    with cupygemm.patch() as patch:
        assert patch.operator
        for result in (cupy.matmul(a, b), a @ b, np.matmul(a, b), cupy.einsum("ij,jk->ik", a, b)):
            check(result, a, b)
        # What falls back does not come back.
        check(a @ stack, a, stack)
        c = a
        c @= b
        check(c, a, b)
        with pytest.raises(TypeError, match=r"\w"):
            a @ b.get()
    assert cupy.matmul is theirs
    check(a @ b, a, b)


def test_capture_of_what_needs_no_cublas() -> None:
    cupy = driver.cupy()
    a, b = draw((40, 64), "int32"), draw((64, 48), "int32", 1)
    half_a, half_b = draw((40, 64)), draw((64, 48), seed=1)
    cupygemm.matmul(a, b)
    cupygemm.matmul(half_a, half_b)
    out, column_major = cupy.zeros((40, 48), "i4"), cupy.empty((48, 40), "f2").T
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            cupygemm.matmul(a, b, out=out)
            with pytest.raises(CaptureError, match="beside it"):
                cupygemm.matmul(half_a, half_b, out=column_major)
        finally:
            graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    check(out, a, b)


def test_the_device_of_the_operands_is_where_it_runs() -> None:
    cupy = driver.cupy()
    if len(driver.hopper_devices()) < 2:
        pytest.skip("there is one Hopper GPU")
    first, second = driver.hopper_devices()[:2]
    with cupy.cuda.Device(second):
        a, b, wide = draw((40, 64)), draw((64, 48), seed=1), draw((40, 64), "float32")
        stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.Device(first):
        for left in (a, wide):
            result = cupygemm.matmul(left, b)
            assert (result.device.id, cupy.cuda.Device().id) == (second, first)
            check(result, left, b)
    with cupy.cuda.Device(second), stream:
        cupygemm.matmul(a, b)
        with cupy.cuda.Device(first):
            result = cupygemm.matmul(a, b)
        stream.synchronize()
        check(result, a, b)
