"""Repetition, streams and graphs: what a race or a missing fence breaks, and a single launch does not show."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from cupygemm.kernels import driver
from cupygemm.kernels.kernel_plan import Plan
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.protocol import CONFIGS, LARGE, Kernels, operands

pytestmark = pytest.mark.gpu

SOAK_LAUNCHES = 10_000


@pytest.mark.parametrize("name", CONFIGS)
def test_repeated_launches_are_bitwise_equal(name: str, kernels: Kernels) -> None:
    """A three-tile problem (fewer tiles than SMs, an odd count for clusters), back to back."""
    cupy = driver.cupy()
    config = CONFIGS[name]
    problem = Problem(config.block_m * config.cluster_m * 3 - 8, config.block_n * config.cluster_n, 256)
    plan = kernels.plan(problem, config)
    given = operands(problem, verify.ZERO_MEAN, 3)
    first, out = given.out.copy(), given.out
    plan.launch(given._replace(out=first))
    assert verify.check(first, verify.Reference.of(given, problem)).ok
    different = cupy.zeros((), dtype=cupy.int64)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    repeats = 100
    with stream:
        stream.begin_capture()
        for _ in range(repeats):
            plan.launch(given)
        graph = stream.end_capture()
        for _ in range(SOAK_LAUNCHES // repeats):
            out.fill(float("nan"))
            graph.launch()
            different += (out.view(cupy.uint16) != first.view(cupy.uint16)).sum()
        stream.synchronize()
    assert int(different) == 0


def differing(plan: Plan, given: Operands, first: Any) -> int:
    """Elements that differ from `first` in 300 launches, each into a poisoned result."""
    cupy, out = driver.cupy(), given.out
    different = cupy.zeros((), dtype=cupy.int64)
    for _ in range(300):
        out.fill(float("nan"))
        plan.launch(given)
        different += (out.view(cupy.uint16) != first.view(cupy.uint16)).sum()
    return int(different)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_launch_of_many_is_compared(name: str, kernels: Kernels) -> None:
    """As above at a size of several tiles a CTA, comparing after every launch: epilogue and next loads overlap."""
    config = CONFIGS[name]
    problem = Problem(2056, 2064, 200)
    plan = kernels.plan(problem, config, max_sms=64)
    given = operands(problem, verify.POSITIVE_MEAN, 4)
    first = given.out.copy()
    plan.launch(given._replace(out=first))
    assert verify.check(first, verify.Reference.of(given, problem)).ok
    assert differing(plan, given, first) == 0


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.ping_pong])
def test_turns_of_one_stage(name: str, kernels: Kernels) -> None:
    """The shortest turns there are: a warp that is late for one must not miss it."""
    config = CONFIGS[name]
    problem = Problem(4096, 4096, config.block_k)
    plan = kernels.plan(problem, config)
    given = operands(problem, verify.ZERO_MEAN, 5)
    first = given.out.copy()
    plan.launch(given._replace(out=first))
    assert verify.check(first, verify.Reference.of(given, problem)).ok
    assert differing(plan, given, first) == 0


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_dependent_launches_wait_for_what_they_read_and_overwrite(name: str, captured: bool, kernels: Kernels) -> None:
    """A chain over two buffers: each launch reads what the one before wrote, and writes what that one read."""
    cupy = driver.cupy()
    size, steps = 768, 40
    plan = kernels.plan(Problem(size, size, size), CONFIGS[name], dependent_launch=True)
    order = cupy.asarray(np.random.default_rng(8).permutation(size))
    shuffle = cupy.zeros((size, size), dtype=cupy.float16)
    shuffle[order, cupy.arange(size)] = 1
    start = operands(plan.problem, verify.ZERO_MEAN, 9).a
    expected = start.copy()
    for _ in range(steps):
        expected = expected[:, order]
    buffers = [cupy.full((size, size), float("nan"), dtype=cupy.float16) for _ in range(2)]

    def chain() -> None:
        buffers[0][...] = start  # a kernel that ends in its own time
        for step in range(steps):
            plan(buffers[step % 2], shuffle, buffers[(step + 1) % 2])

    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        graph = None
        if captured:
            stream.begin_capture()
            chain()
            graph = stream.end_capture()
        for _ in range(10):
            for buffer in buffers:
                buffer.fill(float("nan"))
            chain() if graph is None else graph.launch()
            assert bool((buffers[steps % 2] == expected).all())
        stream.synchronize()


def test_two_streams_at_once(kernels: Kernels) -> None:
    """Two persistent kernels share the SMs: neither may assume that its CTAs all run at once."""
    cupy = driver.cupy()
    problem = Problem(1024, 1024, 1024)
    results = {}
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    plans = [kernels.plan(problem, LARGE), kernels.plan(problem, CONFIGS["cluster 2x2"])]
    data = [operands(problem, verify.ZERO_MEAN, seed) for seed in range(2)]
    references = [verify.Reference.of(given, problem) for given in data]
    cupy.cuda.Device().synchronize()
    for _ in range(200):
        for stream, plan, given in zip(streams, plans, data, strict=True):
            with stream:
                plan.launch(given)
    cupy.cuda.Device().synchronize()
    for index, (given, reference) in enumerate(zip(data, references, strict=True)):
        results[index] = verify.check(given.out, reference).ok
    assert results == {0: True, 1: True}


def test_threads_with_streams_of_their_own(kernels: Kernels) -> None:
    cupy = driver.cupy()
    problem = Problem(512, 512, 512)
    plan = kernels.plan(problem, LARGE)
    verdicts: list[bool] = []

    def work(seed: int) -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            given = operands(problem, verify.ZERO_MEAN, seed)
            reference = verify.Reference.of(given, problem)
            for _ in range(50):
                out = cupy.full((512, 512), float("nan"), dtype=cupy.float16)
                plan.launch(given._replace(out=out))
                verdicts.append(verify.check(out, reference).ok)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 200


def test_graph_replays_see_new_operands(kernels: Kernels) -> None:
    cupy = driver.cupy()
    problem = Problem(256, 256, 512)
    plan = kernels.plan(problem, LARGE)
    given = operands(problem, verify.ZERO_MEAN, 1)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        plan.launch(given)
        graph = stream.end_capture()
        for seed in (2, 3):
            given.a[...], given.b[...], given.out[...] = operands(problem, verify.ZERO_MEAN, seed)[:3]
            graph.launch()
            assert verify.check(given.out, verify.Reference.of(given, problem)).ok
        stream.synchronize()
