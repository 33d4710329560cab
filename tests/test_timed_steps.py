"""bench/shared/timed_steps.py on a fake GPU: what is timed, what fails, and what a bundle gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.shared import timed_steps
from bench.shared.timed_steps import Failures, fastest, keep, legal, measured, ready
from cupygemm.bundles.bundle import Bundle
from cupygemm.config import KernelConfig
from cupygemm.errors import CompileError, LaunchError, VerificationError
from cupygemm.measuring.measure import Bench
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from tests.fake_baselines import BASELINE_US, measuring_gpu
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import product
from tests.fake_products import SMALL

PROBLEM = Problem(24, 40, 64)
FACTS = {"commit": "abc", "date": "2026-11-30"}


def nothing(a: Any, b: Any, out: Any) -> None:
    """Leaves the result as it was."""


def spoiling(a: Any, b: Any, out: Any) -> None:
    """Writes into an operand."""
    a[...] = 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Kernels take as many µs as they have stages; of 5 and 10 they are wrong, of 6, 7 and 9 there are none."""
    gpu = measuring_gpu(monkeypatch)

    def compile_kernel(spec: Any, config: KernelConfig) -> SimpleNamespace:
        if config.stages == 6:
            raise CompileError("NVRTC refuses it", log="")
        return SimpleNamespace(config=config, advisories=("C7512",) if config.stages == 9 else ())

    def plan(problem: Problem, kernel: SimpleNamespace, dependent_launch: bool) -> SimpleNamespace:
        stages = kernel.config.stages
        if stages == 7:
            raise LaunchError("the driver refuses it")
        computes = {5: nothing, 10: spoiling}.get(stages, product)
        return SimpleNamespace(launch=gpu.kernel(computes, float(stages)))

    monkeypatch.setattr(timed_steps, "compile_kernel", compile_kernel)
    monkeypatch.setattr(timed_steps, "LoadedKernel", lambda compiled: compiled)
    monkeypatch.setattr(timed_steps, "Plan", plan)
    return gpu


STEPS = {f"{stages} stages": SMALL.swapped(stages=stages) for stages in (4, 5, 6, 7, 9, 8, 3)}


def test_what_fails_is_kept_with_how_and_why(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    failures: Failures = []
    launches, errors = ready(Bench(PROBLEM), STEPS, False, failures)
    assert list(launches) == list(errors) == ["4 stages", "8 stages", "3 stages"]
    assert [(failure["step"], failure["status"]) for failure in failures] == [
        ("5 stages", "wrong_result"),
        ("6 stages", "compile_failed"),
        ("7 stages", "launch_failed"),
        ("9 stages", "serialised"),
    ]
    assert failures[1]["detail"] == "NVRTC refuses it"
    assert {Problem.from_dict({k: each[k] for k in Problem.__dataclass_fields__}) for each in failures} == {PROBLEM}
    assert "7 stages: the driver refuses it" in capsys.readouterr().err


def test_what_spoils_operands_ends_it(gpu: FakeGpu) -> None:
    failures: Failures = []
    with pytest.raises(VerificationError, match="10 stages: it has spoilt operands"):
        ready(Bench(PROBLEM), {"10 stages": SMALL.swapped(stages=10), **STEPS}, False, failures)
    assert [failure["status"] for failure in failures] == ["wrong_result"]


def test_those_that_run_are_ranked_and_measured_beside_both_baselines(gpu: FakeGpu) -> None:
    bench = Bench(PROBLEM)
    launches, errors = ready(bench, STEPS, False, [])
    last = fastest(bench, launches, 2)
    assert list(last) == ["3 stages", "4 stages"]
    rows = list(measured(bench, STEPS, last, errors, ROTATED, False))
    assert [(row["step"], row["cupygemm_us"]) for row in rows] == [("3 stages", 3.0), ("4 stages", 4.0)]
    assert all((row["cublas_us"], row["cublaslt_us"]) == (BASELINE_US, 8.0) for row in rows)
    assert [KernelConfig.from_dict(row["config"]) for row in rows] == [STEPS[name] for name in last]


def test_a_bundle_keeps_the_better_entry_or_gets_the_one_it_is_told(gpu: FakeGpu, tmp_path: Path) -> None:
    bench, path = Bench(PROBLEM), tmp_path / "b.yaml"
    launches, errors = ready(bench, STEPS, False, [])
    rows = {row["step"]: row for row in measured(bench, STEPS, launches, errors, ROTATED, False)}

    def kept() -> KernelConfig:
        (entry,) = Bundle.load(path).entries
        return entry.config

    keep(path, PROBLEM, rows["4 stages"], 3, FACTS)
    assert kept() == STEPS["4 stages"]
    keep(path, PROBLEM, rows["8 stages"], 3, FACTS)
    assert kept() == STEPS["4 stages"]
    keep(path, PROBLEM, rows["3 stages"], 3, FACTS)
    assert kept() == STEPS["3 stages"]
    keep(path, PROBLEM, rows["8 stages"], 5, FACTS, strategy="grid", in_any_case=True)
    (entry,) = Bundle.load(path).entries
    assert (entry.config, entry.search.strategy, entry.search.evaluations) == (STEPS["8 stages"], "grid", 5)
    assert entry.speedup == pytest.approx(BASELINE_US / 8)


def test_what_is_legal_comes_once_and_is_stored_as_it_can_be() -> None:
    ragged = Problem(64, 65, 64)
    stored = SMALL.swapped(store_stages=1)
    direct = stored.swapped(store_stages=0)
    assert list(legal(ragged, [stored, direct, SMALL.swapped(stages=99)])) == [direct]
