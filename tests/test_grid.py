"""bench/grid.py without a GPU: what it tries for a problem, and whole runs of kernels that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench import grid
from bench.shared.relatives import Best, bests, relatives
from bench.shared.steps import SQUARE, TURNS, proven
from bench.shared.timed_steps import fastest, legal
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Status
from cupygemm.measuring.suites import GRID_SEED, SUITES
from cupygemm.measuring.timing import CUBLAS, Timing
from cupygemm.problem import Problem
from cupygemm.reports.report import balances
from cupygemm.search.guesses import guesses
from cupygemm.search.policy.suggest import suggestions
from cupygemm.search.seeds import sooner
from tests.fake_products import SMALL

RESULTS = Path(__file__).parent.parent / "bench" / "results"
PROBLEMS = SUITES[grid.SUITE].problems[::20]
LARGE = Problem(4096, 4096, 4096)
CUBLAS_US = 10.0


@pytest.fixture(scope="module")
def surveyed() -> list[Best]:
    return bests([RESULTS / "survey.jsonl"])


# What is tried


def test_every_source_has_its_say_before_anything_is_measured(surveyed: list[Best]) -> None:
    for problem in PROBLEMS:
        steps = grid.beforehand(problem, surveyed)
        tried = set(steps.values())
        assert len(steps) == len(tried) == grid.BEFOREHAND
        for source in (relatives(problem, surveyed, 3), suggestions(problem, H200, 3), guesses(problem, H200, 3)):
            assert set(legal(problem, source)) <= tried
        assert set(proven(problem)[:2]) <= tried


def test_a_start_comes_first(surveyed: list[Best]) -> None:
    started = grid.started_with([shipped_bundle()])
    for suite in grid.SEARCHED:
        for problem in SUITES[suite].problems[:2]:
            search = grid.Search.of(problem, surveyed, started[problem])
            (given,) = legal(problem, started[problem])
            assert search.start == (grid.named(given),) == tuple(search.run)[:1]
            assert search.run[search.start[0]] == given


def test_neighbours_of_the_two_fastest_are_told_otherwise_and_other_kernels(surveyed: list[Best]) -> None:
    for problem in PROBLEMS:
        tried = grid.beforehand(problem, surveyed)
        ranked = list(reversed(tried))
        new = grid.untried(problem, tried, ranked)
        assert len(new) == grid.NEIGHBOURS
        assert not set(new.values()) & set(tried.values())
        parents = [tried[name] for name in ranked[: grid.PARENTS]]
        for config in new.values():
            assert illegal_reason(config, KernelSpec.of(problem), H200) is None
            composite = [found for each in parents for found in (each.mirrored(), *sooner(problem, H200, [each]))]
            assert config in composite or any(len(_differing(config, each)) == 1 for each in parents)
        told = [config for config in new.values() if any(config.compiled() == each.compiled() for each in parents)]
        # Of a kernel that begins sooner few steps to other kernels are legal.
        assert 3 <= len(told) <= grid.NEIGHBOURS - 3


def test_of_other_kernels_those_come_last_that_hardly_matter() -> None:
    found = grid.neighbours(LARGE, TURNS)
    others = [each for each in found if each.compiled() != TURNS.compiled()]
    hardly = [bool(_differing(each, TURNS) & grid.HARDLY_MATTERS) for each in others]
    assert any(hardly)
    assert hardly == sorted(hardly)


def test_a_step_is_in_one_knob_also_where_a_value_is_none_of_its_knob() -> None:
    parent = SQUARE.swapped(prefetch=12, group=3)
    found = grid.neighbours(LARGE, parent)
    found = [each for each in found if each != parent.mirrored()]
    assert all(len(_differing(each, parent)) == 1 for each in found)
    assert {each.prefetch for each in found} == {8, 12}
    assert {each.group for each in found} == {2, 3, 4}
    assert {each.raster_along_n for each in found} == {True, False}


def test_a_small_product_is_also_tried_with_the_fastest_of_its_tiles_as_a_kernel_that_begins_sooner() -> None:
    problem = Problem(256, 1024, 1024)
    parent = TURNS.swapped(block_m=64, block_n=32, swap_ab=True)
    found = [each for each in grid.neighbours(problem, parent) if each.cp_async_stages]
    assert found == sooner(problem, H200, [parent])
    (copying,) = found
    assert (copying.block_m, copying.block_n, copying.swap_ab, copying.ping_pong) == (64, 32, True, False)
    assert not any(each.cp_async_stages for each in grid.neighbours(LARGE, parent))


def test_a_name_tells_a_config_from_all_that_are_tried_and_what_runs(surveyed: list[Best]) -> None:
    for problem in (*PROBLEMS, Problem(4095, 4097, 4096)):
        tried = grid.beforehand(problem, surveyed)
        for _ in range(grid.GENERATIONS):
            tried = tried | grid.untried(problem, tried, list(reversed(tried)))
        assert len(set(tried.values())) == len(tried) == 64
        assert all(name == grid.named(config) for name, config in tried.items())


def test_relatives_are_what_was_best_nearby(tmp_path: Path) -> None:
    known = bests([RESULTS / "survey.jsonl", _survey(tmp_path)])
    problem = known[7].problem
    assert relatives(problem, known, 5)[0] == known[7].config
    assert known[7].config in relatives(Problem(problem.m, problem.n, 2 * problem.k), known, 20)
    assert known[-1] == Best(Problem(8, 120, 216), SMALL.swapped(stages=5))


def test_the_fastest_in_a_short_run_go_on() -> None:
    launches = {"slow": 3.0, "fast": 1.0, "middle": 2.0}
    assert list(fastest(FakeBench(Problem(64, 64, 64)), launches, 2)) == ["fast", "middle"]  # type: ignore[arg-type]


# Whole runs


class FakeBench:
    """Kernels whose launch is the time that they take, µs; what each round takes is within a per cent of it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def time(self, launches: dict[str, Any], effort: Any, mode: str = "") -> Timing:
        rounds = {name: [us * off for off in (0.99, 1.0, 1.0, 1.01)] for name, us in launches.items()}
        return Timing({**rounds, CUBLAS: [CUBLAS_US] * 4})

    def cublaslt(self, mode: str) -> None:
        return None

    def bytes_rotated(self, mode: str) -> int:
        return 0


