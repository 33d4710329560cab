"""Calls of `matmul` that are like one before: the same product without deciding anew, and none where it matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm import api
from cupygemm.problem import Problem
from cupygemm.repeats import MOST, Repeats
from tests.fake_gpu import FakeDevice, FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, plain, right, stored

DIRECT = SMALL.swapped(store_stages=0)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were decided anew."""
    calls: list[Any] = []
    decide = api.decide

    def counting(*arguments: Any) -> Any:
        calls.append(arguments)
        return decide(*arguments)

    monkeypatch.setattr(api, "decide", counting)
    return calls


def draw(gpu: FakeGpu, seed: int, m: int = 24, n: int = 40, k: int = 16) -> tuple[Any, Any]:
    return stored(gpu, (m, k), seed=seed), stored(gpu, (k, n), seed=seed + 1)


@pytest.mark.parametrize("config", [SMALL, DIRECT, LARGE, SMALL.swapped(prefetch=2)])
def test_other_arrays_of_the_same_shapes_are_multiplied_right(gpu: FakeGpu, decided: list[Any], config: Any) -> None:
    with cupygemm.use(bundle_of(PROBLEM, config=config)):
        for seed in range(5):
            a, b = draw(gpu, 3 * seed)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            out = gpu.empty((24, 40), np.float16)
            assert cupygemm.matmul(a, b, out=out) is out
            np.testing.assert_array_equal(plain(out), right(a, b))
    assert len(decided) == 2  # one with `out` and one without
    assert len(gpu.launches) == 10


def test_stacks_and_vectors_are_repeated(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = stored(gpu, (6 * 24, 16)).reshape(6, 24, 16), stored(gpu, (6 * 16, 40)).reshape(6, 16, 40)
    with cupygemm.use(bundle_of(Problem(24, 40, 16, 6), Problem(6 * 24, 40, 16), Problem(1, 40, 16))):
        for left, right_ in ((a, b), (a, b[2]), (a[3, 4], b[1])):
            first, second = cupygemm.matmul(left, right_), cupygemm.matmul(left, right_)
            np.testing.assert_array_equal(plain(first), plain(left) @ plain(right_))
            np.testing.assert_array_equal(plain(second), plain(first))
            assert (second.shape, second.dtype) == (first.shape, first.dtype)
    assert len(decided) == 3
    assert gpu.fallbacks == []


def test_what_differs_is_decided_anew(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = draw(gpu, 1)
    wide = stored(gpu, (24, 32))
    bf16 = [stored(gpu, shape, dtype="bfloat16") for shape in ((24, 16), (16, 40))]
    with cupygemm.use(bundle_of(PROBLEM)):
        for left, right_ in ((a, b), (wide[:, ::2], b), (wide[:, :16], b), (stored(gpu, (24, 16), "t"), b), bf16):
            count = len(decided)
            np.testing.assert_array_equal(plain(cupygemm.matmul(left, right_)), right(left, right_))
            assert len(decided) == count + 1
        cupygemm.matmul(a, b, dtype=np.float32)
        assert len(decided) == count + 2


def test_addresses_are_looked_at_each_time(gpu: FakeGpu, decided: list[Any]) -> None:
    """The same shapes and strides, but off by 8 bytes, or with the result on an operand."""
    buffer, b = gpu.empty(16 * 16 + 8, np.float16), stored(gpu, (16, 16))
    buffer[...] = 1
    problem = Problem(16, 16, 16)
    with cupygemm.use(bundle_of(problem)):
        aligned, off = buffer[:256].reshape(16, 16), buffer[4:260].reshape(16, 16)
        np.testing.assert_array_equal(plain(cupygemm.matmul(aligned, b)), right(aligned, b))
        launches = len(gpu.launches)
        np.testing.assert_array_equal(plain(cupygemm.matmul(off, b)), right(off, b))
        assert len(gpu.launches) == launches  # TMA cannot read it
        out = gpu.empty((16, 16), np.float16)
        cupygemm.matmul(aligned, b, out=out)
        cupygemm.matmul(aligned, b, out=out)
        wanted, count = right(aligned, b), len(decided)
        assert cupygemm.matmul(aligned, b, out=aligned) is aligned
        assert len(decided) == count + 1
        np.testing.assert_array_equal(plain(aligned), wanted)


def test_another_bundle_ends_what_was_known(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = draw(gpu, 1)
    for config in (SMALL, LARGE):
        with cupygemm.use(bundle_of(PROBLEM, config=config)):
            cupygemm.matmul(a, b)
            cupygemm.matmul(a, b)
            assert gpu.launches[-1].threads == config.threads
    cupygemm.matmul(a, b)
    assert len(gpu.fallbacks) == 1
    assert len(decided) == 3


def test_a_device_that_is_not_current_goes_the_long_way(gpu: FakeGpu, decided: list[Any]) -> None:
    with FakeDevice(gpu, 1):
        a, b = draw(gpu, 1)
    with cupygemm.use(bundle_of(PROBLEM)):
        for _ in range(3):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(decided) == 3
    assert {launched.device for launched in gpu.launches} == {1}


def test_calls_that_are_not_answered_are_not_learnt(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = Repeats()
    monkeypatch.setattr(api, "_repeats", repeats)
    a, b = draw(gpu, 1)
    with cupygemm.use(bundle_of(PROBLEM)):
        for options in ({"order": "C"}, {"alpha": float("1")}, {"dtype": np.float16}):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **options)), right(a, b))
            assert repeats._known == {}


def test_what_is_no_array_is_not_asked_for_its_shape(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(a, b)
        for wrong in (None, [[1.0]], np.ones((24, 16), np.float16)):
            with pytest.raises(TypeError):
                cupygemm.matmul(wrong, b)


def test_memory_is_bounded(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST <= 10_000
    monkeypatch.setattr("cupygemm.repeats.MOST", 3)
    repeats = Repeats()
    monkeypatch.setattr(api, "_repeats", repeats)
    problems = [Problem(24, 8 * n, 16) for n in range(1, 9)]
    with cupygemm.use(bundle_of(*problems)):
        for problem in problems:
            a, b = draw(gpu, 1, n=problem.n)
            cupygemm.matmul(a, b)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            assert len(repeats._known) <= 3


def test_a_repeated_call_is_captured(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    out = gpu.empty((24, 40), np.float16)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(a, b, out=out)
        gpu.stream.begin_capture()
        cupygemm.matmul(a, b, out=out)
        graph = gpu.stream.end_capture()
    a[...] = 2
    graph.launch()
    np.testing.assert_array_equal(plain(out), right(a, b))
