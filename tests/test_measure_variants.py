"""Stacks and epilogues in the measuring protocol, on a fake GPU: what is verified, against what, and the row of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupygemm.epilogue import Epilogue
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.measurement import Status
from cupygemm.measuring import measure, telemetry
from cupygemm.measuring.benchmark import benchmark
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import stream
from cupygemm.measuring.timing import Effort, num_sets
from cupygemm.problem import Problem
from cupygemm.reports import report
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import computed
from tests.fake_products import SMALL

PROBLEMS = [
    Problem(24, 40, 64, 3),
    Problem(24, 40, 64, epilogue="scaled"),
    Problem(24, 40, 64, epilogue="bias_n+gelu_tanh"),
    Problem(24, 40, 64, epilogue="bias_m+residual+silu"),
    Problem(24, 40, 64, 3, epilogue="bias_n+residual+relu"),
]
SHORT = Effort(trial_rounds=2, rounds=4)


class FakeCublas:
    """alpha · a · b, rounded to the dtype of out."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def gemm(self, operands: Operands) -> None:
        total = operands._replace(bias=None, residual=None)
        timed(self.gpu, "none", 10.0)(total)


class FakeLt:
    """Has what cublasLt has, and notes what it is asked for."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def algorithms(self, operands: Operands, count: int, epilogue: Epilogue) -> list[Any]:
        self.gpu.asked = epilogue  # type: ignore[attr-defined]
        self.run = timed(self.gpu, str(epilogue), 9.0)
        return [self] if epilogue.activation != "silu" else []


def timed(gpu: FakeGpu, epilogue: str, cost_us: float) -> Launch:
    """What computes a product with an epilogue in so many µs."""

    def launch(operands: Operands) -> None:
        def run() -> None:
            operands.out[...] = computed(operands, epilogue)
            gpu.clock_us += cost_us

        gpu.run(run)

    return launch


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    stream.cache_clear()
    monkeypatch.setattr(measure, "Cublas", lambda: FakeCublas(gpu))
    monkeypatch.setattr(measure, "CublasLt", lambda: FakeLt(gpu))
    monkeypatch.setattr(telemetry, "read", lambda device: telemetry.Reading(1755, 640.5))
    return gpu


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_row_names_stack_and_epilogue(gpu: FakeGpu, problem: Problem) -> None:
    bench = Bench(problem)
    assert bench.has_baseline
    row = benchmark(bench, timed(gpu, problem.epilogue, 8.0), SMALL, effort=SHORT)
    assert (row["batch"], row["epilogue"]) == (problem.batch, problem.epilogue)
    assert (row["cupygemm_us"], row["cublas_us"]) == (pytest.approx(8.0), pytest.approx(10.0))
    # cublasLt does all of it, or is not compared with.
    assert row["cublaslt_us"] == (None if "silu" in problem.epilogue else pytest.approx(9.0))
    assert str(gpu.asked) == problem.epilogue  # type: ignore[attr-defined]
    assert row["bytes_rotated"] == num_sets(problem, 60 * 2**20) * problem.compulsory_bytes
    shown = report.render_times({"rows": [row], "provenance": {}})
    assert ("3 of 24×40×64" in shown) == (problem.batch == 3)
    assert f"| {problem.epilogue} |" in shown or problem.epilogue == "none"
    assert (problem.epilogue in report.row_name(row)) == (problem.epilogue != "none")


@pytest.mark.parametrize("problem", PROBLEMS[2:], ids=str)
def test_a_candidate_without_the_last_term_is_wrong(gpu: FakeGpu, problem: Problem) -> None:
    less = problem.epilogue.rpartition("+")[0]
    found = Bench(problem).measure(timed(gpu, less, 1.0), SHORT)
    assert found.status is Status.WRONG_RESULT
    assert found.us is None


def test_a_candidate_that_writes_the_first_matrix_alone_is_wrong(gpu: FakeGpu) -> None:
    def first(operands: Operands) -> None:
        operands.out[0] = (operands.a[0].astype(np.float32) @ operands.b[0].astype(np.float32)).astype(np.float16)

    found = Bench(PROBLEMS[0]).measure(lambda operands: gpu.run(lambda: first(operands)), SHORT)
    assert (found.status, found.detail) == (Status.WRONG_RESULT, "an element is not finite or was not written")
