"""bench/ladder.py without a GPU: which steps it takes for a problem, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from click.testing import CliRunner

from bench import ladder
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.measuring.suites import SUITES
from cupygemm.measuring.timing import Timing
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.suggest import suggestions
from tests.fake_products import SMALL

RESULTS = Path(__file__).parent.parent / "bench" / "results"


def test_every_step_is_legal_for_every_problem_of_its_suite() -> None:
    for suite, steps in ladder.STEPS.items():
        assert len(set(steps.values())) == len(steps)
        for problem in SUITES[suite].problems:
            assert ladder.legal_steps(problem, steps).keys() <= steps.keys()
            if KernelSpec.of(problem).out_aligned:
                assert list(ladder.legal_steps(problem, steps)) == list(steps), problem


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
