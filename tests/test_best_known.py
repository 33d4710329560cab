"""bench/best_known.py: what it sets beside what is known best, and what it chooses; without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench import best_known
from bench.grid import named
from bench.shared.steps import TURNS
from cupygemm.bundles.bundle import Bundle
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.measuring.benchmark import OWN, result_row
from cupygemm.measuring.timing import CUBLAS, Timing
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import find_table

PROBLEM = Problem(512, 512, 512)
OUTSIDE = TURNS.swapped(l2_promotion=256, prefetch=1)


def test_what_ships_comes_with_its_neighbours_in_the_sub_spaces_and_the_best_of_the_table() -> None:
    entry = shipped_bundle().entry(PROBLEM)
    assert entry is not None
    configs = list(best_known.candidates(PROBLEM, shipped_bundle()).values())
    assert configs[0] == entry.config
    assert len(set(configs)) == len(configs)
    assert all(config in best_known.members() for config in configs[1:])
    assert find_table(PROBLEM).optimum[0] in configs


def test_a_problem_without_a_table_gets_the_best_of_the_most_similar_one() -> None:
    optimum = find_table(Problem(4096, 4096, 4096)).optimum[0]
    assert optimum in best_known.candidates(Problem(8192, 8192, 4096), shipped_bundle()).values()


def test_the_nearest_differ_in_the_fewest_fields() -> None:
    first, *others = best_known.nearest(OUTSIDE)

    def differences(config: KernelConfig) -> int:
        return sum(getattr(config, name) != value for name, value in OUTSIDE.to_dict().items())

    assert first == TURNS.swapped(l2_promotion=128)
    assert differences(first) == 2
    assert all(differences(other) >= 2 for other in others)


@pytest.mark.parametrize(
    ("inside_us", "outside_us", "wins"),
    [(10.0, 10.02, "inside"), (10.03, 10.0, "inside"), (10.1, 10.0, "outside")],
)
def test_inside_is_chosen_unless_it_is_clearly_slower(inside_us: float, outside_us: float, wins: str) -> None:
    rows = [row(TURNS, "inside", inside_us, True), row(OUTSIDE, "outside", outside_us, False)]
    assert best_known.chosen(rows)["step"] == wins
    assert best_known.chosen(rows[::-1])["step"] == wins


def row(config: KernelConfig, step: str, us: float, inside: bool) -> dict[str, Any]:
    """With 0.2% of spread between rounds."""
    timing = Timing({OWN: [us], CUBLAS: [11.0]})
    made = result_row(PROBLEM, timing, 1e-4, config, ROTATED, 0)
    return {"step": step, **made, "ratio_spread": 0.002, "inside": inside}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """Runs the program on kernels that take what a function says."""

    def runs(us: Callable[[KernelConfig], float], *arguments: str) -> tuple[Result, dict[str, Any]]:
        def measured(bench: Any, steps: dict[str, KernelConfig], *others: Any) -> Any:
            for name, config in steps.items():
                made = row(config, name, us(config), False)
                yield {key: value for key, value in made.items() if key != "inside"}

        for name, value in {
            "Bench": lambda problem: None,
            "ready": lambda bench, steps, dependent, failures: (dict.fromkeys(steps), dict.fromkeys(steps, 1e-4)),
            "measured": measured,
            "holding_gpu": lambda device: nullcontext(),
            "compile_ahead": list,
        }.items():
            monkeypatch.setattr(best_known, name, value)
        monkeypatch.setattr(
            "bench.best_known.provenance.collect", lambda *given: {"commit": "abc", "date": "2026-12-01"}
        )
        monkeypatch.setattr("bench.shared.timed_steps.driver.device_spec", lambda device: H200)
        output = tmp_path / "best_known.json"
        done = CliRunner().invoke(best_known.main, ["--only", "512x512x512", *arguments, "-o", str(output)])
        assert not done.exception, done.exception
        return done, json.loads(output.read_text())

    return runs


def test_a_bundle_gets_what_is_faster_and_keeps_an_entry_that_is_the_best(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(shipped_bundle().to_json())
    before = Bundle.load(path).entry(PROBLEM)
    assert before is not None
    run(lambda config: 4.0 if config == before.config else 5.0, "--bundle", str(path))
    assert Bundle.load(path).entry(PROBLEM) == before
    best = find_table(PROBLEM).optimum[0]
    assert best != before.config
    _, document = run(lambda config: 4.0 if config == best else 5.0, "--bundle", str(path))
    after = Bundle.load(path).entry(PROBLEM)
    assert after is not None
    assert (after.config, after.search.strategy) == (best, "best_known")
    assert [each["inside"] for each in document["rows"] if each["step"] == named(best)] == [True]


def test_a_problem_whose_spec_no_table_has_is_left_out(run: Any) -> None:
    _, document = run(lambda config: 4.0, "small", "headline", "--only", "2048x2048x4096")
    assert {each["a_dtype"] for each in document["rows"]} == {"float16"}
