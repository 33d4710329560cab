"""What a launch is estimated to take: about what was measured, and of many configs as of each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cupygemm.choosing.estimate import IN_STEP, SM_BYTES_A_CYCLE, Kernels, estimated_us, estimates, one_by_one
from cupygemm.config import KernelConfig, KernelSpec, loaded_bytes
from cupygemm.device import H200
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table

TABLES = [Table.read(recorded.path) for recorded in recorded_tables()]
SQUARE = KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 1, 40, 1, 1)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.problem.shape)
def test_times_of_recorded_configs_are_about_right(table: Table) -> None:
    timed = {config: us for config, us in table.times_us.items() if us is not None}
    estimated = np.array(estimated_us(table.problem, list(timed), table.device))
    measured = np.array(list(timed.values()))
    assert np.corrcoef(np.log(estimated), np.log(measured))[0, 1] > 0.8
    assert 0.7 < np.median(estimated / measured) < 1.4
    fastest = min(timed, key=timed.__getitem__)
    assert 0.7 < estimated_us(table.problem, [fastest], table.device)[0] / timed[fastest] < 1.4


def us(problem: Problem, config: KernelConfig = SQUARE) -> float:
    (found,) = estimated_us(problem, [config], H200)
    return found


def test_a_stack_takes_as_many_waves_as_its_tiles() -> None:
    one, tall = Problem(512, 512, 512), Problem(512 * 16, 512, 512)
    stack = us(Problem(512, 512, 512, 16))
    assert us(one) < 0.5 * stack
    # A tall matrix reads B once.
    assert 1.0 < stack / us(tall) < 1.5


def test_more_work_takes_longer() -> None:
    times = [us(Problem(size, size, size)) for size in (512, 1024, 2048, 4096)]
    assert times == sorted(times)
    assert math.isclose(times[-1] / times[-2], 8, rel_tol=0.4)


RECORDED = [
    (
        Problem(2048, 2048, 4096),
        KernelConfig(128, 128, 64, 6, 2, False, 1, 1, False, 8, 40, 1, 2, ping_pong=True),
        48.98585752867016,
    ),
    (
        Problem(64, 64, 4096),
        KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 4, 40, 1, 0, cluster_k=8),
        4.554429109509218,
    ),
    (Problem(8192, 16384, 256), KernelConfig(128, 256, 64, 4, 2, False, 2, 1, True, 4, 40, 1, 2), 146.49346979084078),
    (
        Problem(1, 4096, 4096, layout="nt"),
        KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 4, 40, 1, 1),
        11.250742479222183,
    ),
    (
        Problem(1000, 513, 3000, layout="tn", out_dtype="float32"),
        KernelConfig(64, 96, 64, 8, 2, True, 1, 2, True, 4, 40, 1, 0),
        13.331925178152877,
    ),
    (
        Problem(512, 512, 512, 16, layout="tt"),
        KernelConfig(192, 96, 64, 4, 3, False, 1, 1, True, 4, 32, 1, 1),
        17.192076008625076,
    ),
]
"""Made with the model that the recorded comparisons of strategies and the forecast went by (2026-11)."""


@pytest.mark.parametrize(("problem", "config", "wanted"), RECORDED)
def test_the_model_is_the_one_of_what_is_recorded(problem: Problem, config: KernelConfig, wanted: float) -> None:
    assert us(problem, config) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_many_it_is_what_it_is_of_each(layout: str) -> None:
    problem, configs = Problem(1000, 520, 4096, layout=layout), list(TABLES[0].rows)[::50]
    found = one_by_one(estimates(problem, Kernels.of(configs, H200), H200))
    assert len(found) == len(configs)
    bound_by_bytes = 0
    for config, estimate in zip(configs, found, strict=True):
        assert one_by_one(estimates(problem, Kernels.of([config], H200), H200)) == [estimate]
        assert estimate.at_once == H200.clusters_at_once(config.cluster_size) * config.cluster_size
        assert estimate.waves == math.ceil(estimate.ctas / estimate.at_once)
        own = sum(loaded_bytes(config, KernelSpec.of(problem), problem.m, problem.n)) / SM_BYTES_A_CYCLE
        own *= IN_STEP if config.cluster_m * config.cluster_n > 1 else 1.0
        assert estimate.loading_cycles >= own * (1 - 1e-12)
        bound_by_bytes += estimate.loading_cycles == pytest.approx(own, rel=1e-12)
    assert bound_by_bytes > len(configs) / 4


def test_nothing_is_estimated_of_no_configs() -> None:
    assert estimated_us(Problem(64, 64, 64), [], H200) == []


def test_stages_to_store_through_do_not_count_where_tma_cannot_store() -> None:
    buffered = SQUARE.swapped(store_stages=2)
    assert us(Problem(512, 512, 512), buffered) < us(Problem(512, 512, 512), SQUARE.swapped(store_stages=0))
    assert us(Problem(512, 513, 512), buffered) == us(Problem(512, 513, 512), SQUARE.swapped(store_stages=0))
