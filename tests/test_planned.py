"""Plans of users: products decided once and called often."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.device import H200
from cupygemm.errors import CaptureError, ProblemError
from cupygemm.problem import Problem
from tests.fake_gpu import FakeDevice, FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, on_another_device, plain, right, stored


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeGpu:
    gpu = fresh_gpu(monkeypatch)
    gpu.specs = dict.fromkeys(range(request.param), H200)
    return gpu


def draw(gpu: FakeGpu, seed: int, n: int = 40) -> tuple[Any, Any]:
    return stored(gpu, (24, 16), seed=seed), stored(gpu, (16, n), seed=seed + 1)


@pytest.mark.parametrize("config", [SMALL, LARGE, SMALL.swapped(store_stages=0), SMALL.swapped(prefetch=2)])
def test_it_multiplies_what_it_was_made_for(gpu: FakeGpu, decided: list[Any], config: Any) -> None:
    with cupygemm.use(bundle_of(PROBLEM, config=config)):
        plan = cupygemm.plan(*draw(gpu, 1))
    assert gpu.launches == []
    assert (plan.choice.kernel, plan.choice.problem) == ("own", PROBLEM)
    assert "24x40x16" in repr(plan)
    for seed in range(5):
        a, b = draw(gpu, 10 + seed)
        out = gpu.empty((24, 40), np.float16)
        np.testing.assert_array_equal(plain(plan(a, b)), right(a, b))
        assert plan(a, b, out) is out
        np.testing.assert_array_equal(plain(out), right(a, b))
    # What was in force stays in force for it.
    assert len(gpu.launches) == 10
    assert len(decided) == 1


def test_stacks_and_vectors(gpu: FakeGpu) -> None:
    a, b = stored(gpu, (6 * 24, 16)).reshape(6, 24, 16), stored(gpu, (6 * 16, 40)).reshape(6, 16, 40)
    with cupygemm.use(bundle_of(Problem(24, 40, 16, 6), Problem(1, 40, 16))):
        for left, right_ in ((a, b), (a[3, 4], b[1])):
            plan = cupygemm.plan(left, right_)
            result = plan(left, right_)
            np.testing.assert_array_equal(plain(result), plain(left) @ plain(right_))
    assert gpu.fallbacks == []


def test_epilogues(gpu: FakeGpu, decided: list[Any]) -> None:
    bias, residual = stored(gpu, (1, 40), seed=8)[0], stored(gpu, (24, 40), seed=9)
    terms = {"bias": bias, "residual": residual}
    with cupygemm.use(bundle_of(Problem(24, 40, 16, epilogue="bias_n+residual+relu"))):
        plan = cupygemm.plan(*draw(gpu, 1), **terms, activation="relu", alpha=3.0)
    for alpha in (3.0, 1, 0.5):
        a, b = draw(gpu, 5)
        factors = {} if alpha == 3.0 else {"alpha": alpha, "beta": 2}
        wanted = np.maximum(alpha * right(a, b) + plain(bias) + factors.get("beta", 1) * plain(residual), 0)
        np.testing.assert_array_equal(plain(plan(a, b, **terms, **factors)), wanted)
    held = gpu.empty((24, 40), np.float16)
    held[...] = residual
    np.testing.assert_array_equal(plain(plan(a, b, held, bias=bias, residual=held, alpha=0.5, beta=2)), wanted)
    assert len(gpu.launches) == 4
    assert len(decided) == 1


def test_what_it_was_not_made_for_is_refused(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    bias = stored(gpu, (1, 40), seed=8)[0]
    with cupygemm.use(bundle_of(PROBLEM)):
        plan = cupygemm.plan(a, b)
        for arrays, what in (
            ((a[:16], b), r"a is float16\[16, 16\]"),
            ((a, stored(gpu, (16, 40), "t")), "strides of"),
            ((a, stored(gpu, (16, 40), dtype="bfloat16")), "b is bfloat16"),
            ((a, b, gpu.empty((40, 24), np.float16)), r"out is float16\[40, 24\]"),
            ((a, b, gpu.empty((24, 40), np.float32)), "out is float32"),
            ((a, b, gpu.empty((24, 80), np.float16)[:, :40]), "out is float16"),
        ):
            with pytest.raises(ProblemError, match=what):
                plan(*arrays)
        for terms in ({"bias": bias}, {"alpha": 2.0}, {"beta": 2.0}, {"residual": gpu.empty((24, 40), np.float16)}):
            with pytest.raises(ProblemError, match="made without"):
                plan(a, b, **terms)
        with pytest.raises(TypeError, match=r"a is numpy\.ndarray: a plan takes CuPy arrays"):
            plan(np.ones((24, 16), np.float16), b)
    assert gpu.launches == []


def test_an_axis_of_one_has_no_stride(gpu: FakeGpu) -> None:
    wide, b = stored(gpu, (24, 64)), stored(gpu, (16, 40))
    bias = stored(gpu, (1, 40))[0]
    with cupygemm.use(bundle_of(Problem(1, 40, 16), Problem(1, 40, 16, epilogue="bias_n"))):
        for terms in ({}, {"bias": bias}):
            plan = cupygemm.plan(wide[:1, :16], b, **terms)
            added = plain(bias) if terms else 0
            for a in (stored(gpu, (1, 16)), wide[3:4, 16:32]):
                np.testing.assert_array_equal(plain(plan(a, b, **terms)), right(a, b) + added)
    assert gpu.fallbacks == []


def test_an_out_between_others(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    wide = gpu.empty((24, 64), np.float16)
    with cupygemm.use(bundle_of(PROBLEM)):
        plan = cupygemm.plan(a, b, wide[:, :40])
    plan(a, b, wide[:, 8:48])
    np.testing.assert_array_equal(plain(wide[:, 8:48]), right(a, b))
    assert np.isnan(plain(wide[:, :8])).all()
    with pytest.raises(ProblemError, match="give one"):
        plan(a, b)


def test_addresses_that_it_cannot_launch_for_are_matmuls(gpu: FakeGpu) -> None:
    buffer, b = gpu.empty(16 * 16 + 8, np.float16), stored(gpu, (16, 16))
    buffer[...] = 1
    with cupygemm.use(bundle_of(Problem(16, 16, 16))):
        aligned, off = buffer[:256].reshape(16, 16), buffer[4:260].reshape(16, 16)
        plan = cupygemm.plan(aligned, b)
        np.testing.assert_array_equal(plain(plan(off, b)), right(off, b))
        assert gpu.launches == []
        wanted = right(aligned, b)
        assert plan(aligned, b, aligned) is aligned
        np.testing.assert_array_equal(plain(aligned), wanted)


def test_without_a_config_it_is_matmul(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    plan = cupygemm.plan(a, b)
    assert plan.choice.kernel == "cublas"
    np.testing.assert_array_equal(plain(plan(a, b)), right(a, b))
    assert len(gpu.fallbacks) == 1
    with pytest.raises(ProblemError):
        plan(a[:8], b)


def test_another_device(gpu: FakeGpu) -> None:
    if len(gpu.specs) == 1:
        pytest.skip("there is one device")
    with FakeDevice(gpu, 1):
        a, b = draw(gpu, 1)
    with cupygemm.use(bundle_of(PROBLEM)):
        plan = cupygemm.plan(a, b)
        np.testing.assert_array_equal(plain(plan(a, b)), right(a, b))
        assert {launched.device for launched in gpu.launches} == {1}
        with pytest.raises(ProblemError, match="on device 0"):
            plan(*draw(gpu, 1))
        with pytest.raises(ProblemError, match="on device 1"):
            cupygemm.plan(*draw(gpu, 1))(*draw(gpu, 1), on_another_device(gpu, 24))


def test_threads_do_not_share_what_they_write(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have written what they launch before the first of them does."""
    count = 3
    together = threading.Barrier(count, timeout=20)
    launch = gpu._launch

    def launch_together(*told: Any) -> int:
        together.wait()
        return launch(*told)

    monkeypatch.setattr(gpu, "_launch", launch_together)
    terms = [{}, {"bias": stored(gpu, (1, 40))[0], "activation": "relu"}]
    with cupygemm.use(bundle_of(PROBLEM, Problem(24, 40, 16, epilogue="bias_n+relu"))):
        plans = [cupygemm.plan(*draw(gpu, 1), **each) for each in terms]
    for plan, planned in zip(plans, terms, strict=True):
        for _ in range(2):
            results: list[tuple[Any, Any]] = []

            def work(seed: int, plan: Any = plan, fused: bool = bool(planned), results: Any = results) -> None:
                a, b = draw(gpu, seed)
                bias = stored(gpu, (1, 40), seed=seed)[0]
                wanted = np.maximum(right(a, b) + plain(bias), 0) if fused else right(a, b)
                results.append((plan(a, b, bias=bias if fused else None), wanted))

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(results) == count
            for result, wanted in results:
                np.testing.assert_array_equal(plain(result), wanted)
        assert len(plan._repeat._free) == count


