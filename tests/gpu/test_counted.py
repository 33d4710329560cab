"""L2 figures of real kernels: counted where the machine lets them be read, and near what the model says."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from cupygemm.config import KernelConfig
from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.problem import Problem
from cupygemm.search.runners.counted import count
from cupygemm.search.runners.traffic import traffic
from tests.gpu.protocol import LARGE, SMALL

pytestmark = pytest.mark.gpu


needs_ncu = pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not on the PATH")


def counted(problem: Problem, configs: Sequence[KernelConfig]) -> list[dict[str, Any]]:
    try:
        return count(problem, configs, 0)
    except LaunchError as error:
        if "ERR_NVGPUCTRPERM" in str(error):
            pytest.skip("counters may not be read on this machine")
        raise


@needs_ncu
def test_kernels_of_every_kind_are_counted():
    configs = [SMALL.swapped(cluster_k=cluster_k, cp_async_stages=copied) for cluster_k in (1, 2) for copied in (0, 2)]
    found = counted(Problem(512, 512, 512), configs)
    assert [figures["l2_source"] for figures in found] == ["counters"] * len(configs)


@needs_ncu
def test_counted_bytes_are_near_the_model():
    problem = Problem(2048, 2048, 4096)
    configs = [LARGE, LARGE.swapped(group=1)]
    for config, figures in zip(configs, counted(problem, configs), strict=True):
        assert figures["l2_source"] == "counters"
        assert 0 < figures["l2_hit_rate"] < 1
        assert figures["l2_term"] == pytest.approx(traffic(problem, config, driver.device_spec(0)).l2_term, abs=0.25)
