"""bench/found.py: how it searches, and what it sets beside what is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench import found
from bench.shared.steps import BEST_OF_TABLE, STEPS
from cupygemm.cli import main as cupygemm
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import find_table

RECORDED = Problem(2048, 2048, 4096)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was started: run in this process, on recorded times."""
    started: list[list[str]] = []

    def run(words: list[str], env: dict[str, str], **options: Any) -> None:
        started.append(words)
        assert options["check"]
        assert Path(env["CUPYGEMM_CACHE_DIR"]).parent == Path(env["CUPYGEMM_DATA_DIR"]).parent
        assert not Path(env["CUPYGEMM_CACHE_DIR"]).exists()
        replayed = ["replay" if word == "cuda" else word for word in words[3:]]
        done = CliRunner().invoke(cupygemm, [*replayed, "--strategy", "random"])
        assert done.exit_code == 0, done.output

    monkeypatch.setattr(found.subprocess, "run", run)
    return started


def test_each_seed_is_a_command_of_its_own(commands: list[list[str]]) -> None:
    steps = dict(found.found_with(RECORDED, 20, seed) for seed in (0, 1))
    assert [name.partition(" in ")[0] for name in steps] == ["found with seed 0", "found with seed 1"]
    rows = find_table(RECORDED).rows
    assert all(rows[config].us is not None for config in steps.values())
    assert [words[1:4] for words in commands] == [["-m", "cupygemm", "tune"]] * 2
    assert [words[words.index("--seed") + 1] for words in commands] == ["0", "1"]
    assert all(words[words.index("--budget") + 1] == "20" for words in commands)
    # The strategy is left to the command.
    assert not any("--strategy" in words for words in commands)


def test_a_search_that_leaves_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    monkeypatch.setattr(found, "problem_words", lambda problem: ["512x512x512"])
    with pytest.raises(click.ClickException, match="seed 3 left no entry for 2048x2048x4096"):
        found.found_with(RECORDED, 1, 3)


def test_the_best_known_are_the_steps_and_the_best_of_the_table() -> None:
    known = found.best_known(RECORDED)
    assert set(STEPS["headline"].values()) <= set(known.values())
    assert len(set(known.values())) == len(known)
    assert list(known)[-1] == BEST_OF_TABLE
    assert known[BEST_OF_TABLE] == find_table(RECORDED).optimum[0]
    # Of this one the best is a step, and goes by that step's name.
    stepped = Problem(64, 64, 4096)
    assert list(found.best_known(stepped)) == list(STEPS["splitk"])
    assert find_table(stepped).optimum[0] in STEPS["splitk"].values()
    assert found.best_known(Problem(72, 72, 72)) == {}


def test_without_a_gpu_nothing_is_searched(commands: list[list[str]], tmp_path: Path) -> None:
    done = CliRunner().invoke(found.main, ["2048x2048x4096", "-o", str(tmp_path / "found.json")])
    assert done.exception is not None
    assert commands == []
