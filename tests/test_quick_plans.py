"""The quick way of a plan: what goes by it, and every way in which it could be led to a wrong product."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cupygemm
from cupygemm.device import H200
from cupygemm.errors import LaunchError, ProblemError
from cupygemm.measuring.verify import numpy_dtype
from cupygemm.problem import Problem
from cupygemm.runtime.planned import MatmulPlan
from tests.fake_gpu import DeviceArray, FakeDevice, FakeGpu
from tests.fake_products import PROBLEM, bundle_of, fresh_gpu, plain, right, stored

FUSED = Problem(24, 40, 16, epilogue="bias_n+residual+relu")


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeGpu:
    gpu = fresh_gpu(monkeypatch)
    gpu.specs = dict.fromkeys(range(request.param), H200)
    return gpu


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


class Arrays(NamedTuple):
    """What a call takes."""

    a: Any
    b: Any
    out: Any
    bias: Any = None
    residual: Any = None

    @property
    def terms(self) -> dict[str, Any]:
        """The arrays that have names."""
        return {name: each for name, each in (("bias", self.bias), ("residual", self.residual)) if each is not None}

    def wanted(self, alpha: float = 1, beta: float = 1) -> Any:
        """The right result."""
        product = alpha * right(self.a, self.b)
        if self.bias is None:
            return product
        return np.maximum(product + plain(self.bias) + beta * plain(self.residual), 0)


def arrays_of(gpu: FakeGpu, fused: bool, seed: int = 0) -> Arrays:
    a, b, out = stored(gpu, (24, 16), seed=seed), stored(gpu, (16, 40), seed=seed + 1), gpu.empty((24, 40), np.float16)
    if not fused:
        return Arrays(a, b, out)
    return Arrays(a, b, out, stored(gpu, (1, 40), seed=seed + 2)[0], stored(gpu, (24, 40), seed=seed + 3))


def plan_of(gpu: FakeGpu, fused: bool, **more: Any) -> MatmulPlan:
    arrays = arrays_of(gpu, fused)
    with cupygemm.use(bundle_of(PROBLEM, FUSED)):
        activation = {"activation": "relu"} if fused else {}
        plan = cupygemm.plan(arrays.a, arrays.b, arrays.out, **arrays.terms, **activation, **more)
    assert plan.choice.kernel == "own"
    return plan


def check(plan: MatmulPlan, arrays: Arrays, **factors: float) -> None:
    """A call gives the right product, whichever way it goes."""
    wanted = arrays.wanted(**factors)
    result = plan(arrays.a, arrays.b, arrays.out, **arrays.terms, **factors)
    assert arrays.out is None or result is arrays.out
    np.testing.assert_array_equal(plain(result), wanted)


both = pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])


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


def reshaped(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    def reshape(array: Any) -> Any:
        array.shape = shape  # the very same object
        return array

    return reshape


def as_bfloat16(array: Any) -> Any:
    return array.view(numpy_dtype("bfloat16"))


WRONG: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a in another shape, in place": ("a", reshaped((16, 24))),
    "a with an axis more": ("a", reshaped((24, 16, 1))),
    "a of another dtype": ("a", as_bfloat16),
    "a backwards": ("a", lambda a: a[::-1]),
    "a with its rows turned": ("a", lambda a: a[:, ::-1]),
    "every row twice": ("a", lambda a: np.repeat(a, 2, 0)[::2]),
    "one row for all": ("a", lambda a: np.lib.stride_tricks.as_strided(a, (24, 16), (0, 2), subok=True)),
    "b in another shape, in place": ("b", reshaped((40, 16))),
    "b by columns": ("b", lambda b: b.T.copy().T),
    "b of another dtype": ("b", as_bfloat16),
    "out in another shape, in place": ("out", reshaped((40, 24))),
    "out by columns": ("out", lambda out: out.T.copy().T),
    "out of another dtype": ("out", as_bfloat16),
    "out in one row": ("out", reshaped((960,))),
    "bias with an axis more": ("bias", reshaped((1, 40))),
    "bias of another length": ("bias", lambda bias: bias[:24]),
    "bias with gaps": ("bias", lambda bias: np.repeat(bias, 2)[::2]),
    "bias of another dtype": ("bias", as_bfloat16),
    "one bias for all": ("bias", lambda bias: np.lib.stride_tricks.as_strided(bias, (40,), (0,), subok=True)),
    "residual in another shape, in place": ("residual", reshaped((40, 24))),
    "residual by columns": ("residual", lambda residual: residual.T.copy().T),
    "residual of another dtype": ("residual", as_bfloat16),
    "one row of a residual": ("residual", lambda residual: np.broadcast_to(residual[0], (24, 40), subok=True)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_lies_otherwise_is_refused(gpu: FakeGpu, what: str) -> None:
    """Also arrays that have been called with before, and have changed since."""
    name, change = WRONG[what]
    for fused in (False, True):
        if not fused and name in ("bias", "residual"):
            continue
        plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
        check(plan, arrays)
        launches = len(gpu.launches)
        wrong = arrays._replace(**{name: change(getattr(arrays, name))})
        with pytest.raises(ProblemError, match=f"{name} is"):
            plan(*wrong[:3], **wrong.terms)
        assert (len(gpu.launches), gpu.fallbacks) == (launches, [])


def test_a_square_and_its_transpose(gpu: FakeGpu) -> None:
    """Of one shape, dtype and size, all of them; only how they lie tells one from the other."""
    x, y, r = (stored(gpu, (16, 16), seed=seed) for seed in range(3))
    out = gpu.empty((16, 16), np.float16)
    problems = [Problem(16, 16, 16, layout=layout, epilogue=e) for layout in ("nn", "tn") for e in ("none", "residual")]
    with cupygemm.use(bundle_of(*problems)):
        for left in (x, stored(gpu, (16, 16), "t")):
            for terms in ({}, {"residual": r}):
                plan = cupygemm.plan(left, y, out, **terms)
                plan(left, y, out, **terms)
                turned = [(left.T, y, out, terms), (left, y.T, out, terms), (left, y, out.T, terms)]
                turned += [(left, y, out, {"residual": r.T})] if terms else []
                for a, b, to, others in turned:
                    with pytest.raises(ProblemError, match="with strides of"):
                        plan(a, b, to, **others)


def test_gaps_of_another_width(gpu: FakeGpu) -> None:
    """Of arrays that are not contiguous, strides tell; and whether one is stored by columns."""
    shapes = {"a": (24, 16), "b": (16, 40), "out": (24, 40), "residual": (24, 40)}

    def made(letter: str = "n", padding: int = 8) -> dict[str, Any]:
        return {
            name: stored(gpu, shape, letter if name in "ab" else "n", padding=padding) for name, shape in shapes.items()
        }

    problems = [
        Problem(24, 40, 16, layout=layout, epilogue=epilogue)
        for layout in ("nn", "tt")
        for epilogue in ("none", "residual")
    ]
    for letter in "nt":
        first, other = made(letter, 0 if letter == "t" else 8), made(letter, 16)
        with cupygemm.use(bundle_of(*problems)):
            plans = [cupygemm.plan(first["a"], first["b"], first["out"])]
            plans.append(cupygemm.plan(first["a"], first["b"], first["out"], residual=first["residual"]))
        for plan, names in zip(plans, (("a", "b", "out"), shapes), strict=True):
            for name in names:
                wrong = {key: (other if key == name else first)[key] for key in names}
                operands = [wrong.pop(key) for key in ("a", "b", "out")]
                with pytest.raises(ProblemError, match=f"{name} is .* with strides of"):
                    plan(*operands, **wrong)
    assert gpu.launches == []


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
def test_what_is_missing_or_not_planned_is_refused(gpu: FakeGpu, fused: bool) -> None:
    plan, arrays, others = plan_of(gpu, fused), arrays_of(gpu, fused, 5), arrays_of(gpu, True, 10)
    if fused:
        for name in ("bias", "residual"):
            with pytest.raises(ProblemError, match=f"{name} is missing"):
                plan(*arrays[:3], **{other: each for other, each in arrays.terms.items() if other != name})
    else:
        for terms in ({"bias": others.bias}, {"residual": others.residual}, {"alpha": 2.0}, {"beta": 0.0}):
            with pytest.raises(ProblemError, match="made without"):
                plan(*arrays[:3], **terms)
    with cupygemm.use(bundle_of(Problem(24, 40, 16, epilogue="relu"))):
        rectified = cupygemm.plan(*others[:3], activation="relu")
    for terms in ({"bias": others.bias}, {"residual": others.residual}, others.terms):
        with pytest.raises(ProblemError, match="made without"):
            rectified(*others[:3], **terms)
    assert gpu.launches == []
    with cupygemm.use(bundle_of(Problem(24, 40, 16, epilogue="bias_n"))):
        biased = cupygemm.plan(*others[:3], bias=others.bias)
    for beta in (0, 2.0, float("nan")):
        with pytest.raises(ProblemError, match="without a residual"):
            biased(*others[:3], bias=others.bias, beta=beta)
    np.testing.assert_array_equal(
        plain(biased(*others[:3], bias=others.bias, beta=1)), right(others.a, others.b) + plain(others.bias)
    )


def test_what_is_no_number_is_no_factor(gpu: FakeGpu) -> None:
    plan, arrays = plan_of(gpu, True), arrays_of(gpu, True, 5)
    for factor in (1j, "2", gpu.empty((24, 40), np.float16), [2.0]):
        for name in ("alpha", "beta"):
            with pytest.raises(TypeError, match="must be a number"):
                plan(*arrays[:3], **arrays.terms, **{name: factor})
    with pytest.raises(OverflowError):
        plan(*arrays[:3], **arrays.terms, alpha=10**400)
    assert gpu.launches == []


@both
def test_what_is_no_array_of_cupys_is_a_type_error(gpu: FakeGpu, fused: bool) -> None:
    plan, arrays = plan_of(gpu, fused), arrays_of(gpu, fused, 5)
    for name in ("a", "b", "out", *arrays.terms):
        for wrong in (np.asarray(getattr(arrays, name)), [[1.0]], 1.0):
            changed = arrays._replace(**{name: wrong})
            with pytest.raises(TypeError, match=f"{name} is"):
                plan(*changed[:3], **changed.terms)
    for name in ("a", "b"):
        changed = arrays._replace(**{name: None})
        with pytest.raises(ProblemError, match=f"{name} is missing"):
            plan(*changed[:3], **changed.terms)
    assert gpu.launches == []


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
