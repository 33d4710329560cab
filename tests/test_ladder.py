"""bench/ladder.py without a GPU: which steps it takes for a problem, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bench import ladder
from bench.steps import BEST_OF_TABLE, best_of_table
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError
from cupygemm.legality import illegal_reason
from cupygemm.measuring.suites import SUITES
from cupygemm.measuring.timing import Timing
from cupygemm.problem import Problem
from cupygemm.search import recorded
from cupygemm.search.guesses import guesses
from cupygemm.search.recorded import file_name, find_table
from cupygemm.search.suggest import suggestions
from tests.commands import PROBLEM
from tests.fake_products import SMALL

RESULTS = Path(__file__).parent.parent / "bench" / "results"


def test_every_step_is_legal_for_every_problem_of_its_suite() -> None:
    for suite, steps in ladder.STEPS.items():
        assert len(set(steps.values())) == len(steps)
        for problem in SUITES[suite].problems:
            assert ladder.legal_steps(problem, steps).keys() <= steps.keys()
            if KernelSpec.of(problem).out_aligned:
                assert list(ladder.legal_steps(problem, steps)) == list(steps), problem


@pytest.mark.parametrize(
    ("suite", "problem", "is_step"),
    [
        ("small", Problem(512, 512, 512), False),
        ("small", Problem(1024, 1024, 1024), False),
        ("small", Problem(1024, 1024, 4096), True),
        ("splitk", Problem(64, 64, 4096), True),
    ],
)
def test_the_best_of_a_table_gets_a_row_where_it_is_no_step(suite: str, problem: Problem, is_step: bool) -> None:
    best = find_table(problem).optimum[0]
    assert (best in ladder.STEPS[suite].values()) == is_step
    steps = ladder.steps_of(suite, problem)
    assert list(steps) == [*ladder.STEPS[suite], BEST_OF_TABLE]
    assert steps[BEST_OF_TABLE] == best
    assert list(ladder.legal_steps(problem, steps)) == [*ladder.STEPS[suite], *([] if is_step else [BEST_OF_TABLE])]


def test_a_problem_without_a_table_has_the_steps_alone_and_a_broken_table_is_told(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(72, 72, 72)
    assert ladder.steps_of("small", problem) == ladder.STEPS["small"]
    monkeypatch.setattr(recorded, "files", lambda package: tables.parent)
    assert best_of_table(problem) == {}
    assert best_of_table(PROBLEM)[BEST_OF_TABLE] == find_table(PROBLEM).optimum[0]
    path = tables / file_name(PROBLEM, H200)
    head = gzip.decompress(path.read_bytes()).splitlines()[0]
    path.write_bytes(gzip.compress(head + b"\n[]\n"))
    with pytest.raises(FileError, match=path.name):
        best_of_table(PROBLEM)


def test_rows_that_tma_cannot_store_are_stored_from_registers_once() -> None:
    problem = Problem(4095, 4097, 4096)
    found = ladder.legal_steps(problem, ladder.STEPS["ragged"])
    assert {config.store_stages for config in found.values()} == {0}
    assert len(set(found.values())) == len(found)


def test_a_grid_sample_has_suggestions_and_guesses() -> None:
    for problem in SUITES[ladder.GUESSED].problems[::25]:
        found = ladder.steps_of(ladder.GUESSED, problem)
        assert len(found) == ladder.STEPS_TRIED
        assert set(suggestions(problem, H200, 3)) < set(found.values())
        assert set(guesses(problem, H200, 3)) < set(found.values())
        assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in found.values())


def test_the_fastest_in_a_short_run_go_on() -> None:
    launches = {"slow": object(), "fast": object(), "middle": object()}
    samples = {"slow": [3.0, 9.0], "fast": [1.0, 1.5], "middle": [2.0, 2.0], "cublas": [0.1, 0.1]}
    bench = SimpleNamespace(time=lambda given, effort: Timing(samples))
    assert list(ladder.fastest(bench, launches, 2)) == ["fast", "middle"]


def test_dependent_launches_are_for_no_bundle(tmp_path: Path) -> None:
    arguments = ["small", "--dependent", "--bundle", str(tmp_path / "b.yaml"), "-o", str(tmp_path / "o.json")]
    result = CliRunner().invoke(ladder.main, arguments)
    assert result.exit_code == 2
    assert "--dependent with --bundle" in result.stderr


def test_sooner_stands_beside_what_was_best(tmp_path: Path) -> None:
    result = CliRunner().invoke(ladder.main, ["grid_sample", "--sooner", "-o", str(tmp_path / "o.json")])
    assert result.exit_code == 2
    assert "--sooner without --after" in result.stderr
    known = ladder.bests([RESULTS / "grid_sample.json"])
    for problem in SUITES[ladder.GUESSED].problems[::9]:
        found = ladder.steps_of(ladder.GUESSED, problem, known, is_sooner=True)
        tried = [config for config in found.values() if config not in ladder.relatives(problem, known, 3)]
        assert len(found) - len(tried) == ladder.BEST_BEFORE
        assert all(config.cp_async_stages for config in tried)
        assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in tried)


def test_relatives_are_what_was_best_nearby(tmp_path: Path) -> None:
    relatives = ladder.relatives
    known = ladder.bests([RESULTS / "grid_sample.json", _survey(tmp_path)])
    assert len(known) == 101
    problem = known[7].problem
    assert relatives(problem, known, 5)[0] == known[7].config
    near = Problem(problem.m, problem.n, 2 * problem.k)
    assert known[7].config in relatives(near, known, 20)
    found = ladder.steps_of("grid_sample", near, known)
    assert len(found) == len(set(found.values())) == ladder.RELATIVES
    surveyed = known[-1]
    assert surveyed.problem == Problem(8, 120, 216)
    assert surveyed.config == SMALL.swapped(stages=5)


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
