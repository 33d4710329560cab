"""Configs to begin with for a problem that was never measured: legal, of many tiles, the most promising first."""

from __future__ import annotations

import numpy as np
import pytest

from cupygemm.choosing.estimate import estimated_us
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.errors import BundleError
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.search import guesses as guessing
from cupygemm.search.guesses import expected_us, guesses
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces.space import SearchSpace

SHAPES = ((64, 64, 4096), (1, 4096, 4096), (512, 512, 512), (3000, 5000, 1000), (16384, 64, 16384), (8192, 16384, 256))


@pytest.mark.parametrize("shape", SHAPES)
def test_guesses_are_legal_different_and_of_many_tiles(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape)
    found = guesses(problem, H200, 40)
    assert len(set(found)) == len(found) == 40
    assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in found)
    assert len({(config.block_m, config.block_n) for config in found}) >= 8
    assert found[:5] == guesses(problem, H200, 5)
    times = expected_us(problem, found, H200)
    assert times[0] == min(times)
    space = SearchSpace.for_problem(problem, H200)
    assert all(space.is_legal(config) for config in found)


def test_rows_that_tma_cannot_store_are_stored_from_registers() -> None:
    assert {config.store_stages for config in guesses(Problem(512, 513, 512), H200, 20)} == {0}


def test_k_is_divided_where_there_are_few_tiles_alone() -> None:
    assert guesses(Problem(64, 64, 4096), H200, 1)[0].cluster_k == 8
    assert guesses(Problem(4096, 4096, 4096), H200, 1)[0].cluster_k == 1


def test_a_and_b_are_swapped_where_columns_waste_less_than_rows() -> None:
    odd = guesses(Problem(200, 8192, 8192, layout="nt"), H200, 1)[0]
    assert odd.swap_ab
    assert odd.block_n * odd.cluster_n in (200, 208)
    assert not any(config.swap_ab for config in guesses(Problem(200, 8191, 8192), H200, 60))


def test_what_is_read_once_leaves_the_l2_first() -> None:
    skinny = guesses(Problem(16, 4096, 4096), H200, 1)[0]
    assert skinny.as_computed(skinny.keep_a, skinny.keep_b) == (0, -1)
    tall = guesses(Problem(16384, 64, 16384), H200, 1)[0]
    assert tall.as_computed(tall.keep_a, tall.keep_b) == (-1, 0)
    assert guesses(Problem(16384, 16384, 64), H200, 1)[0].keep_out == -1


def test_what_no_forecast_covers_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = guesses(Problem(512, 512, 512), H200, 5)
    stack = Problem(512, 512, 512, 4)
    assert expected_us(stack, configs, H200) == estimated_us(stack, configs, H200)

    def damaged() -> None:
        raise BundleError("no forecast")

    known = expected_us(Problem(512, 512, 512), configs, H200)
    monkeypatch.setattr(guessing, "shipped_forecast", damaged)
    estimated = estimated_us(Problem(512, 512, 512), configs, H200)
    assert expected_us(Problem(512, 512, 512), configs, H200) == estimated != known


@pytest.mark.parametrize("shape", ["1024x1024x1024", "2048x2048x4096", "512x512x8192", "128x4096x4096"])
def test_the_forecast_is_nearer_than_the_estimate_to_what_is_recorded(shape: str) -> None:
    """By how much logarithms of times scatter around what is expected; no recorded shape was learnt from."""
    (table,) = (Table.read(each.path) for each in recorded_tables() if each.problem.shape == shape)
    known = {config: us for config, us in table.times_us.items() if us is not None}
    scatter = [
        np.log(np.array(list(known.values())) / expectation(table.problem, list(known), H200)).std()
        for expectation in (expected_us, estimated_us)
    ]
    assert scatter[0] < 0.96 * scatter[1]
