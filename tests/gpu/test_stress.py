"""Threads and streams: products at once, the same and others, while bundles change, kernels load, graphs are captured.

Operands are small integers, so that whatever runs gives the same bits.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from tests.gpu.everything import ANY, everything
from tests.gpu.protocol import LARGE, SMALL

pytestmark = pytest.mark.gpu

THREADS = 8
ROUNDS = 60


class Work(NamedTuple):
    """A call, and the bits that it gives."""

    a: Any
    b: Any
    terms: dict[str, Any]
    right: Any

    def differs(self, result: Any) -> Any:
        """How many elements of a result are not right, as an array of no axes."""
        return (result != self.right).sum()


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    drawn = np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
    return driver.cupy().asarray(drawn).astype(verify.numpy_dtype(dtype))


def work(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float16", seed: int = 0, **terms: Any) -> Work:
    """A call with operands of these shapes; `bias` is drawn where it is True."""
    cupy = driver.cupy()
    left, right = draw(a, dtype, seed), draw(b, dtype, seed + 1)
    wanted = cupy.matmul(left.astype(cupy.float64), right.astype(cupy.float64))
    if terms.get("bias"):
        terms["bias"] = draw(b[-1:], dtype, seed + 2)
        wanted = wanted + terms["bias"].astype(cupy.float64)
    if terms.get("activation") == "relu":
        wanted = cupy.maximum(wanted, 0)
    return Work(left, right, terms, wanted.astype(left.dtype))


@pytest.fixture(scope="module")
def works() -> list[Work]:
    """Plain products, stacks, epilogues, vectors, and what CuPy computes; drawn before any thread begins."""
    found = [
        work((256, 128), (128, 512)),
        work((96, 96), (96, 96), seed=1),
        work((200, 64), (64, 72), "bfloat16", seed=2),
        work((5, 64, 128), (5, 128, 72), seed=3),
        work((7, 40, 64), (64, 48), seed=4),
        work((264, 128), (128, 136), seed=5, bias=True, activation="relu"),
        work((64,), (64, 48), seed=6),
        work((96, 97), (97, 96), seed=7),  # TMA does not read these rows
        work((64, 64), (64, 64), "float32", seed=8),
        work((1024, 512), (512, 1024), seed=9),
    ]
    driver.cupy().cuda.Device().synchronize()
    return found


@pytest.fixture(autouse=True)
def in_force() -> Iterator[None]:
    with cupygemm.use(everything()):
        yield


def at_once(task: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What a task gives in several threads that begin together, each with a stream of its own; its errors come out."""
    cupy, ready = driver.cupy(), threading.Barrier(threads)

    def run(index: int) -> Any:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            ready.wait()
            result = task(index)
            stream.synchronize()
            return result

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def multiply(works: list[Work], index: int, rounds: int = ROUNDS) -> int:
    """Random calls of these, some into a poisoned array; how many elements come out wrong."""
    cupy, rng = driver.cupy(), random.Random(index)
    wrong = cupy.zeros((), cupy.int64)
    for _ in range(rounds):
        each = rng.choice(works)
        out = cupy.full(each.right.shape, float("nan"), cupy.float32).astype(each.right.dtype)
        result = cupygemm.matmul(each.a, each.b, out if rng.random() < 0.5 else None, **each.terms)
        wrong += each.differs(result)
    return int(wrong)


def test_different_products_at_once(works: list[Work]) -> None:
    assert at_once(lambda index: multiply(works, index)) == [0] * THREADS


@pytest.mark.parametrize("which", [0, 3, 5])
def test_one_product_at_once(works: list[Work], which: int) -> None:
    """All threads share what is prepared for this one, each with other addresses."""
    assert at_once(lambda index: multiply(works[which : which + 1], index, 200)) == [0] * THREADS


def test_real_values_come_out_bitwise_the_same(works: list[Work]) -> None:
    cupy = driver.cupy()
    rng = cupy.random.default_rng(1)
    operands = [
        [rng.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16) for shape in ((520, 264), (264, 392))]
        for _ in range(THREADS)
    ]
    serial = [cupygemm.matmul(a, b) for a, b in operands]
    cupy.cuda.Device().synchronize()

    def task(index: int) -> int:
        different = cupy.zeros((), cupy.int64)
        for step in range(1000):
            chosen = (index + step) % THREADS
            result = cupygemm.matmul(*operands[chosen])
            different += (result.view(cupy.uint16) != serial[chosen].view(cupy.uint16)).sum()
        return int(different)

    assert at_once(task) == [0] * THREADS


def test_bundles_come_and_go_meanwhile(works: list[Work]) -> None:
    """And when they are gone, what they said is gone too."""
    bundles = [everything(SMALL.swapped(store_stages=0, group=group)) for group in (2, 3)]
    bundles.append(everything(LARGE.swapped(store_stages=0)))

    def task(index: int) -> int:
        if index:
            return multiply(works, index, 150)
        for _ in range(20):
            for bundle in bundles:
                with cupygemm.use(bundle):
                    each = works[0]
                    assert not int(each.differs(cupygemm.matmul(each.a, each.b)))
        return 0

    assert at_once(task) == [0] * THREADS
    for each in works:
        choice = cupygemm.explain(each.a, each.b, **each.terms)
        assert choice.config in (ANY, None)


