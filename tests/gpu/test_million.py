"""A million calls with changing pointers: no memory of host or device grows, and the last result is as the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.everything import everything
from tests.gpu.protocol import operands

pytestmark = pytest.mark.gpu

CALLS = 1_000_000
WARM = 20_000
SETS = 7
GROWTH = 4 * 2**20
"""Bytes of host memory that may come and go by themselves: four bytes a call would show."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def by_matmul(given: Any) -> None:
    cupygemm.matmul(given.a, given.b, given.out)


def by_plan(problem: Problem) -> Callable[[Any], None]:
    given = operands(problem, verify.ZERO_MEAN, 0)
    plan = cupygemm.plan(given.a, given.b, given.out)

    def call(each: Any) -> None:
        plan(each.a, each.b, each.out)

    return call


@pytest.mark.parametrize("way", ["matmul", "plan"])
def test_a_million_calls(way: str) -> None:
    cupy, problem = driver.cupy(), Problem(64, 64, 64)
    sets = [operands(problem, verify.ZERO_MEAN, seed) for seed in range(SETS)]
    with cupygemm.use(everything()), cupy.cuda.Stream(non_blocking=True) as stream:
        call = by_matmul if way == "matmul" else by_plan(problem)
        for index in range(WARM):
            call(sets[index % SETS])
        stream.synchronize()
        first = [given.out.copy() for given in sets]
        pool = cupy.get_default_memory_pool()
        before, used = resident_bytes(), pool.used_bytes()
        for index in range(CALLS):
            call(sets[index % SETS])
        stream.synchronize()
        assert resident_bytes() - before < GROWTH
        assert pool.used_bytes() == used
        for given, kept in zip(sets, first, strict=True):
            assert bool((given.out == kept).all())
