"""The model of a config's bytes from device memory, on cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.search.runners.traffic import tile_at, traffic, with_l2

CONFIG = KernelConfig(
    block_m=128,
    block_n=128,
    block_k=64,
    stages=4,
    consumers=2,
    split_n=False,
    cluster_m=1,
    cluster_n=1,
    raster_along_n=True,
    group=4,
    producer_registers=40,
    wait_depth=1,
    store_stages=2,
)


def test_what_fits_the_l2_is_read_once():
    problem = Problem(1024, 1024, 1024)
    found = traffic(problem, CONFIG, H200)
    assert found.dram_bytes == found.compulsory_bytes == 3 * 2 * 1024**2
    assert found.l2_term == 1.0
    # 64 tiles ask for 128 rows and 128 columns of 1024 each.
    assert found.l2_bytes == 64 * 2 * 128 * 1024 * 2 + 2 * 1024**2
    assert found.hit_rate == pytest.approx(1 - found.dram_bytes / found.l2_bytes)


def test_without_any_l2_every_wave_reads_its_panels_again():
    problem = Problem(512, 256, 64)
    tiny = replace(H200, sm_count=2, l2_bytes=0)
    # 4 x 2 tiles in bands of 4 rows along n: waves of two tiles, in each column (0, 1) and (2, 3): 8 reads of A's 4
    # panels and 4 of B's 2.
    found = traffic(problem, CONFIG, tiny)
    assert found.dram_bytes == 2 * (512 * 64 * 2) + 2 * (256 * 64 * 2) + 512 * 256 * 2


def test_a_band_that_fits_is_better_than_one_that_does_not():
    problem = Problem(8192, 8192, 4096)
    terms = {group: traffic(problem, CONFIG.swapped(group=group), H200).l2_term for group in (1, 8)}
    assert terms[8] > 1.5 * terms[1]


def test_multicast_asks_for_less_and_so_has_the_lower_hit_rate():
    problem = Problem(4096, 4096, 1024)
    alone, paired = (traffic(problem, CONFIG.swapped(cluster_m=size), H200) for size in (1, 2))
    assert paired.l2_bytes < alone.l2_bytes
    assert paired.hit_rate < alone.hit_rate


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 65536, 8), (65536, 16, 32), (100_000, 100_000, 64)])
def test_no_shape_breaks_the_bounds(shape):
    found = traffic(Problem(*shape), CONFIG, H200)
    assert 0 < found.l2_term <= 1
    assert 0 <= found.hit_rate < 1


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize(("tiles_m", "tiles_n", "group"), [(5, 7, 4), (1, 9, 8), (16, 3, 16), (6, 6, 1)])
def test_the_order_visits_each_tile_once(tiles_m, tiles_n, group, along_n):
    order = [tile_at(i, tiles_m, tiles_n, along_n, group) for i in range(tiles_m * tiles_n)]
    assert sorted(order) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    # The first band: `group` tiles across, then on along.
    across = 0 if along_n else 1
    height = min(group, (tiles_m, tiles_n)[across])
    assert [tile[across] for tile in order[:height]] == list(range(height))


def test_counted_figures_are_kept_and_failures_have_none():
    problem = Problem(1024, 1024, 1024)
    timed = Measurement(Status.OK, samples_us=(5.0,))
    counted = timed.with_fields(l2_term=0.5, l2_source="counters")
    assert with_l2(timed, problem, CONFIG, H200).l2_source == "model"
    assert with_l2(counted, problem, CONFIG, H200) == counted
    assert with_l2(Measurement(Status.CRASHED), problem, CONFIG, H200).l2_term is None
