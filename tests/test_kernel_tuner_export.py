"""Recorded tables in Kernel Tuner's format: the file itself, and Kernel Tuner's own strategies run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cupygemm import cli
from cupygemm.measurement import Status
from cupygemm.problem import Problem
from cupygemm.search.recordings.kernel_tuner_export import ERRORS, export, to_text
from cupygemm.search.recordings.recorded import find_table, recorded_tables
from cupygemm.search.recordings.table import Row, Table
from tests.commands import PROBLEM, failed

STRATEGIES = (
    *("brute_force", "random_sample", "genetic_algorithm", "greedy_ils", "mls", "simulated_annealing"),
    *("diff_evo", "pso", "firefly_algorithm", "basinhopping"),
)

# A process of its own: its libraries warn, and warnings are errors here.
SIMULATE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import kernel_tuner
path, *strategies = sys.argv[1:]
document = json.load(open(path))
found = {}
for strategy in strategies:
    options = {} if strategy == "brute_force" else {"max_fevals": 40}
    results, env = kernel_tuner.tune_kernel(
        document["kernel_name"], "", document["problem_size"], [], document["tune_params"],
        restrictions=document["restrictions"], cache=path, simulation_mode=True, quiet=True, seed=1,
        strategy=strategy, strategy_options=options,
    )
    keys = document["tune_params_keys"]
    points = {",".join(str(result[key]) for key in keys): "__error__" in result for result in results}
    best = env["best_config"]
    found[strategy] = {"best": best["time"], "key": ",".join(str(best[key]) for key in keys), "points": points}
json.dump(found, sys.stdout)
"""


def simulate(path: Path, *strategies: str) -> dict[str, dict]:
    command = [sys.executable, "-c", SIMULATE, str(path), *strategies]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def failing_table(toy_table: Table) -> Table:
    """Some points of each status that a table can hold."""
    statuses = [status for status in Status if status is not Status.OK]
    rows = dict(toy_table.rows)
    for i, config in enumerate(sorted(rows)[:70]):
        rows[config] = Row(statuses[i % len(statuses)], detail="no")
    return replace(toy_table, rows=rows)


def test_the_file_is_what_kernel_tuner_reads(failing_table: Table) -> None:
    text = to_text(failing_table)
    assert text.endswith("}}}"), "how it tells that a cache file was closed"
    document = json.loads(text)
    assert document["problem_size"] == [2048, 2048, 4096]
    assert document["tune_params_keys"] == list(document["tune_params"]) == list(failing_table.space.names)
    assert document["tune_params"]["split_n"] == [0]
    assert document["tune_params"]["raster_along_n"] == [0, 1]
    assert [each["rule"] for each in document["excluded"]] == [e.rule for e in failing_table.restrictions]
    assert len(document["cache"]) == len(failing_table.rows)
    for config, row in failing_table.rows.items():
        result = document["cache"][",".join(str(int(value)) for value in config.to_dict().values())]
        assert {name: result[name] for name in config.to_dict()} == config.to_dict()
        if row.us is None:
            assert result["time"] == result["__error__"] == ERRORS[row.status]
        else:
            assert result["time"] == row.us / 1000
            assert "__error__" not in result


def test_every_failure_has_a_name() -> None:
    assert set(ERRORS) == set(Status) - {Status.OK}


def test_the_restrictions_hold_for_the_recorded_points_and_for_no_other(toy_table: Table) -> None:
    restrictions = json.loads(to_text(toy_table))["restrictions"]
    assert len(restrictions) > 1, "prefixes that lead nowhere are refused before they are completed"
    holds = compile(" and ".join(f"({each})" for each in restrictions), "restrictions", "eval")
    allowed = [config for config in toy_table.space.product() if eval(holds, {}, config.to_dict())]
    assert len(allowed) < toy_table.space.size_cartesian
    assert set(allowed) == set(toy_table.rows)


@pytest.mark.kernel_tuner
def test_its_strategies_run_on_an_exported_table(failing_table: Table, tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    export(failing_table, path)
    before, entries = path.read_bytes(), json.loads(path.read_text())["cache"]
    found = simulate(path, *STRATEGIES)
    for strategy, outcome in found.items():
        assert outcome["points"].keys() <= entries.keys(), strategy
        assert entries[outcome["key"]]["time"] == outcome["best"] >= failing_table.optimum_us / 1000, strategy
    whole = found["brute_force"]
    assert whole["best"] == failing_table.optimum_us / 1000
    assert whole["points"] == {key: "__error__" in entry for key, entry in entries.items()}
    assert path.read_bytes() == before


@pytest.mark.kernel_tuner
def test_its_strategies_run_on_a_table_that_ships(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    problem = min(found.problem for found in recorded_tables())
    table = find_table(problem)
    command = ["export", "kernel-tuner", problem.shape, "-o", str(path)]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}: {len(table.rows)} points, best {table.optimum_us:.2f} µs\n"
    found = simulate(path, "brute_force", "random_sample", "genetic_algorithm")
    assert len(found["brute_force"]["points"]) == len(table.rows)
    assert found["brute_force"]["best"] == table.optimum_us / 1000
    assert all(outcome["best"] >= table.optimum_us / 1000 for outcome in found.values())


def test_a_table_is_named_by_its_file_or_its_problem(tables: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    (file,) = (path for path in tables.iterdir() if PROBLEM.shape in path.name)
    export_command = ["export", "kernel-tuner"]
    assert CliRunner().invoke(cli.main, [*export_command, str(file), "-o", str(one)]).exit_code == 0
    options = ["--tables", str(tables), "-o", str(other)]
    assert CliRunner().invoke(cli.main, [*export_command, PROBLEM.shape, *options]).exit_code == 0
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("table", "output", "status", "words"),
    [
        ("nowhere.jsonl.gz", "cache.json", 1, "nowhere.jsonl.gz: no such file; `cupygemm record` writes tables"),
        (Problem(64, 64, 64).shape, "cache.json", 1, "no recorded table of 64x64x64"),
        (PROBLEM.shape, "cache.txt", 2, ".json"),
        ("table.csv", "cache.json", 2, "MxNxK"),
    ],
)
def test_what_cannot_be_exported_is_said(
    tables: Path, tmp_path: Path, table: str, output: str, status: int, words: str
) -> None:
    where = [] if table.endswith(".gz") else ["--tables", str(tables)]
    command = ["export", "kernel-tuner", table, *where, "-o", str(tmp_path / output)]
    result = CliRunner().invoke(cli.main, command)
    if status == 1:
        failed(result, words)
    assert (result.exit_code, words in result.stderr) == (status, True)
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize("option", [("--layout", "nt"), ("--tables", ".")])
def test_what_a_file_says_by_itself_is_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    command = ["export", "kernel-tuner", "some.jsonl.gz", *option, "-o", str(tmp_path / "cache.json")]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 2
    assert f"'{option[0]}': the file says of which problem it is" in result.stderr
