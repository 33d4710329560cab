"""cuBLAS and cublasLt on a fake GPU, for what measures."""

from __future__ import annotations

from typing import Any

import pytest

from cupygemm.device import H200
from cupygemm.epilogue import Epilogue
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import measure, telemetry
from cupygemm.measuring.cublas import NOT_SUPPORTED, CublasError
from cupygemm.measuring.measuring_stream import stream
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import product

BASELINE_US = 10.0


def measuring_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU on which `Bench` measures, beside a cuBLAS that takes `BASELINE_US`."""
    gpu = FakeGpu()
    cupy = gpu.cupy
    stream.cache_clear()
    monkeypatch.setattr(driver, "cupy", lambda: cupy)
    monkeypatch.setattr(driver, "device_spec", lambda device: H200)
    monkeypatch.setattr(telemetry, "read", lambda device: telemetry.Reading(1755, 640.5))
    monkeypatch.setattr(measure, "Cublas", lambda: FakeCublas(gpu))
    monkeypatch.setattr(measure, "CublasLt", lambda: FakeLt(gpu))
    return gpu


class FakeCublas:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gemm = gpu.kernel(product, BASELINE_US)


class FakeLt:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def algorithms(self, operands: Operands, count: int, epilogue: Epilogue) -> list[Any]:
        return [FakeAlgorithm(self.gpu, cost) for cost in (12.0, None, 8.0, 9.0)]


class FakeAlgorithm:
    def __init__(self, gpu: FakeGpu, cost_us: float | None) -> None:
        self.cost_us = cost_us
        self.run = refuse if cost_us is None else gpu.kernel(product, cost_us)

    def describe(self) -> dict[str, int]:
        return {"id": int(self.cost_us or 0)}


def refuse(operands: Operands) -> None:
    raise CublasError("cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED", NOT_SUPPORTED)
