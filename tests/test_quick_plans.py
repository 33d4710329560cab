"""The quick way of a plan: which calls go by it, and that each has the right product, whatever was called before."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import LaunchError, ProblemError
from cupygemm.problem import Problem
from cupygemm.runtime.planned import MatmulPlan
from tests.fake_gpu import DeviceArray, FakeDevice, FakeGpu
from tests.fake_products import PROBLEM, bundle_of, plain, right, stored
from tests.plan_calls import FUSED, arrays_of, both, check, gpu_of, plan_of


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeGpu:
    return gpu_of(monkeypatch, request.param)


@pytest.fixture
def closely(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The calls of plans that do not go the quick way."""
    looked: list[bool] = []
    check = MatmulPlan._check

    def looking(*told: Any) -> None:
        looked.append(True)
        check(*told)

    monkeypatch.setattr(MatmulPlan, "_check", looking)
    return looked


@both
def test_arrays_alike_go_quickly(gpu: FakeGpu, closely: list[bool], fused: bool) -> None:
    plan = plan_of(gpu, fused)
    for seed in range(4):
        arrays = arrays_of(gpu, fused, 5 * seed)
        check(plan, arrays)
        check(plan, arrays._replace(out=None))
    assert closely == []
    assert (len(gpu.launches), gpu.fallbacks) == (8, [])


def test_arrays_by_columns_and_with_gaps_go_quickly(gpu: FakeGpu, closely: list[bool]) -> None:
    """Also those whose strides have to be looked at."""
    fused = Problem(24, 40, 16, layout="tn", epilogue="bias_n+residual")
    made = [
        (stored(gpu, (24, 16), "t", seed=seed), stored(gpu, (16, 40), padding=8, seed=seed + 1)) for seed in range(3)
    ]
    bias, residual = stored(gpu, (1, 40))[0], stored(gpu, (24, 40), padding=24)
    with cupygemm.use(bundle_of(Problem(24, 40, 16, layout="tn"), fused)):
        plans = [
            (cupygemm.plan(*made[0]), {}),
            (cupygemm.plan(*made[0], bias=bias, residual=residual), {"bias": bias, "residual": residual}),
        ]
    for plan, terms in plans:
        assert plan.choice.kernel == "own"
        for a, b in made:
            wanted = right(a, b) + (plain(bias) + plain(residual) if terms else 0)
            np.testing.assert_array_equal(plain(plan(a, b, **terms)), wanted)
    assert closely == []


def test_factors_hold_for_one_call(gpu: FakeGpu, closely: list[bool]) -> None:
    plan = plan_of(gpu, True, alpha=3.0, beta=0.5)
    arrays = arrays_of(gpu, True, 5)
    given: list[dict[str, Any]] = [{}, {"alpha": 2.0}, {}, {"beta": 2}, {"alpha": -1, "beta": -1.0}, {}]
    for factors in given:
        wanted = arrays.wanted(**{"alpha": 3.0, "beta": 0.5, **factors})
        np.testing.assert_array_equal(plain(plan(*arrays[:3], **arrays.terms, **factors)), wanted)
    for odd in (True, np.float64(2), 0, 0.0):
        check(plan, arrays, alpha=odd, beta=2)
    assert closely == []
    check(plan, arrays, alpha=np.float32(2), beta=2)  # as matmul takes it
    assert closely == [True]
    assert np.isnan(plain(plan(*arrays[:3], **arrays.terms, alpha=float("nan")))).all()


def test_terms_hold_for_one_call(gpu: FakeGpu) -> None:
    plan = plan_of(gpu, True)
    first, second = arrays_of(gpu, True, 5), arrays_of(gpu, True, 50)
    for bias, residual in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
        chosen = (first, second)
        check(plan, first._replace(bias=chosen[bias].bias, residual=chosen[residual].residual))