Us = Callable[[KernelConfig], float | Status]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """Runs the program on kernels that take, or fail, what a function says."""

    def runs(us: Us, *arguments: str) -> tuple[Result, dict[str, Any]]:
        def ready(bench: FakeBench, steps: dict[str, KernelConfig], dependent: bool, failures: list[Any]) -> Any:
            outcomes = {name: us(config) for name, config in steps.items()}
            for name, outcome in outcomes.items():
                if isinstance(outcome, Status):
                    failures.append({**bench.problem.to_dict(), "step": name, "status": outcome.value, "detail": "so"})
            launches = {name: each for name, each in outcomes.items() if not isinstance(each, Status)}
            return launches, dict.fromkeys(launches, 1e-4)

        compiled: list[Any] = []
        for name, value in {
            "Bench": FakeBench,
            "ready": ready,
            "holding_gpu": lambda device: nullcontext(),
            "compile_ahead": lambda kernels: compiled.extend(kernels),
        }.items():
            monkeypatch.setattr(grid, name, value)
        monkeypatch.setattr(grid.provenance, "collect", lambda *given: {"commit": "abc", "date": "2026-11-30"})
        monkeypatch.setattr("bench.shared.timed_steps.driver.device_spec", lambda device: H200)
        output = tmp_path / "grid.json"
        result = CliRunner().invoke(grid.main, [*arguments, "-o", str(output)])
        assert not result.exception or isinstance(result.exception, SystemExit), result.exception
        return result, json.loads(output.read_text()) if output.exists() else {}

    return runs


def test_a_row_is_the_best_of_all_that_was_tried(run: Any, tmp_path: Path) -> None:
    seen: set[KernelConfig] = set()

    def us(config: KernelConfig) -> float:
        seen.add(config)
        return 8.0 + 0.01 * config.stages + 0.1 * config.group + 0.1 * (config.prefetch + config.l2_promotion)

    result, document = run(us, "--only", "512x8192x64", "--bundle", str(tmp_path / "b.yaml"))
    assert result.exit_code == 0
    (row,) = document["rows"]
    assert row["cupygemm_us"] == pytest.approx(min(map(us, seen)))
    assert row["given"] is False
    assert KernelConfig.from_dict(row["config"]) in seen
    assert row["step"] == grid.named(KernelConfig.from_dict(row["config"]))
    assert row["tried"] == len(seen) == 64
    assert (document["suite"], document["seed"]) == (grid.SUITE, GRID_SEED)
    (entry,) = Bundle.load(tmp_path / "b.yaml").entries
    assert (entry.search.strategy, entry.search.evaluations) == ("grid", 64)
    assert entry.config == KernelConfig.from_dict(row["config"])


def test_what_cannot_be_compiled_is_told_and_is_no_error(run: Any) -> None:
    result, document = run(
        lambda config: Status.COMPILE_FAILED if config.group == 4 else 8.0 + config.group, "--only", "512x8192x64"
    )
    assert result.exit_code == 0
    assert document["rows"][0]["tried"] < 64
    assert document["failures"]
    assert {failure["status"] for failure in document["failures"]} == {"compile_failed"}


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.COMPILE_FAILED])
def test_a_problem_of_which_nothing_runs_is_an_error_and_its_failures_are_kept(run: Any, status: Status) -> None:
    result, document = run(lambda config: status, "--only", "512x8192x64", "--generations", "0")
    assert result.exit_code == 1
    assert document["rows"] == []
    assert len(document["failures"]) == 36


