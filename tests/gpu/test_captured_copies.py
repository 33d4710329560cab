"""Copies of operands in CUDA graphs on a real GPU: whose memory they lie in, and what goes on beside the replays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.runtime import product
from tests.gpu.everything import everything

pytestmark = pytest.mark.gpu

M, N, K = 129, 257, 513
"""Both operands are copied."""


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it costs: these products are small."""
    monkeypatch.setattr(product, "pays", lambda *told: True)


def filled(*shape: int, value: float = 0) -> Any:
    return driver.cupy().full(shape, value, driver.cupy().float16)


def planned(*arrays: Any, **terms: Any) -> cupygemm.MatmulPlan:
    with cupygemm.use(everything()):
        plan = cupygemm.plan(*arrays, **terms)
    assert plan.choice.kernel == "own"
    assert "is copied for TMA" in plan.choice.reason
    return plan


def captured(stream: Any, call: Callable[[], Any], mode: int | None = None) -> Any:
    """The graph of a call; what it does is for the replays."""
    driver.cupy().cuda.Device().synchronize()
    with stream:
        stream.begin_capture(mode)
        try:
            call()
        finally:
            graph = stream.end_capture()
    return graph


def new_stream() -> Any:
    return driver.cupy().cuda.Stream(non_blocking=True)


def exact(a: Any, b: Any) -> Any:
    cupy = driver.cupy()
    return cupy.matmul(a.astype(cupy.float64), b.astype(cupy.float64))


def drawn(*shape: int, seed: int) -> Any:
    """Small integers, whose products are exact."""
    cupy = driver.cupy()
    return cupy.random.default_rng(seed).integers(-2, 3, shape).astype(cupy.float16)


def check(stream: Any, graph: Any, a: Any, b: Any, out: Any) -> None:
    """Replays with other contents, while CuPy's pool hands out memory that is written to."""
    cupy = driver.cupy()
    for seed in range(4):
        a[...] = drawn(*a.shape, seed=seed)
        if b.base is None or b.base is not a:
            b[...] = drawn(*b.shape, seed=seed + 10)
        wanted = exact(a, b)
        out.fill(float("nan"))
        others = [cupy.full(each, 0xFF, cupy.uint8) for each in (1 << 16, 1 << 18, 1 << 20) for _ in range(4)]
        cupy.cuda.Device().synchronize()
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
        assert bool((out == wanted).all())
        assert all(bool((other == 0xFF).all()) for other in others)


@pytest.mark.parametrize("mode", ["Relaxed", "ThreadLocal", "Global"])
def test_a_plan_is_captured_at_once(mode: str) -> None:
    a, b, out = filled(M, K), filled(K, N), filled(M, N)
    plan, stream = planned(a, b, out), new_stream()
    number = getattr(driver.cupy().cuda.runtime, f"streamCaptureMode{mode}")
    check(stream, captured(stream, lambda: plan(a, b, out), number), a, b, out)


def test_matmul_is_captured_after_a_call() -> None:
    a, b, out = filled(M, K), filled(K, N), filled(M, N)
    stream = new_stream()
    with cupygemm.use(everything()):
        cupygemm.matmul(a, b, out)
        graph = captured(stream, lambda: cupygemm.matmul(a, b, out))
    check(stream, graph, a, b, out)


@pytest.mark.parametrize("kind", ["one operand", "its own transpose", "a stack", "one element in"])
def test_kinds_of_operands(kind: str) -> None:
    if kind == "one operand":
        a, b = filled(M, K), filled(K, 256)
    elif kind == "its own transpose":
        a = filled(M, K)
        b = a.T
    elif kind == "a stack":
        a, b = filled(5, 65, 129), filled(5, 129, 33)
    else:
        a, b = filled(130, 521)[1:, 1:], filled(520, 257)
    out = filled(*a.shape[:-1], b.shape[-1])
    plan, stream = planned(a, b, out), new_stream()
    check(stream, captured(stream, lambda: plan(a, b, out)), a, b, out)


def test_an_epilogue() -> None:
    cupy = driver.cupy()
    a, b, out = drawn(M, K, seed=1), drawn(K, N, seed=2), filled(M, N)
    bias, residual = drawn(N, seed=3), drawn(M, N, seed=4)
    plan, stream = planned(a, b, out, bias=bias, residual=residual, activation="relu"), new_stream()
    graph = captured(stream, lambda: plan(a, b, out, bias=bias, residual=residual, beta=2.0))
    for _ in range(2):
        out.fill(float("nan"))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert bool((out == cupy.maximum(exact(a, b) + bias + 2 * residual, 0)).all())