def test_a_residual_where_out_begins_that_lies_otherwise(gpu: FakeGpu) -> None:
    arrays, wide = arrays_of(gpu, True), stored(gpu, (24, 64))
    with cupygemm.use(bundle_of(FUSED)):
        plan = cupygemm.plan(*arrays[:3], bias=arrays.bias, residual=wide[:, :40], activation="relu")
    check(plan, arrays._replace(residual=wide[:, :40]))
    assert plan._residual.seen != plan._out.seen
    check(plan, arrays._replace(residual=wide[:, :40], out=wide.reshape(-1)[:960].reshape(24, 40)))


@both
def test_addresses_that_matter_are_matmuls(gpu: FakeGpu, fused: bool) -> None:
    """Operands that TMA cannot read from there, terms that are read in pairs, and results on what is still read."""
    plan = plan_of(gpu, fused)

    def off(array: Any, elements: int) -> Any:
        """The same, some elements further on."""
        buffer = gpu.empty(array.size + elements, np.float16)
        found = buffer[elements:].reshape(array.shape)
        found[...] = array
        return found

    for name in ("a", "b", "out", "bias", "residual") if fused else ("a", "b", "out"):
        for elements in (1, 4, 7):
            arrays = arrays_of(gpu, fused, 5)
            check(plan, arrays._replace(**{name: off(getattr(arrays, name), elements)}))
    for name, size in (("a", 24 * 16), ("b", 16 * 40), ("bias", 40), ("residual", 24 * 40)):
        if getattr(arrays, name) is None:
            continue
        for start in (0, 8, 960 - 8):
            buffer = gpu.empty(4000, np.float16)
            buffer[...] = 1
            # `out` is in the middle, and the other lies on its beginning or its end.
            out = buffer[1000:1960].reshape(24, 40)
            for first in (1000 + start, 1000 - size + 8 if start else 1000):
                first += -first % 8
                other = buffer[first : first + size].reshape(getattr(arrays, name).shape)
                other[...] = getattr(arrays, name)
                check(plan, arrays._replace(**{name: other, "out": out}))


def test_a_residual_that_is_out_itself_goes_quickly(gpu: FakeGpu, closely: list[bool]) -> None:
    plan, arrays = plan_of(gpu, True), arrays_of(gpu, True, 5)
    for _ in range(3):
        check(plan, arrays._replace(out=arrays.residual), alpha=0.5)
    assert (closely, gpu.fallbacks) == ([], [])


def test_out_beside_an_operand_goes_quickly(gpu: FakeGpu, closely: list[bool]) -> None:
    plan, arrays = plan_of(gpu, False), arrays_of(gpu, False, 5)
    buffer = gpu.empty(24 * 16 + 24 * 40 + 24 * 16, np.float16)
    out = buffer[384:1344].reshape(24, 40)
    for start in (0, 1344):
        a = buffer[start : start + 384].reshape(24, 16)
        a[...] = arrays.a
        check(plan, arrays._replace(a=a, out=out))
    assert closely == []


@both
def test_arrays_of_a_class_of_their_own_are_multiplied(gpu: FakeGpu, fused: bool) -> None:
    class Own(DeviceArray):
        pass

    plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
    for name in ("a", "b", "out", *arrays.terms):
        check(plan, arrays._replace(**{name: getattr(arrays, name).view(Own)}))


@both
def test_no_other_device_than_the_planned_one(gpu: FakeGpu, closely: list[bool], fused: bool) -> None:
    if len(gpu.specs) == 1:
        pytest.skip("there is one device")
    here = arrays_of(gpu, fused, 5)
    with FakeDevice(gpu, 1):
        plan, there = plan_of(gpu, fused), arrays_of(gpu, fused, 10)
        check(plan, there)
        assert closely == []
    check(plan, there)  # while another device is the current one
    assert closely == [True]
    assert {launched.device for launched in gpu.launches} == {1}
    for name in ("a", "b", "out", *here.terms):
        mixed = there._replace(**{name: getattr(here, name)})
        for device in (0, 1):
            with FakeDevice(gpu, device), pytest.raises(ProblemError, match=f"{name} is on device 0"):
                plan(*mixed[:3], **mixed.terms)
    assert {launched.device for launched in gpu.launches} == {1}


