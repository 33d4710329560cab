"""bench/ladder.py without a GPU: which steps it takes for a problem, and what it refuses."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import ladder
from bench.shared.steps import BEST_OF_TABLE, STEPS, best_of_table, steps_of
from bench.shared.timed_steps import legal_steps
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError
from cupygemm.measuring.suites import SUITES
from cupygemm.problem import Problem
from cupygemm.search.recordings import recorded
from cupygemm.search.recordings.recorded import file_name, find_table
from tests.commands import PROBLEM


def test_every_step_is_legal_for_every_problem_of_its_suite() -> None:
    for suite, steps in STEPS.items():
        assert len(set(steps.values())) == len(steps)
        for problem in SUITES[suite].problems:
            assert legal_steps(problem, steps).keys() <= steps.keys()
            if KernelSpec.of(problem).out_aligned:
                assert list(legal_steps(problem, steps)) == list(steps), problem


@pytest.mark.parametrize(
    ("suite", "problem", "is_step"),
    [
        ("small", Problem(512, 512, 512), False),
        ("small", Problem(1024, 1024, 1024), False),
        ("small", Problem(1024, 1024, 4096), False),
        ("splitk", Problem(64, 64, 4096), True),
    ],
)
def test_the_best_of_a_table_gets_a_row_where_it_is_no_step(suite: str, problem: Problem, is_step: bool) -> None:
    best = find_table(problem).optimum[0]
    assert (best in STEPS[suite].values()) == is_step
    steps = steps_of(suite, problem)
    assert list(steps) == [*STEPS[suite], BEST_OF_TABLE]
    assert steps[BEST_OF_TABLE] == best
    assert list(legal_steps(problem, steps)) == [*STEPS[suite], *([] if is_step else [BEST_OF_TABLE])]


def test_a_problem_without_a_table_has_the_steps_alone_and_a_broken_table_is_told(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(72, 72, 72)
    assert steps_of("small", problem) == STEPS["small"]
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
    found = legal_steps(problem, STEPS["ragged"])
    assert {config.store_stages for config in found.values()} == {0}
    assert len(set(found.values())) == len(found)


def test_dependent_launches_are_for_no_bundle(tmp_path: Path) -> None:
    arguments = ["small", "--dependent", "--bundle", str(tmp_path / "b.yaml"), "-o", str(tmp_path / "o.json")]
    result = CliRunner().invoke(ladder.main, arguments)
    assert result.exit_code == 2
    assert "--dependent with --bundle" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("small", "--only", "8x8x8"), "--only 8x8x8: none of the problems has this shape"),
        (
            ("small", "--only", "512x512x512", "--dtype", "bfloat16"),
            "--dtype bfloat16: none of 512x512x512 float16 nn has it",
        ),
    ],
)
def test_what_no_suite_has_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(ladder.main, [*arguments, "-o", str(tmp_path / "o.json")])
    assert result.exit_code == 2
    assert said in result.stderr
