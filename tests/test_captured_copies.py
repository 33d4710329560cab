"""Copies of operands in CUDA graphs: their memory is the graph's, whoever else is gone by its replays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError, LaunchError
from cupygemm.kernels import driver, pack_kernel
from cupygemm.problem import Problem
from cupygemm.runtime import product
from tests.fake_gpu import FakeGpu, FakeGraph
from tests.fake_kernel import CudaError
from tests.fake_products import SMALL, bundle_of, fresh_gpu, plain, right, stored

DIRECT = SMALL.swapped(store_stages=0)
"""Rows of 39 results are not stored by TMA."""
ODD = Problem(24, 39, 17)
BUNDLE = bundle_of(ODD, Problem(24, 40, 17), Problem(24, 24, 17, layout="nt"), Problem(24, 40, 17, 5), config=DIRECT)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = fresh_gpu(monkeypatch)
    monkeypatch.setattr(product, "pays", lambda *told: True)  # products of a test are too small for it
    return gpu


def draw(gpu: FakeGpu, seed: int = 1) -> tuple[Any, Any, Any]:
    return stored(gpu, (24, 17), seed=seed), stored(gpu, (17, 39), seed=seed + 1), gpu.empty((24, 39), np.float16)


def captured(gpu: FakeGpu, call: Callable[[], Any]) -> FakeGraph:
    gpu.stream.begin_capture()
    try:
        call()
    finally:
        graph = gpu.stream.end_capture()
    return graph


def check(gpu: FakeGpu, graph: FakeGraph, a: Any, b: Any, out: Any, added: Any = 0) -> None:
    """Replays with other contents, while others take memory and fill it."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        others = [gpu.empty(3000, np.uint8) for _ in range(3)]
        for other in others:
            other[...] = seed
        for operand in (a, b) if b.base is not a else (a,):
            operand[...] = rng.integers(-2, 3, operand.shape)
        graph.launch()
        np.testing.assert_array_equal(plain(out), plain(a) @ plain(b) + added)
        assert all((np.asarray(other) == seed).all() for other in others)


def test_a_plan_is_captured_at_once(gpu: FakeGpu) -> None:
    a, b, out = draw(gpu)
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b, out)
    graph = captured(gpu, lambda: plan(a, b, out))
    assert len(graph.launches) == 4  # memory, copies, product, memory
    check(gpu, graph, a, b, out)
    assert gpu.fallbacks == []


def test_what_a_plan_was_is_gone_before_its_graph(gpu: FakeGpu) -> None:
    a, b, out = draw(gpu)
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b)
    graph = captured(gpu, partial(plan, a, b, out))
    del plan
    gc.collect()
    check(gpu, graph, a, b, out)


def test_matmul_is_captured_after_a_first_call(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b, out = draw(gpu)
    with cupygemm.use(BUNDLE):
        cupygemm.matmul(a, b, out)
        assert len(decided) == 1
        quick = captured(gpu, lambda: cupygemm.matmul(a, b, out))
        assert len(decided) == 1
        other = draw(gpu, 9)[2]
        anew = captured(gpu, lambda: cupygemm.matmul(a, b, out=other, dtype=np.float16))  # options: no call before
        assert len(decided) == 2
    for graph, result in ((quick, out), (anew, other)):
        assert len(graph.launches) == 4
        check(gpu, graph, a, b, result)


def test_a_new_result_is_captured(gpu: FakeGpu) -> None:
    a, b, _ = draw(gpu)
    results: list[Any] = []
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b)
        for call in (plan, cupygemm.matmul):
            graph = captured(gpu, lambda call=call: results.append(call(a, b)))  # type: ignore[misc]
            check(gpu, graph, a, b, results.pop())


def test_one_operand_a_shared_copy_and_a_stack(gpu: FakeGpu) -> None:
    x, y = stored(gpu, (24, 17)), stored(gpu, (17, 40))
    stack, others = stored(gpu, (5 * 24, 17)).reshape(5, 24, 17), stored(gpu, (5 * 17, 40)).reshape(5, 17, 40)
    for a, b, shape, copied in ((x, y, (24, 40), 1), (x, x.T, (24, 24), 1), (stack, others, (5, 24, 40), 1)):
        out = gpu.empty(shape, np.float16)
        with cupygemm.use(BUNDLE):
            plan = cupygemm.plan(a, b, out)
        gpu.packed.clear()
        graph = captured(gpu, lambda plan=plan, a=a, b=b, out=out: plan(a, b, out))  # type: ignore[misc]
        assert [launch.operands for launch in gpu.packed] == [copied]
        check(gpu, graph, a, b, out)


