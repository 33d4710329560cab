"""Calls of `matmul` that are like one before: the same product without deciding anew, and none where it matters."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.device import H200
from cupygemm.errors import CaptureError, LaunchError
from cupygemm.kernels import driver
from cupygemm.problem import Problem
from cupygemm.runtime import api, prepared
from cupygemm.runtime.repeats import MOST, Repeats
from tests.fake_gpu import FakeDevice, FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, plain, right, stored

DIRECT = SMALL.swapped(store_stages=0)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


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
    bias = gpu.empty(40, np.float16)
    bias[...] = 0
    with cupygemm.use(bundle_of(PROBLEM)):
        for options in ({"order": "C"}, {"alpha": np.float64(1), "bias": bias}, {"dtype": np.float16}):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **options)), right(a, b))
            assert len(repeats) == 0
        cupygemm.matmul(a, b, alpha=float("1"))
        assert len(repeats) == 1


def test_what_is_no_array_is_not_asked_for_its_shape(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(a, b)
        for wrong in (None, [[1.0]], np.ones((24, 16), np.float16)):
            with pytest.raises(TypeError):
                cupygemm.matmul(wrong, b)


def test_memory_is_bounded(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST <= 10_000
    monkeypatch.setattr("cupygemm.runtime.repeats.MOST", 3)
    repeats = Repeats()
    monkeypatch.setattr(api, "_repeats", repeats)
    problems = [Problem(24, 8 * n, 16) for n in range(1, 9)]
    with cupygemm.use(bundle_of(*problems)):
        for problem in problems:
            a, b = draw(gpu, 1, n=problem.n)
            cupygemm.matmul(a, b)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            assert len(repeats) <= 3


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


@pytest.mark.parametrize(("status", "launches"), [(719, 1), (201, 2)])
def test_a_launch_that_the_driver_refuses_is_an_error(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, status: int, launches: int
) -> None:
    """Without a context one is made, and it is tried again."""
    asked: list[Any] = []
    made: list[Any] = []

    def refuse(*call: Any) -> int:
        asked.append(call)
        return status

    monkeypatch.setattr(prepared, "_driver_calls", lambda: (refuse, gpu._replace_address))
    monkeypatch.setattr(driver, "status_name", lambda status: f"number {status}")
    monkeypatch.setattr(driver.cupy().cuda.runtime, "free", made.append, raising=False)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(*draw(gpu, 1))
        with pytest.raises(LaunchError, match=f"answered number {status} to cuLaunchKernelEx"):
            cupygemm.matmul(*draw(gpu, 2))
    assert (len(asked), made) == (launches, [0] * (launches - 1))


@pytest.mark.parametrize("word", [0, 3])
def test_the_driver_is_asked_where_it_puts_addresses(gpu: FakeGpu, word: int) -> None:
    """Where they do not stand first in a descriptor, it puts them in."""
    gpu.address_word = word
    replaced: list[int] = []
    put = gpu._replace_address
    prepared._driver_calls()  # the fake one
    gpu._replace_address = lambda *told: replaced.append(told[0]) or put(*told)  # type: ignore[func-returns-value,method-assign]
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(*draw(gpu, 1))
        count = len(replaced)
        for seed in range(3):
            a, b = draw(gpu, 10 + seed)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(replaced) - count == (0 if word == 0 else 9)


@pytest.mark.parametrize("devices", [1, 2])
def test_one_device_is_the_current_one(gpu: FakeGpu, decided: list[Any], devices: int) -> None:
    gpu.specs = dict.fromkeys(range(devices), H200)
    with cupygemm.use(bundle_of(PROBLEM)):
        for seed in range(3):
            a, b = draw(gpu, seed)
            out = gpu.empty((24, 40), np.float16)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, out=out)), right(a, b))
    assert len(decided) == 2


def test_each_thread_has_its_own(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = draw(gpu, 1)
    results: list[Any] = []
    with cupygemm.use(bundle_of(PROBLEM)):
        for _ in range(2):
            thread = threading.Thread(target=lambda: results.extend(cupygemm.matmul(a, b) for _ in range(3)))
            thread.start()
            thread.join()
    assert len(decided) == 2
    for result in results:
        np.testing.assert_array_equal(plain(result), right(a, b))


FUSED = Problem(24, 40, 16, epilogue="bias_n+residual+relu")


def draw_terms(gpu: FakeGpu, seed: int) -> tuple[Any, Any]:
    return stored(gpu, (1, 40), seed=seed)[0], stored(gpu, (24, 40), seed=seed + 1)


def test_epilogues_are_repeated(gpu: FakeGpu, decided: list[Any]) -> None:
    with cupygemm.use(bundle_of(FUSED)):
        for seed in range(4):
            a, b = draw(gpu, seed)
            bias, residual = draw_terms(gpu, 20 + seed)
            factors = {"alpha": 2.0 + seed, "beta": 3}
            wanted = np.maximum((2.0 + seed) * right(a, b) + plain(bias) + 3 * plain(residual), 0)
            terms = {"bias": bias, "residual": residual, "activation": "relu", **factors}
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **terms)), wanted)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, out=residual, **terms)), wanted)
    assert len(decided) == 2
    assert len(gpu.launches) == 8
    assert gpu.fallbacks == []


def test_addresses_of_terms_are_looked_at_each_time(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = draw(gpu, 1)
    terms_of = draw_terms(gpu, 5)
    buffer = gpu.empty(24 * 40 * 2 + 4, np.float16)
    buffer[...] = 1
    with cupygemm.use(bundle_of(FUSED)):

        def check(bias: Any, residual: Any, out: Any, anew: int) -> None:
            wanted = np.maximum(right(a, b) + plain(bias) + plain(residual), 0)
            count = len(decided)
            result = cupygemm.matmul(a, b, out=out, bias=bias, residual=residual, activation="relu")
            np.testing.assert_array_equal(plain(result), wanted)
            assert len(decided) - count == anew

        first, second = buffer[:960].reshape(24, 40), buffer[960:1920].reshape(24, 40)
        check(*terms_of, first, 1)
        check(*terms_of, second, 0)
        check(terms_of[0], second, second, 0)  # the residual itself
        shifted = buffer[8:968].reshape(24, 40)
        check(terms_of[0], shifted, first, 1)  # a part of it
        check(buffer[:40], terms_of[1], first, 1)  # the bias
        odd = buffer[1:41]
        check(odd, terms_of[1], second, 1)  # pairs are read


def test_epilogues_that_differ_are_decided_anew(gpu: FakeGpu, decided: list[Any]) -> None:
    a, b = draw(gpu, 1)
    bias, residual = draw_terms(gpu, 3)
    problems = (PROBLEM, FUSED, *(Problem(24, 40, 16, epilogue=e) for e in ("bias_n", "bias_n+relu", "scaled")))
    wide = Problem(24, 40, 16, out_dtype="float32")
    product = right(a, b)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"bias": bias}, product + plain(bias)),
        ({"bias": bias, "activation": "relu"}, np.maximum(product + plain(bias), 0)),
        ({"residual": residual, "bias": bias, "activation": "relu"}, np.maximum(product + bias + plain(residual), 0)),
        ({"alpha": 2.0}, 2 * product),
        ({"alpha": 3.0}, 3 * product),
        ({"alpha": 1.0}, product),
        ({"out_dtype": np.float32}, product),
        ({"out_dtype": "float32", "alpha": 1}, product),
        ({"out_dtype": np.dtype(np.float32)}, product),
    ]
    with cupygemm.use(bundle_of(*problems, wide)):
        for _ in range(2):
            for terms, wanted in cases:
                np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **terms)), wanted)
    # Factors beside 1 differ in nothing, and a dtype may be told in several ways.
    assert 6 <= len(decided) <= 8
    with cupygemm.use(bundle_of(*problems)), pytest.raises(ValueError, match="no residual"):
        cupygemm.matmul(a, b, bias=bias, beta=2.0)


def test_a_handler_that_multiplies_meanwhile_spoils_nothing(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the writing of addresses and the launch, in the same thread: a signal handler, say, or a finalizer."""
    repeats = Repeats()
    monkeypatch.setattr(api, "_repeats", repeats)
    inner: list[Any] = []
    other = draw(gpu, 50)

    class Interrupting:
        def __init__(self, place: Any) -> None:
            self.place = place

        def _put(self, value: int) -> None:
            self.place.value = value
            if armed:
                armed.clear()
                inner.append(cupygemm.matmul(*other))

        value = property(None, _put)

    armed: list[bool] = []
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(*draw(gpu, 1))
        (call,) = repeats._threads.known.calls.values()
        call._first._map_b = Interrupting(call._first._map_b)
        a, b = draw(gpu, 7)
        armed.append(True)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    np.testing.assert_array_equal(plain(inner[0]), right(*other))


