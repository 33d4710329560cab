"""Operands that TMA cannot read: which, how they are copied, and that the copies are what a plan reads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.config import KernelSpec
from cupygemm.errors import CaptureError, ProblemError
from cupygemm.kernels import pack_kernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.kernel_source import cuda_sources
from cupygemm.kernels.placement import misaligned_reason
from cupygemm.measuring.verify import numpy_dtype
from cupygemm.problem import Problem
from cupygemm.views import packing
from cupygemm.views.copies import Copy, copy_of, needs_packing
from cupygemm.views.packing import Packing, packing_of
from cupygemm.views.packing_cost import cupy_us, own_us, pack_us, pays
from cupygemm.views.stacks import Stack, pose_stack
from tests.fake_gpu import FakeGpu
from tests.fake_products import SMALL, fresh_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def filled(gpu: FakeGpu, *shape: int, dtype: str = "float16", seed: int = 0) -> Any:
    array = gpu.empty(shape, numpy_dtype(dtype))
    array[...] = np.random.default_rng(seed).integers(-2, 3, shape)
    return array


def contents(gpu: FakeGpu, operand: Any) -> Any:
    """What lies where a `Stack` says."""
    spread = sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
    memory = gpu.span(operand.data.ptr, operand.data.ptr + spread + operand.dtype.itemsize)
    return np.ndarray(operand.shape, operand.dtype, memory, 0, operand.strides)


VIEWS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "odd rows": ((9, 63), lambda x: x),
    "odd columns": ((63, 9), lambda x: x.T),
    "one element in": ((12, 24), lambda x: x[1:, 1:]),
    "every second column": ((12, 64), lambda x: x[:, ::2]),
    "every third row and fifth column": ((31, 64), lambda x: x[::3, ::5]),
    "every second column, transposed": ((12, 64), lambda x: x[:, ::2].T),
    "columns backwards": ((12, 64), lambda x: x[:, ::-1]),
    "rows backwards": ((12, 64), lambda x: x[::-1]),
    "a row for all": ((1, 64), lambda x: np.broadcast_to(x, (12, 64), subok=True)),
    "a column for all": ((12, 1), lambda x: np.broadcast_to(x, (12, 64), subok=True)),
    "one row, elements apart": ((1, 64), lambda x: x[:, ::2]),
    "one column, elements apart": ((64, 3), lambda x: x[:, :1]),
    "one row, one element in": ((1, 64), lambda x: x[:, 1:]),
    "one element, one element in": ((1, 64), lambda x: x[:, 1:2]),
    "rows of more than a line": ((5, 1025), lambda x: x),
    "a stack of odd rows": ((3, 9, 63), lambda x: x),
    "a stack of odd columns": ((3, 63, 9), lambda x: x.swapaxes(1, 2)),
    "a stack of matrices not 16 bytes apart": ((3, 65), lambda x: x[:, None, :64]),
    "a stack backwards": ((3, 8, 64), lambda x: x[::-1]),
    "a stack, its axis last": ((8, 24, 3), lambda x: x.transpose(2, 0, 1)),
    "a stack of steps": ((3, 9, 64), lambda x: x[:, ::2, ::3]),
}
"""Of shapes as allocated, what TMA cannot read."""


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_copy_is_the_operand_as_tma_can_read_it(gpu: FakeGpu, name: str, dtype: str) -> None:
    shape, view = VIEWS[name]
    a = view(filled(gpu, *shape, dtype=dtype))
    assert needs_packing(a) is not None
    b = filled(gpu, *a.shape[:-2], a.shape[-1], 16, dtype=dtype)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    left, right = packed(a, b)
    assert right is b
    assert np.array_equal(bits(contents(gpu, left)), bits(a))
    assert misaligned_reason(left, packed.layout[0] == "t") is None
    assert (left.ndim, left.shape, left.dtype, left.device) == (a.ndim, a.shape, a.dtype, a.device)
    assert [each.operands for each in gpu.packed] == [1]


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_row_has_beyond_the_matrix_is_zeros(gpu: FakeGpu, name: str) -> None:
    shape, view = VIEWS[name]
    a = view(filled(gpu, *shape))
    b = filled(gpu, *a.shape[:-2], a.shape[-1], 16)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    copy, buffer = packed.copies[0], gpu.empty(packed.buffer_bytes + 512, np.uint8)  # full of NaN
    assert copy is not None
    packed(a, b, buffer)
    rows = buffer[: copy.bytes].view(np.uint16).reshape(copy.matrices, copy.rows, copy.pitch)
    assert not rows[..., copy.columns :].any()
    assert bool((buffer[copy.bytes :] == 0xFF).all())


def test_copies_are_contiguous_where_elements_lie_closest_together(gpu: FakeGpu) -> None:
    def found(array: Any) -> tuple[bool, int, int]:
        copy = copy_of(array)
        assert isinstance(copy, Copy)
        return copy.transposed, copy.columns, copy.pitch

    x = filled(gpu, 40, 64)
    assert found(x[:, ::2]) == (False, 32, 32)
    assert found(x[:, ::2].T) == (True, 32, 32)
    assert found(x[:33, 1:2]) == (True, 33, 40)  # rows of one element would take 16 bytes each
    assert found(x[:1, ::3]) == (False, 22, 24)
    assert found(np.broadcast_to(x[:1, 1:], (5, 63), subok=True)) == (False, 63, 64)
    # A row of a column that is the same for all is 1 apart, and elements of 0 are read one by one.
    assert found(np.broadcast_to(x[:1, 1:40].T, (39, 5), subok=True)) == (True, 39, 40)
    assert found(filled(gpu, 3, 511)) == (False, 511, 512)
    assert found(filled(gpu, 3, 515)) == (False, 515, 576)


def test_one_matrix_for_all_products_is_copied_once(gpu: FakeGpu) -> None:
    posed = pose_stack(filled(gpu, 5, 9, 63), filled(gpu, 63, 7))
    assert posed is not None
    packed = packing_of(posed.a, posed.b)
    assert isinstance(packed, Packing)
    assert [copy and copy.matrices for copy in packed.copies] == [5, 1]
    _, right = packed(posed.a, posed.b)
    assert right.strides[0] == 0
    assert right.shape == (5, 63, 7)
    assert gpu.packed[0].operands == 2


def test_a_matrix_and_its_transpose_are_copied_once(gpu: FakeGpu) -> None:
    x = filled(gpu, 9, 63)
    packed = packing_of(x, x.T)
    assert isinstance(packed, Packing)
    left, right = packed(x, x.T)
    assert left.data.ptr == right.data.ptr
    assert np.array_equal(contents(gpu, right), x.T)
    other = filled(gpu, 9, 63, seed=1)
    left, right = packed(x, other.T)
    assert np.array_equal(contents(gpu, right), other.T)
    assert np.array_equal(contents(gpu, left), x)
    assert [each.operands for each in gpu.packed] == [1, 2]


def test_what_tma_reads_needs_no_copy(gpu: FakeGpu) -> None:
    x = filled(gpu, 16, 64)
    for each in (x, x.T, x[:, 8:], x[::2], x[3:4, :9]):
        assert needs_packing(each) is None
        assert packing_of(each, filled(gpu, each.shape[1], 8)) is None


@pytest.mark.parametrize("name", VIEWS)
def test_a_span_is_from_the_first_byte_to_the_last(gpu: FakeGpu, name: str) -> None:
    shape, view = VIEWS[name]
    a = view(filled(gpu, *shape))
    copy = copy_of(a)
    assert isinstance(copy, Copy)
    assert tuple(a.data.ptr + 2 * end for end in copy.span) == np.lib.array_utils.byte_bounds(a)


def test_what_cannot_be_copied_is_said(gpu: FakeGpu) -> None:
    fine = filled(gpu, 63, 8)
    wide = filled(gpu, 9, 63, dtype="float32")
    assert packing_of(wide, fine) == "a cannot be copied for TMA: it is float32: float16 and bfloat16 are copied"
    between = gpu.empty(400, np.uint8)[1:379].view(np.float16).reshape(3, 63)
    assert "between elements" in str(packing_of(between, fine))
    assert "no elements" in str(copy_of(filled(gpu, 0, 63)))
    data, device = SimpleNamespace(ptr=2), SimpleNamespace(id=0)
    huge = Stack((2**20, 2**15), (2**16, 2), np.dtype(np.float16), data, device)
    assert str(packing_of(fine.T, huge)) == (
        "b cannot be copied for TMA: its copy would take 64 GiB, and at most 32 GiB are copied"
    )
    with pytest.raises(ProblemError, match="a cannot be copied for TMA: it is float32"):
        Packing(wide, fine)


def test_a_packing_is_for_operands_of_one_kind(gpu: FakeGpu) -> None:
    a, b = filled(gpu, 9, 63), filled(gpu, 63, 8)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    for other in (filled(gpu, 8, 63), filled(gpu, 9, 64)[:, :63], filled(gpu, 9, 63, dtype="bfloat16")):
        with pytest.raises(ProblemError, match="made for operands"):
            packed(other, b)
    for buffer in (gpu.empty(packed.buffer_bytes - 1, np.uint8), gpu.empty(packed.buffer_bytes + 16, np.uint8)[16:]):
        with pytest.raises(ProblemError, match=f"{packed.buffer_bytes} at a multiple of 256 are needed"):
            packed(a, b, buffer)
    assert gpu.packed == []


def test_a_capture_needs_a_buffer_and_the_kernel(gpu: FakeGpu) -> None:
    a, b = filled(gpu, 9, 63), filled(gpu, 63, 8)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    buffer = gpu.empty(packed.buffer_bytes, np.uint8)
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match="is not loaded"):
        packed(a, b, buffer)
    gpu.stream.end_capture()
    packed.load()
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match="a is copied for TMA: rows are 126 bytes apart"):
        packed(a, b)
    left, _ = packed(a, b, buffer)
    graph = gpu.stream.end_capture()
    a[...] = 1
    graph.launch()
    assert np.array_equal(contents(gpu, left), a)


@pytest.mark.parametrize("rows", [3, 40, 2200, 5000])
def test_threads_take_several_chunks_of_large_operands(gpu: FakeGpu, rows: int) -> None:
    """A row of 1023 elements is 128 chunks; 132 SMs hold 135,168 threads."""
    a, b = filled(gpu, rows, 1023), filled(gpu, 1023, 3)
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    left, right = packed(a, b)
    assert np.array_equal(bits(contents(gpu, left)), bits(a))
    assert np.array_equal(bits(contents(gpu, right)), bits(b))
    per_thread = {3: 1, 40: 1, 2200: 2, 5000: 4}[rows]
    blocks = -(-rows * 128 // (256 * per_thread))
    assert [(each.grid, each.operands) for each in gpu.packed] == [(blocks + 4, 2)]


def test_numbers_of_threads_and_chunks_agree_with_the_page() -> None:
    page = cuda_sources()[pack_kernel.PAGE]
    constants = (pack_kernel.THREADS, pack_kernel.MAX_THREAD_CHUNKS, pack_kernel.CHUNK_ELEMENTS)
    for name, value in zip(("PACK_THREADS", "PACK_CHUNKS", "CHUNK_ELEMENTS"), constants, strict=True):
        assert f"constexpr int {name} = {value};" in page
    for struct in (pack_kernel.PackedOperand, pack_kernel.PackArguments):
        body = page.partition(f"struct {struct.__name__} {{")[2].partition("}")[0]
        assert [line.split()[-1].partition("[")[0].strip(";") for line in body.strip().splitlines()] == [
            name for name, _ in struct._fields_
        ]


@pytest.mark.parametrize("name", ["odd rows", "odd columns", "every second column", "columns backwards"])
def test_a_plan_multiplies_the_copies(gpu: FakeGpu, name: str) -> None:
    shape, view = VIEWS[name]
    a = view(filled(gpu, *shape))
    b = filled(gpu, 7, a.shape[1], seed=1).T
    packed = packing_of(a, b)
    assert isinstance(packed, Packing)
    problem = Problem(a.shape[0], 7, a.shape[1], layout=packed.layout)
    plan = Plan(problem, LoadedKernel(gpu.compile(KernelSpec.of(problem), SMALL.swapped(store_stages=0))))
    out = gpu.empty((a.shape[0], 7), np.dtype(np.float16))
    plan(*packed(a, b), out)
    assert np.array_equal(out, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


def square(gpu: FakeGpu, size: int) -> tuple[Problem, Packing, Any, Any]:
    """What would be multiplied: nothing is read, so nothing need be there."""
    data, device = SimpleNamespace(ptr=256), SimpleNamespace(id=0)
    a = Stack((size, size), (2 * size, 2), np.dtype(np.float16), data, device)
    packed = packing_of(a, a)
    assert isinstance(packed, Packing)
    return Problem(size, size, size), packed, a, a


def test_large_products_are_worth_a_copy_and_small_ones_are_not(gpu: FakeGpu) -> None:
    assert pays(*square(gpu, 8191))
    assert pays(*square(gpu, 4095))
    assert not pays(*square(gpu, 255))
    # What was measured goes before the estimate.
    problem, packed, a, b = square(gpu, 4095)
    assert not pays(problem, packed, a, b, own_kernel_us=cupy_us(problem, a, b))


def test_stacks_that_cupy_refuses_are_worth_any_copy(gpu: FakeGpu) -> None:
    for dtype, worth in (("float16", False), ("bfloat16", True)):
        a, b = filled(gpu, 2, 3, 9, dtype=dtype), filled(gpu, 2, 9, 3, dtype=dtype)
        problem = Problem(3, 3, 9, 2, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype)
        packed = packing_of(a, b)
        assert isinstance(packed, Packing)
        assert pays(problem, packed, a, b) is worth


def test_estimates_grow_with_what_is_moved(gpu: FakeGpu) -> None:
    small, large = square(gpu, 1023), square(gpu, 4095)
    assert pack_us(small[1]) < pack_us(large[1]) < own_us(large[0]) < cupy_us(large[0], *large[2:])
    # 2 · 4095² elements, read and written with a column of padding, at 3.5 TB/s
    assert pack_us(large[1]) == pytest.approx(2.0 + 2 * 4095 * (4095 + 4096) * 2 / 3.5e6)
    x = filled(gpu, 64, 512)
    whole, half = (packing_of(view, filled(gpu, 256, 8)) for view in (x[:, 1:257], x[:, ::2]))
    assert isinstance(whole, Packing)
    assert isinstance(half, Packing)
    assert pack_us(whole) < pack_us(half)  # which reads what lies between


def test_cupy_is_taken_to_copy_what_is_not_contiguous(gpu: FakeGpu) -> None:
    x, b = filled(gpu, 512, 514), filled(gpu, 512, 64)
    problem = Problem(512, 64, 512)
    dense = filled(gpu, 512, 512)
    assert cupy_us(problem, x[:, 1:513], b) > cupy_us(problem, dense, b)
    assert cupy_us(problem, dense.T, b) == cupy_us(problem, dense, b)
    # An address between multiples of 16 is as bad for cuBLAS as rows are.
    square_ = Problem(4096, 4096, 4096)
    data, device = SimpleNamespace(ptr=256), SimpleNamespace(id=0)
    at = [
        Stack((4096, 4096), (8192, 2), np.dtype(np.float16), SimpleNamespace(ptr=data.ptr + offset), device)
        for offset in (0, 8, 4, 2)
    ]
    times = [cupy_us(square_, each, at[0]) for each in at]
    assert times == sorted(times)
    assert len(set(times)) == 4
    # CuPy widens stacks.
    assert cupy_us(Problem(512, 64, 512, 4), dense[None], b[None]) > cupy_us(Problem(2048, 64, 512), dense, b)
    # What is forecast goes before that, but for an address of which a forecast knows nothing.
    assert cupy_us(square_, at[0], at[0], 123.0) == 123.0
    assert cupy_us(square_, at[3], at[0], 123.0) == times[3]
    assert cupy_us(problem, x[:, 1:513], b, 123.0) > 123.0


def test_what_is_forecast_decides(gpu: FakeGpu) -> None:
    problem, packed, a, b = square(gpu, 255)
    assert pays(problem, packed, a, b, own_kernel_us=1.0, cublas_us=10.0)
    assert not pays(problem, packed, a, b, own_kernel_us=8.0, cublas_us=10.0)


def test_a_device_has_the_kernel_once(gpu: FakeGpu) -> None:
    assert not pack_kernel.is_loaded(0)
    first = packing.pack_kernel(0)
    assert pack_kernel.is_loaded(0)
    assert packing.pack_kernel(0) is first
    assert not pack_kernel.is_loaded(1)
