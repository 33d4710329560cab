"""The kernels for problems without a record: how a problem is told to them, and how they are chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import portfolio
from bench.learning.portfolio import choose, compiled, estimated_scores, kernels, recorded_scores, untried_kernels
from cupygemm.choosing.fitting import fitted
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError
from cupygemm.legality import illegal_reason
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces.space import Knob
from cupygemm.search.spaces.subspace import SubSpace

TURNS = KernelConfig(128, 128, 64, 6, 2, False, 1, 1, False, 8, 40, 1, 2, ping_pong=True)
SMALL = KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 4, 40, 1, 1)
NARROW = KernelConfig(64, 32, 64, 16, 1, False, 1, 1, True, 4, 40, 1, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_portfolio_is_legal_for_every_layout(layout: str) -> None:
    for n in (4096, 4097):
        problem = Problem(333, n, 512, layout=layout)
        found = [config for kernel in portfolio.read_kernels() if (config := fitted(kernel, problem, H200)) is not None]
        assert len(found) >= 30
        assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in found)


def test_what_tma_cannot_store_is_stored_from_registers() -> None:
    config = fitted(TURNS, Problem(4096, 4097, 512, layout="nt"), H200)
    assert config is not None
    assert config.store_stages == 0
    assert config.keep_out == 0


def test_stages_are_given_up_until_shared_memory_suffices() -> None:
    # A tile of 32 columns takes 64 where B is stored by rows.
    by_rows, by_columns = (fitted(NARROW, Problem(512, 512, 512, layout=layout), H200) for layout in ("nn", "nt"))
    assert by_rows is not None
    assert by_columns is not None
    assert by_rows.stages < by_columns.stages
    assert illegal_reason(by_rows.swapped(stages=by_rows.stages + 1), KernelSpec.of(Problem(8, 8, 8)), H200) is not None


def test_what_copies_is_told_no_more_than_it_can_do() -> None:
    copies = SMALL.swapped(stages=8, cp_async_stages=8)
    streamed, large = Problem(16, 8192, 4096), Problem(8192, 8192, 512)
    for problem in (streamed, large):
        assert fitted(copies, problem, H200) == fitted(copies, problem, H200).swapped(prefetch=0, keep_out=0)  # type: ignore[union-attr]
    fewer = fitted(NARROW.swapped(cp_async_stages=16), Problem(512, 512, 512), H200)
    assert fewer is not None
    assert fewer.cp_async_stages == fewer.stages < 16


def test_a_kernel_of_no_legal_kind_is_left_out() -> None:
    assert fitted(TURNS.swapped(consumers=1), Problem(512, 512, 512), H200) is None


def test_what_is_told_at_launch_is_the_same_whatever_the_kernel_was_told() -> None:
    problem = Problem(1000, 1000, 1000)
    assert fitted(TURNS, problem, H200) == fitted(TURNS.swapped(raster_along_n=True, keep_b=-1), problem, H200)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((16, 8192, 4096), {"keep_a": 0, "keep_b": -1, "keep_out": 0, "prefetch": 4}),
        ((128, 8192, 4096), {"keep_a": 0, "keep_b": -1, "prefetch": 0}),
        ((8192, 64, 4096), {"keep_a": -1, "keep_b": 0, "prefetch": 0}),
        ((64, 64, 4096), {"keep_a": 0, "keep_b": 0, "prefetch": 0}),
        ((4096, 4096, 512), {"keep_a": 0, "keep_b": 0, "keep_out": -1, "prefetch": 0}),
    ],
)
def test_what_is_read_once_is_not_kept(sizes: tuple[int, int, int], told: dict[str, int]) -> None:
    config = fitted(SMALL, Problem(*sizes), H200)
    assert config is not None
    assert told.items() <= config.to_dict().items()


def test_kernels_differ_in_what_is_compiled() -> None:
    assert kernels([TURNS, SMALL, TURNS.swapped(group=1)]) == [TURNS, SMALL]
    assert len(kernels(untried_kernels())) == len(untried_kernels()) > 300


def test_no_tables_kernels_are_lost_and_what_copies_is_left_out(
    toy_table: Table, make_table: Callable[..., Table], toy: SubSpace
) -> None:
    changed = {"block_n": Knob("block_n", (32,)), "cp_async_stages": Knob("cp_async_stages", (0, 1))}
    copying = replace(toy, name="copying", knobs=tuple(changed.get(knob.name, knob) for knob in toy.knobs))
    tables = [toy_table, make_table(Problem(1024, 1024, 1024), copying)]
    plain = [config for table in tables for config in table.rows if not config.cp_async_stages]
    assert any(config.cp_async_stages for config in tables[1].rows)
    assert {config.block_n for config in plain} == {32, 64, 128, 256}
    shipped = SMALL.swapped(cp_async_stages=1)
    pool = portfolio.pool_of([shipped], tables)
    assert set(map(compiled, plain)) <= set(map(compiled, pool))
    # What ships is known to pay, copying or not.
    assert [config for config in pool if config.cp_async_stages] == [shipped]
    assert portfolio.pool_of([shipped], tables[::-1])[0] == shipped
    assert set(map(compiled, portfolio.pool_of([shipped], tables[::-1]))) == set(map(compiled, pool))


def test_scores_of_a_table_are_its_times(core_table: Table) -> None:
    optimum, _ = core_table.optimum
    scores = recorded_scores(core_table, [optimum.swapped(group=optimum.group), NARROW])
    assert scores[0] == 1.0
    assert 0 < scores[1] <= 0.97


def test_nothing_scores_more_than_the_best_that_is_known() -> None:
    scores = estimated_scores(Problem(4096, 4096, 512), H200, [TURNS, SMALL, NARROW], best=SMALL)
    assert scores[1] == 1.0
    assert scores.max() == 1.0
    assert scores[0] <= 0.97


def test_the_choice_is_greedy_and_ends_where_nothing_is_gained() -> None:
    scores = np.array([[1.0, 0.9, 0.5, 0.5], [0.5, 0.9, 1.0, 0.5]])
    chosen = choose(scores, np.ones(2), most=4, least_gain=0.001)
    assert [column for column, _ in chosen] == [1, 0, 2]
    assert [mean for _, mean in chosen] == pytest.approx([0.9, 0.9487, 1.0], abs=1e-3)
    assert [column for column, _ in choose(scores, np.ones(2), 4, 0.001, first=[3])] == [3, 1, 0, 2]
    assert len(choose(scores, np.ones(2), most=1, least_gain=0.0)) == 1


def test_the_portfolio_holds_what_the_program_would_choose() -> None:
    document = json.loads(portfolio.PORTFOLIO.read_text())
    assert len(document["kernels"]) == len(document["reached"]) <= portfolio.MOST
    assert document["reached"] == sorted(document["reached"])
    assert len(kernels(portfolio.read_kernels())) == len(document["kernels"])


@pytest.mark.parametrize("text", ["no json", "[]", '{"schema": "other"}', '{"schema": "cupygemm.portfolio/1"}'])
def test_a_file_that_is_no_portfolio_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "portfolio.json"
    path.write_text(text)
    with pytest.raises(FileError, match=r"portfolio\.json"):
        portfolio.read_kernels(path)
    with pytest.raises(FileError, match="No such file"):
        portfolio.read_kernels(tmp_path / "none")
