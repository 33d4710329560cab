"""`out` on a fake GPU: what kernels write into, what is copied to, what overlaps, what it may be of a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError
from cupygemm.problem import Problem
from cupygemm.views.reading import problem_of
from tests.fake_gpu import FakeGpu
from tests.fake_products import (
    PROBLEM,
    SMALL,
    bundle_of,
    fresh_gpu,
    on_another_device,
    operands,
    plain,
    right,
    spread,
    stored,
)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


OUTS: dict[str, tuple[Callable[[FakeGpu], Any], str | None]] = {
    "as asked": (lambda gpu: gpu.empty((24, 40), np.float16), None),
    "part of wider rows": (lambda gpu: gpu.empty((24, 64), np.float16)[:, 8:48], None),
    "every other row": (lambda gpu: gpu.empty((48, 40), np.float16)[::2], None),
    "NumPy's": (lambda gpu: np.empty((24, 40), np.float16), "out is not a float16 array of shape (24, 40)"),
    "another shape": (lambda gpu: gpu.empty((40, 24), np.float16), "out is not a float16 array of shape (24, 40)"),
    "another dtype": (lambda gpu: gpu.empty((24, 40), np.float32), "out is not a float16 array of shape (24, 40)"),
    "another device": (lambda gpu: on_another_device(gpu, 24), "out is on device 1, the operands on 0"),
    "column-major": (
        lambda gpu: gpu.empty((40, 24), np.float16).T,
        "out cannot be stored to: its rows are not contiguous, elements of a row are 48 bytes apart",
    ),
    "every other column": (
        lambda gpu: gpu.empty((24, 80), np.float16)[:, ::2],
        "out cannot be stored to: its rows are not contiguous, elements of a row are 4 bytes apart",
    ),
    "odd rows": (
        lambda gpu: gpu.empty((24, 41), np.float16)[:, :40],
        "out cannot be stored to: rows are 82 bytes apart: TMA needs a positive multiple of 16",
    ),
    "late start": (
        lambda gpu: gpu.empty((24, 48), np.float16)[:, 1:41],
        "out cannot be stored to: the data start at an address that is no multiple of 16",
    ),
    "upside down": (
        lambda gpu: gpu.empty((24, 40), np.float16)[::-1],
        "out cannot be stored to: its rows are -80 bytes apart: they overlap, run backwards or start between elements",
    ),
    "overlapping rows": (
        lambda gpu: spread(gpu.empty((24, 40), np.float16), (24, 40), (16, 2)),
        "out cannot be stored to: its rows are 16 bytes apart: they overlap, run backwards or start between elements",
    ),
}


@pytest.mark.parametrize("case", OUTS)
def test_what_out_may_be(gpu: FakeGpu, case: str) -> None:
    make, reason = OUTS[case]
    a, b = operands(gpu)
    assert problem_of(a, b, make(gpu)) == (reason or PROBLEM)


def test_rows_that_tma_cannot_store_need_only_lie_apart(gpu: FakeGpu) -> None:
    a, b = operands(gpu, replace(PROBLEM, n=39, layout="nt"))
    wanted = replace(PROBLEM, n=39, layout="nt")
    assert problem_of(a, b, gpu.empty((24, 43), np.float16)[:, 1:40]) == wanted
    assert "they overlap, run backwards" in problem_of(a, b, gpu.empty((24, 39), np.float16)[::-1])
    overlapping = spread(gpu.empty((24, 39), np.float16), (24, 39), (76, 2))
    assert "76 bytes apart: they overlap" in problem_of(a, b, overlapping)


def test_strides_of_an_out_of_one_row_or_column_do_not_matter(gpu: FakeGpu) -> None:
    row, column = replace(PROBLEM, m=1), replace(PROBLEM, n=1, layout="nt")
    assert problem_of(*operands(gpu, row), gpu.empty((40, 1), np.float16).reshape(1, 40)) == row
    assert problem_of(*operands(gpu, row), spread(gpu.empty((1, 40), np.float16), (1, 40), (-6, 2))) == row
    assert problem_of(*operands(gpu, column), gpu.empty((24, 3), np.float16)[:, :1]) == column
    assert problem_of(*operands(gpu, column), spread(gpu.empty((24, 1), np.float16), (24, 1), (2, 998))) == column


REFUSED = {"NumPy's": TypeError, "another shape": ValueError}
"""What CuPy does not take for `out`."""


@pytest.mark.parametrize("case", OUTS)
def test_out_is_filled_and_returned(gpu: FakeGpu, case: str) -> None:
    make, reason = OUTS[case]
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = make(gpu)
    choice = cupygemm.explain(a, b, out)
    if case in REFUSED:
        assert choice.kernel == "cublas"
        with pytest.raises(REFUSED[case], match=r"[oO]ut"):
            cupygemm.matmul(a, b, out=out)
        return
    arrays = len(gpu._spans)
    assert cupygemm.matmul(a, b, out=out) is out
    if case != "overlapping rows":
        np.testing.assert_array_equal(plain(out), right(a, b))
    if case == "another device":
        assert (choice.kernel, choice.reason, len(gpu.fallbacks)) == ("cublas", reason, 1)
        return
    assert (choice.kernel, len(gpu.launches), gpu.fallbacks) == ("own", 1, [])
    assert len(gpu._spans) == arrays + (reason is not None), "an array beside out only where it is needed"
    if reason is not None:
        assert f"into a new array, then copied to out: {reason.removeprefix('TMA ')}" in choice.reason


def test_an_out_of_one_is_that_one(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = gpu.empty((24, 40), np.float16)
    assert cupygemm.matmul(a, b, out=(out,)) is out
    np.testing.assert_array_equal(plain(out), right(a, b))
    assert cupygemm.matmul(a, b, out=(None,)).shape == (24, 40)
    assert (len(gpu.launches), gpu.fallbacks) == (2, [])
    # Positional too, as NumPy has it.
    assert cupygemm.matmul(a, b, out) is out


def test_rows_of_out_between_elements_are_copied_to(gpu: FakeGpu) -> None:
    problem = replace(PROBLEM, n=39, layout="nt")
    cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=0)))
    a, b = operands(gpu, problem)
    out = spread(gpu.empty((24, 80), np.float16), (24, 39), (81, 2))
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, out=out)), right(a, b))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


# Dtypes


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_an_out_of_another_dtype_gets_what_was_rounded(gpu: FakeGpu, dtype: str) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    a[...], b[...] = 3, 683
    out = gpu.empty((24, 40), dtype)
    assert cupygemm.matmul(a, b, out=out) is out
    wanted = np.matmul(np.asarray(a), np.asarray(b), out=np.empty((24, 40), dtype))
    assert (wanted != 16 * 3 * 683).all(), "12 bits, of which float16 holds 11"
    np.testing.assert_array_equal(np.asarray(out), wanted)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("given", [None, "float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_is_asked_for_by_dtype(gpu: FakeGpu, dtype: str, given: str | None, own: bool) -> None:
    problem = replace(PROBLEM, a_dtype=dtype, b_dtype=dtype, out_dtype="float32")
    if own:
        cupygemm.use(bundle_of(problem))
    a, b = operands(gpu, problem)
    a[...], b[...] = 100, 257 if dtype == "float16" else 258
    out = None if given is None else gpu.empty((24, 40), given)
    assert cupygemm.explain(a, b, out, dtype=np.float32).problem == problem
    result = cupygemm.matmul(a, b, out=out, dtype=np.float32)
    assert out is None or result is out
    assert result.dtype == (given or "float32")
    np.testing.assert_array_equal(plain(result), right(a, b), "neither rounded to 16 bits nor beyond their range")
    assert (len(gpu.launches), len(gpu.fallbacks)) == ((1, 0) if own else (0, 1))


def test_dtypes_that_own_kernels_do_not_give_are_cupys(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, out_dtype="float32")))
    a, b = operands(gpu)
    for dtype in (np.float64, "complex64"):
        assert cupygemm.matmul(a, b, dtype=dtype).dtype == dtype
    assert gpu.fallbacks == [{"dtype": np.float64}, {"dtype": "complex64"}]
    # The operands' own dtype changes nothing.
    assert cupygemm.matmul(a, b, dtype="float16").dtype == np.float16
    assert len(gpu.launches) == 1
    with pytest.raises(TypeError, match="no dtype"):
        cupygemm.matmul(a, b, dtype="no dtype")


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_what_cannot_be_cast_is_cupys_error(gpu: FakeGpu, dtype: str) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = gpu.empty((24, 40), dtype)
    assert cupygemm.explain(a, b, out).reason == f"out is {dtype}, which float16 is not cast to"
    with pytest.raises(TypeError, match="Cannot cast"):
        cupygemm.matmul(a, b, out=out)
    assert gpu.launches == []


def test_a_wide_out_of_a_stack_is_cupys(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    stack, out = a.reshape(2, 12, 16), gpu.empty((2, 12, 40), np.float32)
    assert "casts stacks of float16 from float32" in cupygemm.explain(stack, b, out).reason
    np.testing.assert_array_equal(plain(cupygemm.matmul(stack, b, out=out)), right(stack, b))
    assert len(gpu.fallbacks) == 1


# Overlap


@pytest.mark.parametrize("which", ["a", "b", "part of a", "neither"])
def test_out_may_overlap_an_operand(gpu: FakeGpu, which: str) -> None:
    square = Problem(32, 32, 32)
    cupygemm.use(bundle_of(square))
    a, b = operands(gpu, square)
    if which == "part of a":
        buffer = stored(gpu, (48, 32))
        a, out = buffer[:32], buffer[16:]
    else:
        out = {"a": a, "b": b, "neither": gpu.empty((32, 32), np.float16)}[which]
    wanted = right(a, b)
    arrays = len(gpu._spans)
    assert cupygemm.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(plain(out), wanted)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])
    assert len(gpu._spans) == arrays + (which != "neither"), "a copy is made where it is needed, and only there"


def test_overlap_is_seen_between_arrays_of_separate_allocations(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    square = Problem(32, 32, 32)
    cupygemm.use(bundle_of(square))
    a, b = operands(gpu, square)
    buffer = stored(gpu, (48, 32))
    a, out = buffer[:32], buffer[16:]
    # As arrays are that come in through DLPack, each in an allocation of its own.
    monkeypatch.setattr(np, "may_share_memory", lambda x, y: False)
    wanted = right(a, b)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, out=out)), wanted)


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_cupy_gets_copies_of_what_out_overlaps(gpu: FakeGpu, dtype: str, which: str) -> None:
    a, b = (array.astype(dtype) for array in operands(gpu, Problem(32, 32, 32)))
    seen: list[tuple[Any, Any]] = []
    matmul = gpu.matmul

    def spy(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        seen.append((a, b))
        return matmul(a, b, out, **options)

    cupy = cupygemm.kernels.driver.cupy()
    cupy.matmul = spy
    out = {"a": a, "b": b}[which]
    wanted = right(a, b)
    assert cupygemm.matmul(a, b, out=out, casting="same_kind") is out
    np.testing.assert_array_equal(plain(out), wanted)
    ((a_seen, b_seen),) = seen
    assert (a_seen is a, b_seen is b) == (which != "a", which != "b")


# Capture


@pytest.mark.parametrize("case", ["column-major", "overlaps", "float32"])
def test_a_graph_keeps_no_array_beside_out(gpu: FakeGpu, case: str) -> None:
    square = Problem(32, 32, 32)
    cupygemm.use(bundle_of(square))
    a, b = operands(gpu, square)
    outs = {"column-major": gpu.empty((32, 32), np.float16).T, "overlaps": a, "float32": gpu.empty((32, 32), "f4")}
    cupygemm.matmul(a, b)
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match="out needs an array beside it: "):
        cupygemm.matmul(a, b, out=outs[case])
    assert gpu.stream.end_capture().launches == []


def test_what_cupy_computes_without_cublas_is_captured(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    whole = (a.astype(np.int32), b.astype(np.uint8))
    calls = {
        "integers": whole,
        "a sum of nothing": (a[:, :0], b[:0]),
        "no rows": (a[:0], b),
        "a row and a column": (a[0], b[:, 0]),
    }
    gpu.stream.begin_capture()
    for name, (x, y) in calls.items():
        if name == "integers":
            np.testing.assert_array_equal(plain(cupygemm.matmul(x, y)), right(x, y))
        else:
            # CuPy is asked, whatever it answers.
            with pytest.raises(NotImplementedError):
                cupygemm.matmul(x, y)
    for x, y in ((a, b), (a.astype(np.int64), b.astype(np.uint64)), (whole[0], b), (a[None], b), (a[:1, :1], b[:1])):
        with pytest.raises(CaptureError, match="cannot be captured"):
            cupygemm.matmul(x, y)
    gpu.stream.end_capture()
