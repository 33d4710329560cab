"""shared/shapes.py, survey.py and unseen.py of bench/ on a fake GPU: which shapes, what is timed, what is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bench import survey, unseen
from bench.shared import shapes, survey_jobs
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.choosing.choice import Choice
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError, LaunchError
from cupygemm.kernels import compiler, driver
from cupygemm.kernels.operands import Operands
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring import measure, provenance, telemetry
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import stream
from cupygemm.problem import Problem
from cupygemm.search.spaces.space import FIELD_NAMES
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import product
from tests.fake_products import bundle_of

ROOT = Path(__file__).parent.parent

TUNED = Problem(24, 40, 16)
CONFIG = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, True, 4, 40, 1, 1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    stream.cache_clear()
    monkeypatch.setattr(telemetry, "read", lambda device: telemetry.Reading(1755, 640.5))
    monkeypatch.setattr(unseen, "WARM_US", 0.0)
    monkeypatch.setattr(survey_jobs, "WARM_US", 0.0)
    monkeypatch.setattr(measure, "Cublas", lambda: FakeCublas(gpu))
    monkeypatch.setattr(measure, "CublasLt", lambda: FakeLt(gpu))
    driver.cupy().cuda.runtime.getDeviceProperties = lambda device: {"totalGlobalMem": 2**30}
    return gpu


@pytest.fixture
def quick(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take 8 µs: those of a plan do not move the clock by themselves."""
    launch = gpu.kernel(product, 8.0)

    def choose_for(self: Dispatcher, *arguments: Any) -> Any:
        choice, plan = Dispatcher.choose_for(self, *arguments)
        return choice, None if plan is None else SimpleNamespace(launch=launch)

    timed = type("Timed", (Dispatcher,), {"choose_for": choose_for})
    monkeypatch.setattr(unseen, "Dispatcher", lambda: timed({"tuned": bundle_of(TUNED)}))
    monkeypatch.setattr(survey_jobs, "Plan", lambda *_: SimpleNamespace(launch=launch))


class FakeCublas:
    """Takes longer where rows are no multiple of 16 bytes apart."""

    def __init__(self, gpu: FakeGpu) -> None:
        quick, slow = gpu.kernel(product, 10.0), gpu.kernel(product, 30.0)
        self.gemm = lambda operands: (slow if max(operands.b.strides) % 16 else quick)(operands)


class FakeLt:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def algorithms(self, *_: Any) -> list[Any]:
        return [FakeAlgorithm(self.gpu)]


class FakeAlgorithm:
    def __init__(self, gpu: FakeGpu) -> None:
        self.run = gpu.kernel(product, 9.0)


def test_the_shapes_to_test_on() -> None:
    found = shapes.unseen()
    assert len(found) == len(set(found)) == 200
    assert found == shapes.unseen()
    drawn, projections = found[: shapes.DRAWN], found[shapes.DRAWN :]
    assert {problem.m for problem in projections} == set(shapes.TOKENS)
    assert all(problem.layout == "nt" and problem.a_dtype == "bfloat16" for problem in projections)
    sizes = [size for problem in drawn for size in (problem.m, problem.n, problem.k)]
    assert 1 <= min(sizes) <= max(sizes) <= shapes.LARGEST
    eights = [problem.m % 8 == problem.n % 8 == problem.k % 8 == 0 for problem in drawn]
    assert all(eights[::2])
    assert sum(eights[1::2]) < 5
    readable = [problem for problem in found if isinstance(shapes.posed(problem), Problem)]
    assert len(readable) == 153


