"""Rows and files of results: the fields that other people's scripts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cupygemm.config import KernelConfig
from cupygemm.errors import VerificationError
from cupygemm.kernels.operands import Operands
from cupygemm.measuring.benchmark import benchmark, result_row
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.telemetry import Reading
from cupygemm.measuring.timing import THOROUGH, Effort, Timing
from cupygemm.measuring.verify import Verdict
from cupygemm.names import RESIDENT, ROTATED
from cupygemm.problem import Problem

PROBLEM = Problem(2048, 2048, 4096)
CONFIG = KernelConfig(128, 256, 64, 3, 2, False, 1, 1, False, 8, 40, 1, 2)

FIELDS = {
    *("m", "n", "k", "batch", "a_dtype", "b_dtype", "out_dtype", "layout", "epilogue", "scales", "accumulate", "pdl"),
    *("mode", "bytes_rotated", "kernel", "cupygemm_us", "cublas_us", "cublaslt_us", "torch_us", "error", "spread"),
    "config",
}


class FakeBench:
    """A bench with fixed times."""

    problem = PROBLEM

    def __init__(self, verdict: Verdict, algorithm: Any = None) -> None:
        self.verdict = verdict
        self.algorithm = algorithm
        self.timed: list[str] = []

    def verify(self, launch: Any) -> Verdict:
        return self.verdict

    def cublaslt(self, mode: str) -> Any:
        return self.algorithm

    def time(self, launches: dict[str, Any], effort: Effort, mode: str) -> Timing:
        assert effort == THOROUGH
        self.timed = [*launches, "cublas"]
        times = {
            "cupygemm": [40.0, 44.0, 42.0, 41.0, 43.0],
            "cublas": [45.0, 46.0, 44.0],
            "cublaslt": [43.5],
            "torch": [47.0],
        }
        return Timing({name: times[name] for name in self.timed}, Reading(1755, 690.0))

    def bytes_rotated(self, mode: str) -> int:
        return PROBLEM.compulsory_bytes * (3 if mode == ROTATED else 1)


class FakeAlgorithm:
    def run(self, operands: Operands) -> None:
        raise AssertionError("not called here")


def launch(operands: Operands) -> None:
    raise AssertionError("not called here")


RIGHT = Verdict(2.1e-4, 3e-4, 0.4)


def test_a_row_has_every_field_of_the_schema() -> None:
    bench = FakeBench(RIGHT, FakeAlgorithm())
    row = benchmark(bench, launch, CONFIG)  # type: ignore[arg-type]
    assert set(row) >= FIELDS
    assert bench.timed == ["cupygemm", "cublaslt", "cublas"]
    assert (row["m"], row["n"], row["k"], row["layout"], row["out_dtype"]) == (2048, 2048, 4096, "nn", "float16")
    assert (row["cupygemm_us"], row["cublas_us"], row["cublaslt_us"], row["torch_us"]) == (42.0, 45.0, 43.5, None)
    assert (row["mode"], row["bytes_rotated"], row["pdl"], row["kernel"]) == ("rotated", 125829120, False, "own")
    assert row["error"] == 2.1e-4
    assert row["spread"] == pytest.approx(1.0 / 42.0)
    # 45 / 40, 46 / 44 and 44 / 42, of the rounds that both have.
    low, middle, high = sorted((45 / 40, 46 / 44, 44 / 42))
    assert row["ratio_spread"] == pytest.approx((high - low) / 4 / middle)
    assert KernelConfig.from_dict(row["config"]) == CONFIG
    assert (row["sm_clock_mhz"], row["power_w"]) == (1755, 690.0)


def test_a_row_says_that_launches_were_dependent() -> None:
    timing = Timing({"cupygemm": [3.0], "cublas": [4.0]})
    rows = [result_row(PROBLEM, timing, 1e-4, CONFIG, "rotated", 0, dependent) for dependent in (False, True)]
    assert [row["pdl"] for row in rows] == [False, True]


def test_what_was_not_measured_is_null() -> None:
    row = benchmark(FakeBench(RIGHT), launch, mode=RESIDENT, torch=launch)  # type: ignore[arg-type]
    assert (row["cublaslt_us"], row["torch_us"]) == (None, 47.0)
    assert (row["mode"], row["bytes_rotated"]) == ("resident", PROBLEM.compulsory_bytes)
    assert (row["kernel"], row["config"]) == ("cublas", None)


def test_a_wrong_result_is_not_reported() -> None:
    with pytest.raises(VerificationError, match="2048x2048x4096 float16 nn: relative Frobenius"):
        benchmark(FakeBench(Verdict(2e-3, 3e-4, 0.4)), launch, CONFIG)  # type: ignore[arg-type]


def test_cublas_as_the_candidate_is_held_to_the_bound_of_a_baseline() -> None:
    # It may add up split-K partials in 16 bits; a product that is wrong outright is still none.
    loose, wrong = Verdict(2e-3, 3e-4, 4.0), Verdict(2e-2, 3e-4, 40.0)
    assert benchmark(FakeBench(loose), launch)["error"] == 2e-3  # type: ignore[arg-type]
    with pytest.raises(VerificationError):
        benchmark(FakeBench(wrong), launch)  # type: ignore[arg-type]


def test_a_file_holds_its_command_provenance_and_rows(tmp_path: Path) -> None:
    row = result_row(PROBLEM, Timing({"cupygemm": [1.0, 2.0, 3.0]}), 1e-4, CONFIG, ROTATED, 1)
    path = tmp_path / "results" / "headline.json"
    facts = {"device": "NVIDIA H200"}
    write_results(path, times_document("headline", "cupygemm bench", facts, [row], suite="headline"))
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "schema": "cupygemm.results/1",
        "name": "headline",
        "command": "cupygemm bench",
        "suite": "headline",
        "provenance": {"device": "NVIDIA H200"},
        "rows": [row],
    }


def test_a_number_that_json_does_not_have_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "headline.json"
    write_results(path, times_document("headline", "", {}, []))
    before = path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="JSON"):
        write_results(path, times_document("headline", "", {}, [{"error": float("nan")}]))
    assert path.read_text(encoding="utf-8") == before