def test_a_wrong_result_is_an_error(run: Any) -> None:
    result, document = run(lambda config: Status.WRONG_RESULT if config.stages == 4 else 8.0, "--only", "512x8192x64")
    assert result.exit_code == 1
    assert len(document["rows"]) == 1


@pytest.fixture
def entry() -> Entry:
    """What ships for a problem of the suite small."""
    found = shipped_bundle().entry(Problem(512, 512, 512))
    assert found is not None
    return found


@pytest.mark.parametrize(
    # What the start takes, beside 4 µs of all others.
    ("start_us", "gains"),
    [(9.0, True), (4.005, False), (3.0, False)],
)
def test_an_entry_gives_way_to_what_was_clearly_faster_beside_it(
    run: Any, tmp_path: Path, entry: Entry, start_us: float, gains: bool
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(shipped_bundle().to_json())
    arguments = ["small", "--only", "512x512x512", "--start", str(path), "--bundle", str(path)]
    result, document = run(lambda config: start_us if config == entry.config else 4.0, *arguments)
    assert result.exit_code == 0
    assert (document["suite"], document.get("seed")) == ("small", None)
    rows = document["rows"]
    assert [row["given"] for row in rows] == ([False, True] if start_us > 4 else [False])
    assert rows[-1]["step"] == grid.named(entry.config)
    # What is best counts, given or found; the start beside it is set apart.
    assert [line.partition(",")[0] for line in balances(rows)][-1] == "rotated"
    assert len(balances(rows)) == len(rows)
    after = Bundle.load(path).entry(entry.problem)
    assert after is not None
    assert (after.config != entry.config) == gains
    assert gains or after == entry


def test_a_start_that_is_the_fastest_is_written_where_nothing_was(run: Any, tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "start.yaml").write_text(shipped_bundle().to_json())
    arguments = ["small", "--only", "512x512x512", "--start", str(tmp_path / "start.yaml")]
    run(lambda config: 3.0 if config == entry.config else 4.0, *arguments, "--bundle", str(tmp_path / "new.yaml"))
    (new,) = Bundle.load(tmp_path / "new.yaml").entries
    assert new.config == entry.config
    assert new.speedup == pytest.approx(CUBLAS_US / 3.0)


def test_an_entry_that_was_not_measured_beside_it_is_compared_by_what_it_says(
    run: Any, tmp_path: Path, entry: Entry
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(shipped_bundle().to_json())
    # 1.18 of cuBLAS, the entry 1.2.
    run(lambda config: 8.5, "small", "--only", "512x512x512", "--bundle", str(path))
    assert Bundle.load(path).entry(entry.problem) == entry


def test_the_next_run_has_the_fastest_and_the_start_again(
    surveyed: list[Best], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = grid.Search.of(Problem(512, 512, 512), surveyed, [TURNS])
    names = list(search.run)
    (start,) = search.start
    monkeypatch.setattr(grid, "Bench", FakeBench)
    # The start is the slowest.
    monkeypatch.setattr(grid, "ready", lambda *given: ({name: float(10 - (name != start)) for name in names}, {}))
    search.go_on([])
    assert list(search.run)[: grid.AGAIN] == [name for name in names if name != start][: grid.AGAIN]
    assert list(search.run)[grid.AGAIN] == start
    assert len(search.run) == grid.AGAIN + 1 + grid.NEIGHBOURS
    assert len(search.tried) == grid.BEFOREHAND + grid.NEIGHBOURS


def test_what_is_no_survey_is_refused(run: Any) -> None:
    result, _ = run(lambda config: 1.0, "--survey", str(RESULTS / "climbed.json"))
    assert result.exit_code == 1
    assert "climbed.json: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "1x2x3"), "--only 1x2x3: none of the problems has this shape"),
        (("--generations", "-1"), "-1 is not in the range"),
    ],
)
def test_what_nothing_can_come_of_is_refused(run: Any, arguments: Iterable[str], said: str) -> None:
    result, document = run(lambda config: 1.0, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not document


def _differing(one: KernelConfig, other: KernelConfig) -> set[str]:
    return {name for name, value in one.to_dict().items() if value != getattr(other, name)}


def _survey(folder: Path) -> Path:
    """Two configs of one shape, the second the faster one, and one that did not run."""
    rows = [
        {
            "config": [int(value) for value in SMALL.swapped(stages=stages).to_dict().values()],
            "status": status,
            "us": us,
        }
        for stages, status, us in ((4, "ok", 3.0), (5, "ok", 2.0), (6, "timed_out", None))
    ]
    path = folder / "survey.jsonl"
    head = {"schema": "cupygemm.survey/1", "fields": list(SMALL.to_dict())}
    line = {"problem": Problem(8, 120, 216).to_dict(), "rows": rows}
    path.write_text("\n".join(map(json.dumps, (head, line))) + "\n")
    return path
