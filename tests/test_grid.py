"""bench/grid.py without a GPU: what it tries for a problem, before and after a first run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import grid
from bench.relatives import Best, bests, relatives
from bench.steps import proven
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.measuring.suites import SUITES
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.suggest import suggestions
from tests.fake_products import SMALL

RESULTS = Path(__file__).parent.parent / "bench" / "results"
PROBLEMS = SUITES[grid.SUITE].problems[::20]


@pytest.fixture(scope="module")
def surveyed() -> list[Best]:
    return bests([RESULTS / "survey.jsonl"])


def test_every_source_has_its_say_before_anything_is_measured(surveyed: list[Best]) -> None:
    for problem in PROBLEMS:
        steps = grid.beforehand(problem, surveyed)
        tried = set(steps.values())
        assert len(steps) == len(tried) == grid.BEFOREHAND
        for source in (relatives(problem, surveyed, 3), suggestions(problem, H200, 3), guesses(problem, H200, 3)):
            legal = {config for config in source if illegal_reason(config, KernelSpec.of(problem), H200) is None}
            assert legal <= tried
        assert set(proven(problem)[:2]) <= tried


def test_a_start_comes_first(surveyed: list[Best]) -> None:
    bundle = shipped_bundle()
    for suite in grid.SEARCHED:
        for problem in SUITES[suite].problems[:2]:
            config = grid.started_with([bundle])[problem][0]
            assert next(iter(grid.beforehand(problem, surveyed, [config]).values())) == config


def test_the_next_run_has_the_fastest_and_their_neighbours(surveyed: list[Best]) -> None:
    for problem in PROBLEMS:
        tried = grid.beforehand(problem, surveyed)
        ranked = list(reversed(tried))
        run = grid.next_run(problem, tried, ranked)
        assert list(run)[: grid.AGAIN] == ranked[: grid.AGAIN]
        new = {name: config for name, config in run.items() if name not in tried}
        assert len(new) == grid.NEIGHBOURS
        assert not set(new.values()) & set(tried.values())
        parents = [tried[name] for name in ranked]
        for config in new.values():
            assert illegal_reason(config, KernelSpec.of(problem), H200) is None
            assert any(_apart(config, parent) == 1 for parent in parents)
        assert sum(config.compiled() in [parent.compiled() for parent in parents] for config in new.values()) >= 5


def test_a_name_tells_a_config_from_all_that_are_tried(surveyed: list[Best]) -> None:
    for problem in PROBLEMS:
        tried = grid.beforehand(problem, surveyed)
        for _ in range(grid.GENERATIONS):
            tried |= grid.next_run(problem, tried, list(reversed(tried)))
        assert len({grid.named(config) for config in tried.values()}) == len(tried) == grid.TRIED == 64


def test_relatives_are_what_was_best_nearby(tmp_path: Path) -> None:
    known = bests([RESULTS / "grid_sample.json", _survey(tmp_path)])
    assert len(known) == 101
    problem = known[7].problem
    assert relatives(problem, known, 5)[0] == known[7].config
    assert known[7].config in relatives(Problem(problem.m, problem.n, 2 * problem.k), known, 20)
    assert known[-1] == Best(Problem(8, 120, 216), SMALL.swapped(stages=5))


def _apart(one: object, other: object) -> int:
    """In how many fields two configs differ."""
    return sum(value != getattr(other, name) for name, value in vars(one).items())


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