def test_the_plan_is_gone_before_its_graph() -> None:
    cupy = driver.cupy()
    a, b, out = filled(M, K), filled(K, N), filled(M, N)
    stream = new_stream()
    graph = captured(stream, partial(planned(a, b, out), a, b, out))
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    check(stream, graph, a, b, out)


def test_calls_in_one_graph_follow_each_other() -> None:
    cupy = driver.cupy()
    a, b, middle = filled(M, K), drawn(K, N, seed=1), filled(M, N)
    c, last = drawn(N, 65, seed=2) / 4, filled(M, 65)
    first, second, stream = planned(a, b, middle), planned(middle, c, last), new_stream()

    def both() -> None:
        first(a, b, middle)
        second(middle, c, last)

    graph = captured(stream, both)
    for seed in range(3):
        a[...] = drawn(M, K, seed=seed)
        last.fill(float("nan"))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        wanted = exact(exact(a, b).astype(cupy.float16), c)
        assert bool((abs(last - wanted) <= 1e-3 * abs(wanted).max()).all())


def test_graphs_are_replayed_at_once_on_several_streams() -> None:
    """Of one plan, each with other operands: copies of one must not be seen by another."""
    cupy = driver.cupy()
    first = filled(M, K), filled(K, N, value=0.25), filled(M, N)
    plan = planned(*first)
    sets = [first, *((filled(M, K), filled(K, N, value=0.25), filled(M, N)) for _ in range(3))]
    streams = [new_stream() for _ in sets]
    graphs = [captured(stream, lambda each=each: plan(*each)) for stream, each in zip(streams, sets, strict=True)]
    wrong = [cupy.zeros((), cupy.int64) for _ in sets]
    cupy.cuda.Device().synchronize()
    for turn in range(200):
        for index, (stream, graph, (a, _, out)) in enumerate(zip(streams, graphs, sets, strict=True)):
            value = 2 ** ((turn + index) % 4)
            with stream:
                a.fill(value)
                graph.launch()
                wrong[index] += (out != value * 0.25 * K).sum()
    cupy.cuda.Device().synchronize()
    assert [int(each) for each in wrong] == [0] * len(sets)


def test_one_graph_is_replayed_on_several_streams() -> None:
    """Its replays follow each other, wherever they are launched."""
    cupy = driver.cupy()
    a, b, out = drawn(M, K, seed=1), drawn(K, N, seed=2), filled(M, N)
    plan, streams = planned(a, b, out), [new_stream() for _ in range(3)]
    graph = captured(streams[0], lambda: plan(a, b, out))
    for _ in range(50):
        for stream in streams:
            graph.launch(stream)
    cupy.cuda.Device().synchronize()
    assert bool((out == exact(a, b)).all())


def test_calls_beside_replays_have_memory_of_their_own() -> None:
    cupy = driver.cupy()
    a, b, out = drawn(M, K, seed=1), drawn(K, N, seed=2), filled(M, N)
    x, y, result = drawn(M, K, seed=3), drawn(K, N, seed=4), filled(M, N)
    plan, stream, other = planned(a, b, out), new_stream(), new_stream()
    graph = captured(stream, lambda: plan(a, b, out))
    with other:
        for _ in range(100):
            graph.launch(stream)
            plan(x, y, result)
    cupy.cuda.Device().synchronize()
    assert bool((out == exact(a, b)).all())
    assert bool((result == exact(x, y)).all())


def test_the_memory_of_graphs_that_are_gone_can_be_had_back() -> None:
    cuda, cupy = driver.bindings(), driver.cupy()
    device = driver.checked(cuda.cuDeviceGet(0))

    def reserved() -> int:
        gc.collect()
        cupy.cuda.Device().synchronize()
        driver.checked(cuda.cuDeviceGraphMemTrim(device))
        kind = cuda.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
        return int(driver.checked(cuda.cuDeviceGetGraphMemAttribute(device, kind)))

    a, b, out = filled(4097, 4097), filled(4097, 257), filled(4097, 257)
    plan, stream = planned(a, b, out), new_stream()
    before = reserved()
    for _ in range(20):
        graph = captured(stream, lambda: plan(a, b, out))
        graph.launch(stream)
        stream.synchronize()
        del graph
    assert reserved() <= before