def test_no_shape_is_learnt_from_and_tested_on() -> None:
    tested = {(problem.m, problem.n, problem.k) for problem in shapes.unseen()}
    learnt = shapes.training(shapes.FURTHER + 60)
    assert len(set(learnt)) == shapes.FURTHER + 60
    assert learnt[:50] == shapes.training(50)
    of_layers = {pair for each in shapes.LEARNT_PROJECTIONS.values() for pair in each}
    further = [problem.m for problem in learnt[shapes.FURTHER :] if (problem.n, problem.k) in of_layers]
    assert set(further) <= set(shapes.FURTHER_TOKENS)
    assert len(further) == 48
    assert not tested & {(problem.m, problem.n, problem.k) for problem in learnt}
    tuned = {(entry.problem.m, entry.problem.n, entry.problem.k) for entry in shipped_bundle().entries}
    assert not tested & tuned
    pairs = {pair for each in shapes.PROJECTIONS.values() for pair in each}
    assert not pairs & {pair for each in shapes.LEARNT_PROJECTIONS.values() for pair in each}


@pytest.mark.parametrize(
    ("problem", "layout"),
    [
        (Problem(24, 40, 64), "nn"),
        (Problem(23, 40, 64, layout="nt"), "nt"),
        (Problem(1, 40, 63), "nn"),
        (Problem(1, 40, 63, layout="tn"), "nn"),
        (Problem(24, 1, 64), "nt"),
        (Problem(24, 41, 64), None),
        (Problem(24, 40, 63), None),
        (Problem(23, 40, 64, layout="tn"), None),
    ],
)
def test_what_matmul_makes_of_operands_without_gaps(problem: Problem, layout: str | None) -> None:
    found = shapes.posed(problem)
    assert (found.layout if isinstance(found, Problem) else None) == layout
    assert isinstance(found, Problem) or found.startswith("TMA cannot read")


def test_what_is_tried_on_a_shape() -> None:
    plans = survey.plans(40, H200)
    assert len(plans) == 40
    for problem, configs in plans:
        assert 4 <= len(configs) == len(set(configs)) <= survey.BEST + survey.TOLD_OTHERWISE + survey.AT_RANDOM
        assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in configs)
    assert plans == survey.plans(40, H200)


def test_kernels_are_timed_with_cublas(gpu: FakeGpu, quick: None) -> None:
    problem = Problem(64, 64, 64)
    compiled = [compiler.compile_kernel(KernelSpec.of(problem), each) for each in (CONFIG, CONFIG.swapped(group=8))]
    outcomes = survey_jobs.confirm(0, problem, compiled)
    assert [each.measurement.status for each in outcomes] == [Status.OK, Status.OK]
    assert outcomes[1].measurement.us == pytest.approx(8.0)
    rounds = survey_jobs.effort(problem, 2).rounds
    assert outcomes[0].measurement.baseline_us == pytest.approx([10.0] * rounds)
    assert len(gpu.replayed) > 3 * rounds


def test_a_kernel_that_cannot_be_launched_is_said(gpu: FakeGpu) -> None:
    problem = Problem(72, 64, 64)
    compiled = compiler.compile_kernel(KernelSpec.of(problem), CONFIG.swapped(stages=3))
    gpu.unloadable.add(compiled.config)
    (outcome,) = survey_jobs.confirm(0, problem, [compiled])
    assert outcome.measurement.status is Status.LAUNCH_FAILED
    assert not outcome.poisoned


def test_cublas_is_timed_on_operands_without_gaps(gpu: FakeGpu) -> None:
    found = survey_jobs.baselines(0, Problem(24, 41, 64))
    assert found == {"cublas_us": pytest.approx(10.0), "contiguous_us": pytest.approx(30.0)}


def test_rounds_are_fewer_where_launches_are_long() -> None:
    assert survey_jobs.effort(Problem(64, 64, 64), 12).rounds == 2 + survey_jobs.MOST_ROUNDS
    assert survey_jobs.effort(Problem(16384, 16384, 16384), 12).rounds == 2 + survey_jobs.LEAST_ROUNDS


