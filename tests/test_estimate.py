"""What a search begins with where nothing was measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.search.estimate import estimated_us, guesses
from cupygemm.search.recorded import recorded_tables
from cupygemm.search.space import SearchSpace
from cupygemm.search.table import Table

TABLES = [Table.read(recorded.path) for recorded in recorded_tables()]
SQUARE = KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 1, 40, 1, 1)
SHAPES = ((64, 64, 4096), (1, 4096, 4096), (512, 512, 512), (3000, 5000, 1000), (16384, 64, 16384), (8192, 16384, 256))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.problem.shape)
def test_times_of_recorded_configs_are_about_right(table: Table) -> None:
    timed = {config: us for config, us in table.times_us.items() if us is not None}
    estimated = np.array([estimated_us(table.problem, config, table.device) for config in timed])
    measured = np.array(list(timed.values()))
    assert np.corrcoef(np.log(estimated), np.log(measured))[0, 1] > 0.8
    assert 0.7 < np.median(estimated / measured) < 1.4
    fastest = min(timed, key=timed.__getitem__)
    assert 0.7 < estimated_us(table.problem, fastest, table.device) / timed[fastest] < 1.4


def test_a_stack_takes_as_many_waves_as_its_tiles() -> None:
    one, tall = Problem(512, 512, 512), Problem(512 * 16, 512, 512)
    stack = estimated_us(Problem(512, 512, 512, 16), SQUARE, H200)
    assert estimated_us(one, SQUARE, H200) < 0.5 * stack
    # A tall matrix reads B once.
    assert 1.0 < stack / estimated_us(tall, SQUARE, H200) < 1.5


@pytest.mark.parametrize("shape", SHAPES)
def test_guesses_are_legal_different_and_of_many_tiles(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape)
    found = guesses(problem, H200, 40)
    assert len(set(found)) == len(found) == 40
    assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in found)
    assert len({(config.block_m, config.block_n) for config in found}) >= 8
    assert found[:5] == guesses(problem, H200, 5)
    best = estimated_us(problem, found[0], H200)
    assert best == min(estimated_us(problem, config, H200) for config in found)
    space = SearchSpace.for_problem(problem, H200)
    assert all(space.is_legal(config) for config in found)


def test_rows_that_tma_cannot_store_are_stored_from_registers() -> None:
    assert {config.store_stages for config in guesses(Problem(512, 513, 512), H200, 20)} == {0}


def test_k_is_divided_where_there_are_few_tiles_alone() -> None:
    assert guesses(Problem(64, 64, 4096), H200, 1)[0].cluster_k == 8
    assert guesses(Problem(4096, 4096, 4096), H200, 1)[0].cluster_k == 1


def test_what_is_read_once_leaves_the_l2_first() -> None:
    skinny = guesses(Problem(16, 4096, 4096), H200, 1)[0]
    assert (skinny.keep_a, skinny.keep_b) == (0, -1)
    assert guesses(Problem(16384, 64, 16384), H200, 1)[0].keep_a == -1
    assert guesses(Problem(16384, 16384, 64), H200, 1)[0].keep_out == -1


def test_more_work_takes_longer() -> None:
    times = [estimated_us(Problem(size, size, size), SQUARE, H200) for size in (512, 1024, 2048, 4096)]
    assert times == sorted(times)
    assert math.isclose(times[-1] / times[-2], 8, rel_tol=0.4)
