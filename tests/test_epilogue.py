"""Epilogues: how they are written, what is refused, and that C++ and NumPy mean the same by an activation."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.epilogue import ACTIVATIONS, BIASES, Epilogue, activation_code
from cupygemm.errors import ProblemError
from cupygemm.kernels import driver
from cupygemm.kernels.elementwise import epilogue_kernel
from cupygemm.measuring.verify import SLOPES, activated
from cupygemm.problem import Problem
from tests.fake_kernel import ERF

ALL = [Epilogue(*terms) for terms in itertools.product(BIASES, (False, True), ACTIVATIONS)] + [Epilogue(scaled=True)]


@pytest.mark.parametrize("epilogue", ALL, ids=str)
def test_what_is_written_is_read_again(epilogue: Epilogue) -> None:
    assert Epilogue.parse(str(epilogue)) == epilogue
    assert Problem(8, 8, 8, epilogue=str(epilogue)).epilogue == str(epilogue)


def test_every_epilogue_has_a_name_of_its_own() -> None:
    assert len({str(epilogue) for epilogue in ALL}) == len(ALL) == 3 * 2 * 5 + 1


def test_names() -> None:
    assert str(Epilogue()) == "none"
    assert str(Epilogue(scaled=True)) == "scaled"
    assert str(Epilogue("n", True, "gelu_tanh")) == "bias_n+residual+gelu_tanh"


@pytest.mark.parametrize(
    "text",
    [
        *("", "bias", "bias_k", "relu+bias_n", "residual+bias_n", "bias_n+bias_m", "bias_n+bias_n", "relu+gelu"),
        *("none+relu", "scaled+relu", "bias_n+scaled", "scaled+scaled", "bias_n +relu", "Relu", "relu+", "+relu"),
    ],
)
def test_what_no_epilogue_is_written_as_is_refused(text: str) -> None:
    with pytest.raises(
        ProblemError, match=r"epilogue is .*: legal are 'none', 'scaled' \(times alpha, alone\), or some of bias_n \("
    ):
        Epilogue.parse(text)
    with pytest.raises(ProblemError, match="epilogue is"):
        Problem(8, 8, 8, epilogue=text)


def test_a_factor_of_one_by_itself_is_none() -> None:
    assert Epilogue.of(alpha=1.0) == Epilogue()
    assert Epilogue.of(alpha=0.5) == Epilogue(scaled=True)
    assert Epilogue.of(alpha=math.nan) == Epilogue(scaled=True)
    for terms in ({"bias": "n"}, {"residual": True}, {"activation": "relu"}):
        assert Epilogue.of(alpha=0.5, **terms) == Epilogue.of(**terms) == Epilogue(**terms)


X = np.concatenate([np.linspace(-12, 12, 4001), [-1e4, -100.0, 100.0, 1e4, 0.0]])


def exact(name: str, x: float) -> float:
    """By the definition of each activation."""
    if name == "relu":
        return max(x, 0.0)
    if name == "gelu":
        return x * 0.5 * math.erfc(-x / math.sqrt(2))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x / (1 + math.exp(-x)) if x > -700 else 0.0
    return x


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_the_reference(name: str) -> None:
    found = activated(name, X, ERF)
    np.testing.assert_allclose(found, [exact(name, x) for x in X], rtol=1e-12, atol=1e-14)
    assert np.isnan(activated(name, np.array([np.nan]), ERF)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_is_the_steepest(name: str) -> None:
    steepest = np.abs(np.diff(activated(name, X[:4001], ERF)) / np.diff(X[:4001])).max()
    assert steepest <= SLOPES[name] <= 1.01 * steepest


def evaluated(code: str, x: float) -> float:
    """A C++ expression of `x` by Python's rules, which are the same but for the ternary and names of functions."""
    code = re.sub(r"\((.*?) \? (.*?) : (.*?)\)", r"(\2 if \1 else \3)", code)
    code = re.sub(r"(\d)f\b", r"\1", code)
    return float(eval(code, {"x": x, **{name: getattr(math, name.rstrip("f")) for name in NAMES}, "erf": math.erf}))


NAMES = ("tanh", "tanhf", "exp", "expf")


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_code_for_cupy_computes_the_same(name: str, real: str) -> None:
    code = activation_code(name, real).replace("erff", "erf")
    xs = np.linspace(-12, 12, 101)
    np.testing.assert_allclose([evaluated(code, x) for x in xs], [exact(name, x) for x in xs], rtol=1e-6, atol=1e-12)
    literals = re.findall(r"\d+\.\d+(f?)", activation_code(name, real))
    assert set(literals) <= {"f" if real == "float" else ""}


@pytest.mark.parametrize(
    ("epilogue", "wide", "inputs", "sum_"),
    [
        ("none", "float32", "T product, float32 alpha, float32 beta", "alpha * float(product)"),
        (
            "bias_m+relu",
            "float64",
            "T product, B bias, float64 alpha, float64 beta",
            "alpha * double(product) + double(bias)",
        ),
        (
            "bias_n+residual+silu",
            "float32",
            "T product, B bias, R residual, float32 alpha, float32 beta",
            "alpha * float(product) + float(bias) + beta * float(residual)",
        ),
    ],
)
def test_the_kernel_for_cupy_has_the_terms_that_there_are(
    monkeypatch: pytest.MonkeyPatch, epilogue: str, wide: str, inputs: str, sum_: str
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(driver, "cupy", lambda: SimpleNamespace(ElementwiseKernel=lambda *told: made.append(told)))
    epilogue_kernel.__wrapped__(Epilogue.parse(epilogue), wide)
    ((found, out, code, name),) = made
    assert (found, out, name) == (inputs, "O out", "cupygemm_epilogue")
    real = "double" if wide == "float64" else "float"
    assert code == f"{real} x = {sum_}; out = O({activation_code(Epilogue.parse(epilogue).activation, real)});"


def test_what_an_error_offers_is_legal() -> None:
    with pytest.raises(ProblemError) as caught:
        Epilogue.parse("bias+gelu")
    for text in ("none", "scaled", "bias_n+residual+gelu", "bias_m"):
        assert text.split("+")[0] in str(caught.value)
        assert Problem(8, 8, 8, epilogue=text).epilogue == text
