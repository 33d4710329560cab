"""What the quick way of a plan refuses: arrays that lie otherwise, what is missing or not planned, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import ProblemError
from cupygemm.measuring.verify import numpy_dtype
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_products import bundle_of, plain, right, stored
from tests.plan_calls import arrays_of, both, check, gpu_of, plan_of


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeGpu:
    return gpu_of(monkeypatch, request.param)


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