def test_what_is_cupys_is_cupys_at_once(gpu: FakeGpu, decided: list[Any]) -> None:
    for dtype in (np.float32, np.float16):
        a, b, out = gpu.empty((8, 16), dtype), gpu.empty((16, 24), dtype), gpu.empty((8, 24), dtype)
        a[...], b[...] = 2, 3
        decided.clear()
        gpu.fallbacks.clear()
        for _ in range(3):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            out[...] = 0
            assert cupygemm.matmul(a, b, out=out) is out
            np.testing.assert_array_equal(plain(out), right(a, b))
        assert (len(decided), len(gpu.fallbacks)) == (2, 6)
        gpu.stream.begin_capture()
        with pytest.raises(CaptureError):
            cupygemm.matmul(a, b)
        gpu.stream.end_capture()


def test_what_is_cupys_at_one_address_may_not_be_at_another(gpu: FakeGpu, decided: list[Any]) -> None:
    buffer, b = gpu.empty(16 * 16 + 8, np.float16), stored(gpu, (16, 16))
    buffer[...] = 1
    with cupygemm.use(bundle_of(Problem(16, 16, 16))):
        for elements, kernel in ((1, "cublas"), (0, "own"), (1, "cublas"), (2, "cublas"), (8, "own"), (1, "cublas")):
            a = buffer[elements : elements + 256].reshape(16, 16)
            launches = len(gpu.launches)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            assert (len(gpu.launches) > launches) == (kernel == "own")
        assert len(decided) == 4  # at 1, 0, 2, and at 1 again, which 2 has taken the place of
        square = buffer[1:257].reshape(16, 16)
        out = gpu.empty((16, 16), np.float16)
        cupygemm.matmul(square, b, out=out)
        cupygemm.matmul(square, b, out=out)
        wanted, count = right(square, b), len(decided)
        assert cupygemm.matmul(square, b, out=square) is square
        np.testing.assert_array_equal(plain(square), wanted)
        assert len(decided) == count + 1


def test_cublas_for_as_long_as_a_kernel_is_compiled_is_not_remembered(
    gpu: FakeGpu, decided: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    a, b = draw(gpu, 1)
    for _ in range(3):
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(decided) == 3