def test_an_epilogue(gpu: FakeGpu) -> None:
    a, b, out = draw(gpu)
    bias, residual = stored(gpu, (1, 39), seed=8)[0], stored(gpu, (24, 39), seed=9)
    fused = bundle_of(Problem(24, 39, 17, epilogue="bias_n+residual"), config=DIRECT)
    with cupygemm.use(fused):
        plan = cupygemm.plan(a, b, out, bias=bias, residual=residual)
    graph = captured(gpu, lambda: plan(a, b, out, bias=bias, residual=residual, beta=2))
    check(gpu, graph, a, b, out, plain(bias) + 2 * plain(residual))


def test_calls_in_one_graph_follow_each_other(gpu: FakeGpu) -> None:
    """The second reads what the first has written, and each has its copies in memory of its own."""
    a, b, out = draw(gpu)
    square, last = stored(gpu, (39, 39), seed=5), gpu.empty((24, 39), np.float16)
    with cupygemm.use(bundle_of(ODD, Problem(24, 39, 39), config=DIRECT)):
        first, second = cupygemm.plan(a, b, out), cupygemm.plan(out, square, last)
    assert second.choice.kernel == "own"
    gpu.stream.begin_capture()
    first(a, b, out)
    second(out, square, last)
    graph = gpu.stream.end_capture()
    for seed in range(3):
        a[...] = np.random.default_rng(seed).integers(-2, 3, a.shape)
        graph.launch()
        np.testing.assert_array_equal(plain(last), right(a, b) @ plain(square))


def test_a_plan_keeps_its_kernel_in_a_capture(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b, out = draw(gpu)
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b, out)
    assert cupygemm.explain(a, b).kernel == "cublas"
    decided.clear()
    check(gpu, captured(gpu, lambda: plan(a, b, out)), a, b, out)
    assert decided == []


def test_without_the_copying_kernel_nothing_is_captured(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = draw(gpu)
    with cupygemm.use(BUNDLE):
        cupygemm.plan(a, b)
        monkeypatch.setattr(pack_kernel, "_loaded", {})
        gpu.stream.begin_capture()
        with pytest.raises(CaptureError, match="kernel that copies operands for TMA is not loaded"):
            cupygemm.matmul(a, b, out)
        assert gpu.stream.end_capture().launches == []


def test_where_the_driver_has_no_memory_for_a_graph(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = draw(gpu)

    def refused(size: int, stream: int) -> int:
        raise CudaError("cudaErrorNotSupported: operation not supported")

    monkeypatch.setattr(gpu, "malloc_async", refused)
    monkeypatch.setattr(driver, "cupy", lambda cupy=gpu.cupy: cupy)
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b, out)
        gpu.stream.begin_capture()
        for call in (plan, cupygemm.matmul):
            with pytest.raises(CaptureError, match=r"no memory of \d+ bytes for it: cudaErrorNotSupported"):
                call(a, b, out)
        assert gpu.stream.end_capture().launches == []
    np.testing.assert_array_equal(plain(plan(a, b, out)), right(a, b))


def test_a_launch_that_fails_leaves_no_memory_behind(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = draw(gpu)
    monkeypatch.setattr(gpu, "_launch", lambda *told: 719)
    with cupygemm.use(BUNDLE):
        plan = cupygemm.plan(a, b, out)
        gpu.stream.begin_capture()
        with pytest.raises(LaunchError, match=r"answered (CUDA_ERROR_LAUNCH_FAILED|error 719) to cuLaunchKernelEx"):
            plan(a, b, out)
        assert gpu.graph_memory == {}
        gpu.stream.end_capture()


def test_a_result_beside_out_is_still_refused(gpu: FakeGpu) -> None:
    a, b, _ = draw(gpu)
    turned = gpu.empty((39, 24), np.float16).T
    with cupygemm.use(BUNDLE):
        cupygemm.matmul(a, b, turned)
        plan = cupygemm.plan(a, b, turned)
        gpu.stream.begin_capture()
        for call in (plan, cupygemm.matmul):
            with pytest.raises(CaptureError, match="out needs an array beside it"):
                call(a, b, turned)
        assert gpu.stream.end_capture().launches == []
