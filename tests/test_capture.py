"""Calls while a CUDA graph is captured, on a fake GPU: what is loaded is captured, all else is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError, CompileError
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import CudaError
from tests.fake_products import LARGE, PROBLEM, bundle_of, fresh_gpu, operands, plain, right


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def test_a_loaded_kernel_is_captured_and_replayed(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = cupygemm.matmul(a, b)
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b, out=out)
    graph = gpu.stream.end_capture()
    a[...] += 1
    out[...] = 0
    graph.launch()
    np.testing.assert_array_equal(plain(out), right(a, b))


def test_a_kernel_that_is_not_loaded_cannot_be_captured(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    for call in (cupygemm.matmul, cupygemm.explain):
        gpu.stream.begin_capture()
        with pytest.raises(CaptureError, match=r"24x40x16 float16 nn: .* before the capture"):
            call(a, b)
        assert gpu.stream.end_capture().launches == []
    assert gpu.compiled == []
    # The refusal is not kept: afterwards the product is loaded as usual, and can be captured.
    cupygemm.matmul(a, b)
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b)
    assert len(gpu.stream.end_capture().launches) == 1


def test_a_loaded_kernel_stays_usable_when_bundles_come_and_go(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, m=8)))
    a, b = operands(gpu)
    cupygemm.matmul(a, b)
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE)):
        pass
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b)
    cupygemm.matmul(a[:8], b)  # another problem of the kernel that is loaded
    assert len(gpu.stream.end_capture().launches) == 2
    assert (len(gpu.compiled), gpu.fallbacks) == (1, [])


def test_a_broken_entry_is_not_tried_again_under_capture(gpu: FakeGpu) -> None:
    gpu.refused[LARGE] = CompileError("NVRTC refused the kernel: no", "log")
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    a, b = operands(gpu)
    cupygemm.matmul(a, b)
    cupygemm.use(bundle_of(Problem(8, 8, 8))).undo()
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b)
    assert len(gpu.stream.end_capture().launches) == 1


def test_cublas_is_not_captured(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    cupygemm.matmul(a, b)
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match=r"cannot be captured .*: no bundle in force has a config for it"):
        cupygemm.matmul(b.T, a.T)
    with pytest.raises(CaptureError, match=r"cannot be captured .*: casting: options of cupy\.matmul"):
        cupygemm.matmul(a, b, casting="no")
    assert cupygemm.explain(b.T, a.T).kernel == "cublas"
    assert gpu.stream.end_capture().launches == []
    assert gpu.fallbacks == []


def test_the_legacy_stream_is_not_asked_while_another_captures(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    gpu.stream.begin_capture()
    gpu.stream.ptr = 0
    with pytest.raises(CudaError):
        gpu.stream.is_capturing()
    assert cupygemm.explain(a, b).kernel == "own"
    assert cupygemm.matmul(a.astype(np.float32), b.astype(np.float32)).dtype == np.float32
