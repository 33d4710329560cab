"""Seeds: the best of other recorded problems, the nearest first, and never of the problem itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.seeds import GUESSES, PER_TABLE, SOONER, recorded_seeds, seeds, sooner

NEAR, FAR = Problem(2048, 2048, 2048), Problem(64, 64, 64)
PROBLEM = Problem(2048, 2048, 4096)


@pytest.fixture
def folder(tmp_path, make_table, toy):
    """Tables of a near and a far problem and of the problem itself, each with its own fastest config."""
    tables = {problem: make_table(problem, toy) for problem in (NEAR, FAR, PROBLEM)}
    for place, (problem, table) in enumerate(tables.items()):
        config = [config for config, row in table.rows.items() if row.us is not None and config.block_m == 64][place]
        rows = {**table.rows, config: replace(table.rows[config], us=1.0)}
        tables[problem] = replace(table, rows=rows)
        tables[problem].write(tmp_path / file_name(problem, H200))
    return tmp_path, tables


def test_the_best_of_the_nearest_comes_first(folder):
    path, tables = folder
    found = recorded_seeds(PROBLEM, path)
    assert found[0] == tables[NEAR].optimum[0]
    assert tables[FAR].optimum[0] in found
    assert len(found) <= 2 * PER_TABLE
    assert len({(seed.block_m, seed.block_n) for seed in found[:PER_TABLE]}) == PER_TABLE


def test_a_problem_is_not_told_its_own_answer(folder):
    path, tables = folder
    assert tables[PROBLEM].optimum[0] not in recorded_seeds(PROBLEM, path)
    assert recorded_seeds(Problem(1, 1, 1), path)[0] == tables[FAR].optimum[0]


def test_the_tables_that_ship_give_seeds():
    assert recorded_seeds(Problem(4096, 4096, 4096, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16"))


def test_on_a_gpu_guesses_take_turns_with_them(folder):
    path, _ = folder
    recorded, guessed = recorded_seeds(PROBLEM, path, replayed=False), guesses(PROBLEM, H200, GUESSES)
    found = seeds(PROBLEM, H200, path, replayed=False)
    assert found[:4] == (recorded[0], guessed[0], recorded[1], guessed[1])
    assert set(found) == {*recorded, *guessed}
    assert seeds(PROBLEM, H200, path) == recorded_seeds(PROBLEM, path)


def test_tables_of_stacks_and_epilogues_have_names_of_their_own():
    problems = [replace(PROBLEM, **changes) for changes in ({}, {"batch": 4}, {"epilogue": "bias_n+relu"})]
    assert [file_name(problem, H200).removeprefix("h200-") for problem in problems] == [
        "2048x2048x4096-float16-nn.jsonl.gz",
        "2048x2048x4096-batch4-float16-nn.jsonl.gz",
        "2048x2048x4096-float16-nn-bias_n+relu.jsonl.gz",
    ]


def test_a_small_product_may_begin_sooner(folder):
    path, _ = folder
    problem = Problem(512, 512, 512)
    found = seeds(problem, H200, path, replayed=False)
    copying = [config for config in found if config.cp_async_stages]
    assert 0 < len(copying) <= SOONER
    assert copying == sooner(problem, H200, [config for config in found if not config.cp_async_stages][:SOONER])
    assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in copying)
    assert not any(config.cp_async_stages for config in seeds(problem, H200, path))
    assert not any(config.cp_async_stages for config in seeds(PROBLEM, H200, path, replayed=False))


def test_what_takes_turns_or_shares_tiles_is_made_to_copy(folder):
    turns = KernelConfig(64, 128, 64, 8, 2, False, 2, 1, True, 4, 56, 0, 2, ping_pong=True, keep_out=-1, prefetch=4)
    (found,) = sooner(FAR, H200, [turns, turns.swapped(cluster_m=1)])
    assert (found.cp_async_stages, found.consumers, found.cluster_size, found.block_n) == (2, 1, 1, 128)
    three = KernelConfig(192, 64, 64, 4, 3, False, 1, 1, True, 4, 40, 1, 1)
    assert sooner(FAR, H200, [three]) == []
