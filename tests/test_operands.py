"""Arrays on a fake GPU: which problem they pose, why some are cuBLAS's, and that the product is right either way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.problem import Problem
from cupygemm.views.reading import problem_of
from tests.fake_gpu import DeviceArray, FakeDevice, FakeGpu
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


OPERANDS: dict[str, tuple[Callable[[FakeGpu, Any, Any], tuple[Any, Any]], str]] = {
    "a is NumPy's": (lambda gpu, a, b: (plain(a), b), "an operand is not a CuPy array"),
    "b is a list": (lambda gpu, a, b: (a, [[1.0]]), "an operand is not a CuPy array"),
    "no axes": (lambda gpu, a, b: (a, b[:1, :1].reshape(())), "operands have 2 and 0 axes"),
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
    assert (choice.kernel, choice.config) == ("cublas", None)
    if "TMA" in choice.reason:
        # As a copy it would be a problem, were it not so small.
        assert choice.problem is not None
        assert choice.reason == f"{problem_of(a, b, None)}, and copying it is not expected to pay"
    else:
        assert (choice.problem, choice.reason) == (None, problem_of(a, b, None))
    assert reason in choice.reason
    assert gpu.compiled == []


def test_an_offset_that_tma_can_start_at_is_no_reason(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    assert problem_of(shifted(a, 8), b[:8], None) == replace(PROBLEM, k=8)


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