def test_a_plan_is_captured_at_once(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    out = gpu.empty((24, 40), np.float16)
    with cupygemm.use(
        bundle_of(PROBLEM, Problem(24, 48, 16, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16"))
    ):
        plan = cupygemm.plan(a, b, out)
        gpu.stream.begin_capture()
        plan(a, b, out)
        graph = gpu.stream.end_capture()
        a[...] = 2
        graph.launch()
        np.testing.assert_array_equal(plain(out), right(a, b))
        gpu.stream.begin_capture()
        with pytest.raises(CaptureError):
            cupygemm.plan(stored(gpu, (24, 16), dtype="bfloat16"), stored(gpu, (16, 48), dtype="bfloat16"))
        gpu.stream.end_capture()


def test_a_new_array_is_of_the_planned_dtype(gpu: FakeGpu) -> None:
    """Whichever way a call goes: as planned, or by matmul because of an address."""
    a, b = draw(gpu, 1)
    off = gpu.empty(24 * 16 + 8, np.float16)[4:388].reshape(24, 16)
    off[...] = a
    wide = gpu.empty((24, 40), np.float32)
    fused = Problem(24, 40, 16, out_dtype="float32", epilogue="relu")
    for bundle in (bundle_of(fused), bundle_of()):
        with cupygemm.use(bundle):
            plan = cupygemm.plan(a, b, wide, activation="relu")
            for left in (a, off):
                if plan.choice.kernel == "own":
                    assert plan(left, b).dtype == np.float32
                assert plan(left, b, wide) is wide
                np.testing.assert_array_equal(plain(wide), np.maximum(right(a, b), 0))
    with cupygemm.use(bundle_of(PROBLEM)):
        plan = cupygemm.plan(a, b, wide)
        with pytest.raises(ProblemError, match="give one"):
            plan(a, b)
        assert plan(a, b, wide) is wide


def test_a_residual_times_nothing_is_not_read(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    residual = gpu.empty((24, 40), np.float16)  # NaN
    bias = stored(gpu, (1, 40))[0]
    terms = {"bias": bias, "residual": residual}
    with cupygemm.use(bundle_of(*(Problem(24, 40, 16, epilogue=each) for each in ("bias_n", "bias_n+residual")))):
        plan = cupygemm.plan(a, b, **terms)
        for _ in range(2):
            for call in (cupygemm.matmul, plan):
                np.testing.assert_array_equal(plain(call(a, b, **terms, beta=0)), right(a, b) + plain(bias))
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **terms, beta=0.0)), right(a, b) + plain(bias))


def test_what_is_no_array_makes_no_plan(gpu: FakeGpu) -> None:
    a, b = draw(gpu, 1)
    for operands in (([[1.0]], b), (np.ones((24, 16), np.float16), b), (a, b, [1.0])):
        with pytest.raises(TypeError, match="CuPy arrays are needed"):
            cupygemm.plan(*operands)
    out = gpu.empty((24, 40), np.float16)
    with cupygemm.use(bundle_of(PROBLEM)):
        assert cupygemm.plan(a, b, (out,))(a, b, out) is out
        with pytest.raises(ProblemError, match="without a residual"):
            cupygemm.plan(a, b, activation="relu")(a, b, beta=3.0)