def test_first_calls_race_to_compile(works: list[Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    with cupygemm.use(everything(SMALL.swapped(store_stages=0, stages=3, block_n=40))):
        assert at_once(lambda index: multiply([works[index % 2]], index, 5)) == [0] * THREADS
        assert at_once(lambda index: multiply(works, index, 30)) == [0] * THREADS
    assert len(list(tmp_path.rglob("*.cubin"))) >= 2


def test_graphs_are_captured_while_others_launch_and_load(works: list[Work]) -> None:
    cupy = driver.cupy()
    plain, fused = works[0], works[5]
    for each in (plain, fused):
        cupygemm.matmul(each.a, each.b, cupy.empty_like(each.right), **each.terms)
    cupy.cuda.Device().synchronize()

    def task(index: int) -> int:
        if index % 2:
            with cupygemm.use(everything(SMALL.swapped(store_stages=0, stages=2, group=index))):
                return multiply(works, index)
        stream, wrong = cupy.cuda.get_current_stream(), 0
        for each in (plain, fused) * 15:
            out = cupy.empty_like(each.right)
            stream.begin_capture()
            try:
                _capture(each, out)
            finally:
                graph = stream.end_capture()
            out.fill(float("nan"))
            graph.launch()
            wrong += int(each.differs(out))
        return wrong

    assert at_once(task) == [0] * THREADS


def _capture(each: Work, out: Any) -> None:
    """Captures a call; where bundles have just changed, its kernel need not be the one that is loaded."""
    while True:
        try:
            cupygemm.matmul(each.a, each.b, out, **each.terms)
            return
        except cupygemm.CaptureError:
            continue


def test_replays_in_several_streams_see_new_operands() -> None:
    cupy = driver.cupy()

    def task(index: int) -> int:
        stream = cupy.cuda.get_current_stream()
        a, b = draw((136, 64), "float16", index), draw((64, 72), "float16", index + 50)
        middle, out = cupy.empty((136, 72), cupy.float16), cupy.empty((136, 136), cupy.float16)

        def chain() -> None:
            cupygemm.matmul(a, b, middle, activation="relu")
            cupygemm.matmul(middle, middle.T, out, alpha=0.125)

        chain()
        stream.begin_capture()
        try:
            chain()
        finally:
            graph = stream.end_capture()
        wrong = 0
        for seed in range(30):
            a[...] = draw((136, 64), "float16", 100 + seed)
            chain()
            eager = out.copy()
            out.fill(float("nan"))
            graph.launch()
            wrong += int((out.view(cupy.uint16) != eager.view(cupy.uint16)).sum())
        return wrong

    assert at_once(task) == [0] * THREADS


@pytest.mark.parametrize("kind", ["null", "per thread", "blocking", "non-blocking"])
def test_any_stream(works: list[Work], kind: str) -> None:
    stream = driver.cupy().cuda.Stream
    make = {
        "null": lambda: stream.null,
        "per thread": lambda: stream.ptds,
        "blocking": stream,
        "non-blocking": lambda: stream(non_blocking=True),
    }
    with make[kind]() as current:
        wrong = multiply(works, 1)
        current.synchronize()
    assert wrong == 0


def test_the_legacy_stream_is_not_waited_for(works: list[Work]) -> None:
    """Work that is queued there is still under way when calls on another stream have ended."""
    cupy = driver.cupy()
    calls = works[:7]  # cuBLAS may take memory at its first call, which waits
    multiply(calls, 3)
    big = cupy.ones((8192, 8192), cupy.float32)
    busy = cupy.cuda.Event(disable_timing=True)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        results = [cupy.empty_like(each.right) for each in calls]
        stream.synchronize()
        with cupy.cuda.Stream.null:
            into = cupy.empty_like(big)
            for _ in range(40):
                cupy.matmul(big, big, out=into)
            busy.record()
        for each, result in zip(calls, results, strict=True):
            cupygemm.matmul(each.a, each.b, result, **each.terms)
        stream.synchronize()
        assert not busy.done
        assert sum(int(each.differs(result)) for each, result in zip(calls, results, strict=True)) == 0


def test_a_thread_that_has_not_used_cuda() -> None:
    a, b = draw((64, 72), "float16", 0), draw((72, 80), "float16", 1)
    out = driver.cupy().empty((64, 80), "float16")
    wanted = cupygemm.matmul(a, b)
    cupygemm.matmul(a, b, out=out)
    out.fill(0)
    thread = threading.Thread(target=lambda: cupygemm.matmul(a, b, out=out))
    thread.start()
    thread.join()
    assert bool((out == wanted).all())
