"""What a plan makes of arrays, without a GPU: how they are described to TMA, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import ProblemError
from cupygemm.kernels import tensor_map
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Operands
from cupygemm.kernels.placement import misaligned_reason
from cupygemm.kernels.tensor_map import Box, Matrix
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, operands, plain, right, spread, stored


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    return gpu


def loaded(gpu: FakeGpu, config: KernelConfig = SMALL, problem: Problem = PROBLEM, device: int = 0) -> LoadedKernel:
    return LoadedKernel(gpu.compile(KernelSpec.of(problem), config), device)


MATRICES = {
    # rows and columns as stored, and bytes from row to row with 8 elements of padding
    "nn": ((24, 16, 48), (16, 40, 96)),
    "nt": ((24, 16, 48), (40, 16, 48)),
    "tn": ((16, 24, 64), (16, 40, 96)),
    "tt": ((16, 24, 64), (40, 16, 48)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", MATRICES)
def test_operands_are_described_as_they_are_stored(gpu: FakeGpu, layout: str, dtype: str) -> None:
    problem = replace(PROBLEM, layout=layout, a_dtype=dtype, b_dtype=dtype, out_dtype="float32")
    # With 4 x 2 clusters, A's slices are halves and B's quarters.
    config = SMALL.swapped(block_n=128, cluster_m=4, cluster_n=2)
    a, b = operands(gpu, problem, padding=8)
    out = gpu.empty((24, 64), np.float32)[:, 8:48]
    Plan(problem, loaded(gpu, config, problem)).launch(Operands(a, b, out))
    (map_a, box_a), (map_b, box_b), (map_out, box_out) = gpu.maps.values()
    assert map_a == Matrix(a.data.ptr, *MATRICES[layout][0], dtype)
    assert map_b == Matrix(b.data.ptr, *MATRICES[layout][1], dtype)
    assert map_out == Matrix(out.data.ptr, 24, 40, 256, "float32")
    # A k-major tile is cut into rows; of an mn-major one, 64 rows of A are a single slab, and 128 of B are two.
    assert box_a == Box(32, 64, l2_promotion=256)
    assert box_b == Box(32 if layout[1] == "t" else 16, 64, l2_promotion=256)
    assert box_out == Box(64, 32)
    np.testing.assert_array_equal(plain(out), right(a, b))


def test_whole_slabs_are_shared_where_they_divide_evenly(gpu: FakeGpu) -> None:
    config = LARGE.swapped(cluster_m=2, cluster_n=2)
    boxes = [
        (tensor_map.a_box(config, spec, 1024), tensor_map.b_box(config, spec, 1024))
        for spec in (KernelSpec.of(replace(PROBLEM, layout=layout)) for layout in ("tn", "nt"))
    ]
    assert boxes == [(Box(64, 64, 256), Box(64, 64, 256))] * 2
    alone = config.swapped(cluster_m=1, cluster_n=1)
    spec = KernelSpec.of(replace(PROBLEM, layout="nt"))
    assert (tensor_map.a_box(alone, spec, 1024), tensor_map.b_box(alone, spec, 1024)) == (
        Box(128, 64, 256),
        Box(128, 64, 256),
    )


def test_stores_from_registers_need_no_descriptor(gpu: FakeGpu) -> None:
    problem = replace(PROBLEM, n=39, layout="nt")
    out = gpu.empty((24, 43), np.float16)[:, 1:40]
    a, b = operands(gpu, problem)
    Plan(problem, loaded(gpu, SMALL.swapped(store_stages=0), problem))(a, b, out)
    assert len(gpu.maps) == 2
    np.testing.assert_array_equal(plain(out), right(a, b))


Change = Callable[[FakeGpu, Any, Any, Any], tuple[Any, Any, Any]]
REFUSED: dict[str, tuple[int, Change, str]] = {
    "a's shape": (1, lambda gpu, a, b, out: (a[:8], b, out), r"a is float16\[8, 16\]: .* float16\[24, 16\]"),
    "b transposed": (1, lambda gpu, a, b, out: (a, b.T, out), r"b is float16\[40, 16\]"),
    "out's shape": (1, lambda gpu, a, b, out: (a, b, out[:, :32]), r"out is float16\[24, 32\]"),
    "a's dtype": (1, lambda gpu, a, b, out: (a.astype("f4"), b, out), r"a is float32\[24, 16\]"),
    "out's dtype": (0, lambda gpu, a, b, out: (a, b, out.astype("f4")), r"out is float32\[24, 40\]"),
    "a's layout": (1, lambda gpu, a, b, out: (stored(gpu, a.shape, "t"), b, out), "a: axis 1 has a stride of 48 bytes"),
    "b's start": (1, lambda gpu, a, b, out: (a, stored(gpu, (16, 48))[:, 1:41], out), "b: the data start at"),
    "out's start": (1, lambda gpu, a, b, out: (a, b, stored(gpu, (24, 48))[:, 1:41]), "out: the data start at"),
    "out by columns": (1, lambda gpu, a, b, out: (a, b, stored(gpu, out.shape, "t")), "out: axis 1 has a stride of 48"),
    "apart": (0, lambda gpu, a, b, out: (a, b, stored(gpu, (24, 80))[:, ::2]), "out: .* contiguous, .* 4 bytes apart"),
    "overlapping": (
        0,
        lambda gpu, a, b, out: (a, b, spread(out, (24, 40), (78, 2))),
        "rows are 78 bytes apart: they overlap",
    ),
    "upside down": (0, lambda gpu, a, b, out: (a, b, out[::-1]), "rows are -80 bytes apart: they overlap"),
    "between elements": (0, lambda gpu, a, b, out: (a, b, spread(out, (24, 40), (81, 2))), "rows are 81 bytes apart"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_a_plan_was_not_made_for_are_refused(gpu: FakeGpu, case: str) -> None:
    store_stages, change, words = REFUSED[case]
    ready = Plan(PROBLEM, loaded(gpu, SMALL.swapped(store_stages=store_stages)))
    arrays = change(gpu, *operands(gpu), gpu.empty((24, 40), np.float16))
    with pytest.raises(ProblemError, match=words):
        ready(*arrays)
    assert gpu.launches == []


# Alignment


def described(shape: tuple[int, int], strides: tuple[int, int], pointer: int = 4096, dtype: str = "f2") -> Any:
    return SimpleNamespace(shape=shape, strides=strides, dtype=np.dtype(dtype), data=SimpleNamespace(ptr=pointer))


@pytest.mark.parametrize(
    ("array", "transposed", "words"),
    [
        (described((3, 8), (16, 2)), False, None),
        (described((3, 8), (32, 2), 4096 + 16), False, None),
        (described((8, 3), (2, 16)), True, None),
        (described((3, 4), (16, 4), dtype="f4"), False, None),
        (described((1, 8), (2, 2)), False, None),
        (described((1, 8), (-16, 2)), False, None),
        (described((3, 1), (16, 998)), False, None),
        (described((1, 3), (998, 16)), True, None),
        (described((3, 8), (2**40 - 16, 2)), False, None),
        (described((3, 8), (16, 4)), False, "axis 1 has a stride of 4 bytes"),
        (described((3, 8), (16, 0)), False, "axis 1 has a stride of 0 bytes"),
        (described((3, 8), (16, -2)), False, "axis 1 has a stride of -2 bytes"),
        (described((3, 8), (16, 2)), True, "axis 0 has a stride of 16 bytes"),
        (described((3, 8), (24, 2)), False, "rows are 24 bytes apart"),
        (described((3, 8), (0, 2)), False, "rows are 0 bytes apart"),
        (described((3, 8), (-16, 2)), False, "rows are -16 bytes apart"),
        (described((3, 8), (2**40, 2)), False, f"rows are {2**40} bytes apart"),
        (described((8, 3), (2, 24)), True, "rows are 24 bytes apart"),
        (described((3, 8), (16, 2), 4096 + 8), False, "address that is no multiple of 16"),
        (described((1, 1), (2, 2), 4096 + 2), True, "address that is no multiple of 16"),
    ],
)
def test_what_tma_can_copy(array: Any, transposed: bool, words: str | None) -> None:
    reason = misaligned_reason(array, transposed)
    assert reason is None if words is None else words in (reason or "")
