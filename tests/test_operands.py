"""Arrays on a fake GPU: which problem they pose, why some are cuBLAS's, and that the product is right either way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.dispatch import problem_of
from cupygemm.problem import Problem
from tests.fake_gpu import DeviceArray, FakeDevice, FakeGpu
from tests.fake_products import PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right, spread, stored


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("padding", [0, 8])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_layout_is_read_off_the_strides(gpu: FakeGpu, layout: str, padding: int, dtype: str) -> None:
    wanted = replace(PROBLEM, layout=layout, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype)
    assert problem_of(*operands(gpu, wanted, padding), None) == wanted


def test_an_axis_of_one_has_no_stride(gpu: FakeGpu) -> None:
    layouts = {
        "a row": (stored(gpu, (1, 8)), "nn"),
        "a row of a column-major array": (stored(gpu, (8, 8), "t", padding=8)[:1], "tn"),
        "a column": (stored(gpu, (8, 1)), "tn"),
        "a column of a row-major array": (stored(gpu, (8, 8))[:, :1], "nn"),
        "a single element": (stored(gpu, (1, 1)), "nn"),
        "a single element amid others": (stored(gpu, (3, 9))[:1, :1], "nn"),
    }
    for name, (a, layout) in layouts.items():
        b = stored(gpu, (a.shape[1], 8))
        problem = Problem(a.shape[0], 8, a.shape[1], layout=layout)
        assert problem_of(a, b, None) == problem, name
        with cupygemm.use(bundle_of(problem)):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b), name)
    assert gpu.fallbacks == []


def shifted(array: Any, elements: int) -> Any:
    """A view that starts `elements` later, with strides that are fine."""
    return array[:, elements : elements + 8]


def on_another_device(gpu: FakeGpu, rows: int) -> Any:
    with FakeDevice(gpu, 1):
        return gpu.empty((rows, 40), np.float16)


OPERANDS: dict[str, tuple[Callable[[FakeGpu, Any, Any], tuple[Any, Any]], str]] = {
    "a is NumPy's": (lambda gpu, a, b: (plain(a), b), "an operand is not a CuPy array"),
    "b is a list": (lambda gpu, a, b: (a, [[1.0]]), "an operand is not a CuPy array"),
    "three axes": (lambda gpu, a, b: (a[None], b), "operands have 3 and 2 axes"),
    "a vector": (lambda gpu, a, b: (a, b[:, 0]), "operands have 2 and 1 axes"),
    "float32": (lambda gpu, a, b: (a.astype("f4"), b.astype("f4")), "operands are float32 and float32"),
    "mixed": (lambda gpu, a, b: (a, b.astype("f4")), "operands are float16 and float32"),
    "shapes": (lambda gpu, a, b: (a, b[:-1]), "shapes (24, 16) and (15, 40) do not match"),
    "m of 0": (lambda gpu, a, b: (a[:0], b), "an extent is zero"),
    "n of 0": (lambda gpu, a, b: (a, b[:, :0]), "an extent is zero"),
    "k of 0": (lambda gpu, a, b: (a[:, :0], b[:0]), "an extent is zero"),
    "devices": (lambda gpu, a, b: (a, on_another_device(gpu, 16)), "operands are on devices 0 and 1"),
    "odd rows": (lambda gpu, a, b: (stored(gpu, (24, 16), padding=1), b), "TMA cannot copy a: rows are 34 bytes apart"),
    "odd columns": (lambda gpu, a, b: (a, stored(gpu, (16, 40), "t", padding=4)), "TMA cannot copy b: "),
    "every other element": (
        lambda gpu, a, b: (stored(gpu, (24, 32))[:, ::2], b),
        "TMA cannot copy a: axis 1 has a str",
    ),
    "rows in one place": (lambda gpu, a, b: (spread(a, (24, 16), (0, 2)), b), "cannot copy a: rows are 0 bytes apart"),
    "columns in one place": (lambda gpu, a, b: (a, spread(b, (16, 40), (2, 0))), "b: rows are 0 bytes apart"),
    "rows upside down": (lambda gpu, a, b: (a[::-1], b), "TMA cannot copy a: rows are -32 bytes apart"),
    "columns backwards": (lambda gpu, a, b: (a, b[:, ::-1]), "TMA cannot copy b: axis 1 has a stride of -2 bytes"),
    "a starts late": (lambda gpu, a, b: (shifted(a, 1), b[:8]), "TMA cannot copy a: the data start at an address"),
    "b starts late": (lambda gpu, a, b: (a, shifted(b, 4)), "TMA cannot copy b: the data start at an address"),
}


@pytest.mark.parametrize("case", OPERANDS)
def test_each_reason_why_operands_are_cublas(gpu: FakeGpu, case: str) -> None:
    change, reason = OPERANDS[case]
    a, b = change(gpu, *operands(gpu))
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, k=8), replace(PROBLEM, n=8)))
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.config, choice.problem) == ("cublas", None, None)
    assert choice.reason == problem_of(a, b, None)
    assert reason in choice.reason


def test_an_offset_that_tma_can_start_at_is_no_reason(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    assert problem_of(shifted(a, 8), b[:8], None) == replace(PROBLEM, k=8)


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


@pytest.mark.parametrize("store_stages", [0, 1])
@pytest.mark.parametrize("padding", [0, 8])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_own_kernels_compute_the_product(
    gpu: FakeGpu, dtype: str, layout: str, padding: int, store_stages: int
) -> None:
    problem = replace(PROBLEM, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, layout=layout)
    cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=store_stages)))
    a, b = operands(gpu, problem, padding)
    result = cupygemm.matmul(a, b)
    assert (result.dtype, type(result)) == (a.dtype, DeviceArray)
    np.testing.assert_array_equal(plain(result), right(a, b))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.parametrize("case", OUTS)
def test_out_is_filled_and_returned(gpu: FakeGpu, case: str) -> None:
    make, reason = OUTS[case]
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = make(gpu)
    if out.shape != (PROBLEM.m, PROBLEM.n):
        with pytest.raises(ValueError, match="broadcast"):
            cupygemm.matmul(a, b, out=out)
        return
    assert cupygemm.matmul(a, b, out=out) is out
    assert (len(gpu.launches), len(gpu.fallbacks)) == ((1, 0) if reason is None else (0, 1))
    if case != "overlapping rows":
        np.testing.assert_array_equal(plain(out), right(a, b))


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


def test_options_are_cupys(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, casting="no", dtype=None)), right(a, b))
    assert (gpu.fallbacks, gpu.launches) == ([{"casting": "no", "dtype": None}], [])


def test_the_kernel_runs_on_the_device_of_the_operands(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    with FakeDevice(gpu, 1):
        a, b = operands(gpu)
    result = cupygemm.matmul(a, b)
    assert result.device.id == 1
    assert [launch.device for launch in gpu.launches] == [1]
    assert gpu.current == [0]
    # A plan belongs to one device: the same product elsewhere has another.
    cupygemm.matmul(*operands(gpu))
    assert [launch.device for launch in gpu.launches] == [1, 0]


def test_a_product_too_large_for_tma_is_cublas(gpu: FakeGpu) -> None:
    problem = Problem(2**31, 8, 8)
    cupygemm.use(bundle_of(problem))
    a, b = stored(gpu, (8, 8)), stored(gpu, (8, 8))
    assert cupygemm.explain(spread(a, (problem.m, 8), (16, 2)), b).kernel == "cublas"


def test_rows_of_out_between_elements_are_cublas(gpu: FakeGpu) -> None:
    problem = replace(PROBLEM, n=39, layout="nt")
    cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=0)))
    a, b = operands(gpu, problem)
    out = spread(gpu.empty((24, 80), np.float16), (24, 39), (81, 2))
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, out=out)), right(a, b))