@both
def test_a_call_in_the_middle_of_another_spoils_nothing(gpu: FakeGpu, fused: bool) -> None:
    """Between the writing of addresses and the launch, in the same thread: a signal handler, say, or a finalizer."""
    plan, inner, outer = plan_of(gpu, fused), arrays_of(gpu, fused, 5), arrays_of(gpu, fused, 50)
    place = plan._repeat._first._map_b  # type: ignore[union-attr]
    waiting = [True]

    class Interrupting:
        def _put(self, value: int) -> None:
            place.value = value
            if waiting:
                waiting.clear()
                check(plan, inner)

        value = property(None, _put)

    plan._repeat._first._map_b = Interrupting()  # type: ignore[union-attr]
    check(plan, outer)
    assert waiting == []
    np.testing.assert_array_equal(plain(inner.out), inner.wanted())


@both
def test_a_launch_that_fails_can_be_made_again(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    launch, failing = gpu._launch, [True]
    monkeypatch.setattr(gpu, "_launch", lambda *told: 719 if failing else launch(*told))
    plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
    for _ in range(3):
        with pytest.raises(LaunchError, match=r"answered (CUDA_ERROR_LAUNCH_FAILED|error 719) to cuLaunchKernelEx"):
            plan(*arrays[:3], **arrays.terms)
    failing.clear()
    check(plan, arrays)
    assert len(plan._repeat._free) == 1  # type: ignore[union-attr]


@both
def test_a_capture_keeps_addresses_and_factors(gpu: FakeGpu, fused: bool) -> None:
    plan, arrays, others = plan_of(gpu, fused), arrays_of(gpu, fused, 5), arrays_of(gpu, fused, 50)
    factors = {"alpha": 2.0, "beta": 0.5} if fused else {}
    gpu.stream.begin_capture()
    plan(*arrays[:3], **arrays.terms, **factors)
    graph = gpu.stream.end_capture()
    check(plan, others)  # writes other addresses
    for array, other in zip(arrays, others, strict=True):
        if array is not None and array is not arrays.out:
            array[...] = other
    graph.launch()
    np.testing.assert_array_equal(plain(arrays.out), arrays.wanted(**factors))


@both
def test_a_plan_keeps_no_array_alive(gpu: FakeGpu, fused: bool) -> None:
    made = arrays_of(gpu, fused)
    with cupygemm.use(bundle_of(PROBLEM, FUSED)):
        activation = {"activation": "relu"} if fused else {}
        plan = cupygemm.plan(*made[:3], **made.terms, **activation)
    called = arrays_of(gpu, fused, 5)
    plan(*called[:3], **called.terms)
    watched = [weakref.ref(array) for arrays in (made, called) for array in arrays if array is not None]
    del made, called
    gc.collect()
    assert [each() for each in watched] == [None] * len(watched)
    assert plan.choice.kernel == "own"


@both
def test_a_dtype_that_is_equal_and_another_object(gpu: FakeGpu, fused: bool) -> None:
    plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
    alike = np.dtype(np.float16, metadata={"of": "its own"})
    for name in ("a", "b", "out", *arrays.terms):
        check(plan, arrays._replace(**{name: getattr(arrays, name).view(alike)}))
    assert gpu.fallbacks == []


@both
def test_without_the_driver_calls_it_is_matmul(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    def missing() -> Any:
        raise LaunchError("the CUDA driver library is not there")

    monkeypatch.setattr("cupygemm.runtime.prepared._driver_calls", missing)
    plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
    with cupygemm.use(bundle_of(PROBLEM, FUSED)):
        check(plan, arrays)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])
    arrays.a.shape = (16, 24)
    with pytest.raises(ProblemError):
        plan(*arrays[:3], **arrays.terms)