class FakeRunner:
    """Answers at once; shapes of `fails` end in errors."""

    device_spec = H200

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails = fails
        self.asked: list[Problem] = []

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compile_ahead(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> int:
        return len(configs)

    def confirm(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        self.asked.append(problem)
        if len(self.asked) - 1 in self.fails:
            raise LaunchError("the GPU is gone")
        good = Measurement(Status.OK, (5.0, 5.0, 5.0), (10.0, 11.0, 12.0), clock_mhz=1755)
        return [*[good] * (len(configs) - 1), Measurement(Status.TIMED_OUT, detail="killed")]

    def baselines(self, problem: Problem) -> dict[str, float]:
        return {"cublas_us": 10.0, "contiguous_us": 30.0}


def start(monkeypatch: pytest.MonkeyPatch, path: Path, runner: FakeRunner, *options: str) -> Any:
    monkeypatch.setattr(survey, "GpuRunner", lambda **_: runner)
    monkeypatch.setattr(provenance, "collect", lambda *_: {"source_digest": compiler.source_digest()})
    return CliRunner().invoke(survey.main, ["--shapes", "12", "-o", str(path), *options])


def test_a_survey_is_a_line_a_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "survey.jsonl"
    result = start(monkeypatch, path, FakeRunner())
    assert result.exit_code == 0, result.output
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert (head["schema"], head["fields"]) == (survey.SCHEMA, list(FIELD_NAMES))
    assert [Problem.from_dict(line["problem"]) for line in lines] == [problem for problem, _ in survey.plans(12, H200)]
    good, failed = lines[0]["rows"][0], lines[0]["rows"][-1]
    assert (good["status"], good["us"], good["ratio"]) == ("ok", 5.0, 2.2)
    assert (failed["status"], failed["detail"]) == ("timed_out", "killed")
    gaps = [line["gaps"] for line in lines if "gaps" in line]
    assert gaps
    assert gaps[0] == {"cublas_us": 10.0, "contiguous_us": 30.0}


def test_a_survey_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "survey.jsonl"
    assert start(monkeypatch, path, FakeRunner()).exit_code == 0
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:5]) + whole[5][:20])
    again = FakeRunner()
    assert start(monkeypatch, path, again).exit_code == 0
    assert len(again.asked) == 8
    told = [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
    assert told == [{**json.loads(line), "seconds": 0} for line in whole]


def test_a_survey_ends_when_time_is_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = FakeRunner()
    result = start(monkeypatch, tmp_path / "survey.jsonl", runner, "--seconds", "0")
    assert result.exit_code == 0
    assert runner.asked == []
    assert "12 left" in result.output


def test_a_shape_that_cannot_be_measured_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "survey.jsonl"
    assert start(monkeypatch, path, FakeRunner(fails=(1, 2, 4))).exit_code == 0
    failed = [line.get("failed") for line in map(json.loads, path.read_text().splitlines()[1:])]
    assert failed == [None, "the GPU is gone", "the GPU is gone", None, "the GPU is gone", *[None] * 7]
    gone = FakeRunner(fails=(3, 4, 5))
    result = start(monkeypatch, tmp_path / "other.jsonl", gone)
    assert result.exit_code == 1
    assert len(gone.asked) == 6


@pytest.mark.parametrize("text", ["no json\n", "[]\n", '{"schema": "cupygemm.survey/1"}\n'])
def test_a_file_that_is_no_survey_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "survey.jsonl"
    path.write_text(text)
    with pytest.raises(FileError, match="name another file"):
        survey.recorded(path)
    assert path.read_text() == text


def test_what_is_decided_is_measured(
    gpu: FakeGpu, quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried = TUNED, Problem(24, 40, 64), Problem(24, 41, 64)
    monkeypatch.setattr(shapes, "unseen", lambda: tried)
    monkeypatch.setattr(unseen, "compile_ahead", lambda kernels: None)
    monkeypatch.setattr(unseen, "is_usable", lambda device: True)
    monkeypatch.setattr(provenance, "collect", lambda *_: {})
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    path = tmp_path / "unseen.json"
    result = CliRunner().invoke(unseen.main, ["-o", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    rows = document["rows"]
    assert [row["kernel"] for row in rows] == ["own", "cublas", "cublas"]
    assert [row["cublas_us"] / row["cupygemm_us"] for row in rows[1:]] == [1.0, 1.0]
    assert (rows[0]["cupygemm_us"], rows[0]["cublas_us"]) == (pytest.approx(8.0), pytest.approx(10.0))
    # Without gaps, as matmul gets them.
    assert rows[2]["cublas_us"] == pytest.approx(30.0)
    assert all(row["decision_us"] > 0 for row in rows)
    assert document["seed"] == shapes.SEED
    assert document["summary"]["share of own kernels"] == pytest.approx(1 / 3, abs=1e-3)
    assert document["summary"]["worst"] <= 1
    assert document["failures"] == []


def test_a_shape_that_fails_is_told_and_the_others_go_on(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shapes, "unseen", lambda: (Problem(32, 40, 64), Problem(24, 40, 64)))
    monkeypatch.setattr(unseen, "compile_ahead", lambda kernels: None)
    monkeypatch.setattr(provenance, "collect", lambda *_: {})
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUPYGEMM_UNSEEN", "off")

    def bench(problem: Problem, device: int) -> Bench:
        if problem.m == 32:
            raise LaunchError("no memory")
        return Bench(problem, device)

    monkeypatch.setattr(unseen, "Bench", bench)
    monkeypatch.setattr(unseen, "is_usable", lambda device: True)
    path = tmp_path / "unseen.json"
    assert CliRunner().invoke(unseen.main, ["-o", str(path)]).exit_code == 1
    document = json.loads(path.read_text())
    assert [failure["detail"] for failure in document["failures"]] == ["no memory"]
    assert [row["m"] for row in document["rows"]] == [24]


def test_copies_and_the_kernel_are_timed_with_what_cupy_does(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(24, 41, 64)
    quick, gaps = gpu.kernel(product, 6.0), []

    def packing(a: Any, b: Any, buffer: Any) -> tuple[Any, Any]:
        gaps.append(max(b.strides) != 82)
        return a, b

    packing.buffer_bytes = 64  # type: ignore[attr-defined]
    own = SimpleNamespace(packing=packing, plan=lambda a, b, out: quick(Operands(a, b, out)))
    decided = SimpleNamespace(own=own, choice=Choice("own", "b is copied for TMA", problem, CONFIG))
    monkeypatch.setattr(unseen, "decide", lambda *_: decided)
    row = unseen.copied(problem, Dispatcher({}), 0)
    assert (row["kernel"], row["cupygemm_us"], row["cublas_us"]) == ("own", pytest.approx(6.0), pytest.approx(30.0))
    assert gaps
    assert not any(gaps)


def test_decisions_are_timed_by_turns() -> None:
    asked: list[Problem] = []

    class Counting(Dispatcher):
        def choose_on(self, problem: Problem, *rest: Any, **more: Any) -> Choice:
            asked.append(problem)
            return Choice("cublas", "none", problem)

    problems = Problem(24, 40, 64), Problem(32, 40, 64)
    found = unseen.decisions(Counting({}), problems, H200)
    assert list(found) == list(problems)
    assert asked[1:] == list(problems) * unseen.DECISIONS
    assert all(us > 0 for _, us in found.values())


def test_no_rows_make_a_summary_too() -> None:
    assert unseen.summary([])["summary"]["geometric mean over cupy.matmul"] is None


def test_what_is_recorded_decides_in_less_than_a_millisecond() -> None:
    recorded = json.loads((ROOT / "bench" / "results" / "unseen.json").read_text(encoding="utf-8"))
    # The longest of 4de399c tried stage after stage of kernels that no number of stages makes legal.
    assert recorded["summary"]["decision, µs, median"] < 1000
