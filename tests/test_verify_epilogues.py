"""The bounds of results with epilogues and of stacks: right ones pass, small mistakes do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupygemm.epilogue import NONE
from cupygemm.kernels.operands import Operands
from cupygemm.measuring.verify import DATA_KINDS, ZERO_MEAN, Reference, activated, check, draw_operands, numpy_dtype
from cupygemm.problem import Problem
from tests.fake_kernel import ERF, computed

EPILOGUES = (
    *("scaled", "bias_n", "bias_m", "residual", "relu", "gelu", "gelu_tanh", "silu"),
    *("bias_n+residual+silu", "bias_m+residual+gelu_tanh", "bias_n+relu", "bias_n+gelu"),
)
M, N, K = 48, 64, 512


def drawn(epilogue: str, kind: str = ZERO_MEAN, **fields: Any) -> tuple[Problem, Operands]:
    problem = Problem(M, N, K, epilogue=epilogue, **fields)
    return problem, draw_operands(np.random.default_rng(3), problem, kind)


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_is_rounded_once_passes(epilogue: str, out_dtype: str, kind: str) -> None:
    problem, given = drawn(epilogue, kind, out_dtype=out_dtype)
    verdict = check(computed(given, epilogue), Reference.of(given, problem))
    assert verdict.ok, verdict.detail
    assert given.out.dtype == numpy_dtype(out_dtype)


@pytest.mark.parametrize("epilogue", [NONE, "bias_n+residual+silu", "bias_m+gelu"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_stacks_pass_and_exchanged_matrices_do_not(layout: str, epilogue: str) -> None:
    problem, given = drawn(epilogue, batch=3, layout=layout)
    assert (given.a.shape, given.b.shape, given.out.shape) == ((3, M, K), (3, K, N), (3, M, N))
    reference, out = Reference.of(given, problem), computed(given, epilogue)
    assert check(out, reference).ok
    assert not check(out[[1, 0, 2]], reference).ok
    assert not check(np.broadcast_to(out[:1], out.shape), reference).ok


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_a_narrow_accumulator_fails(epilogue: str, kind: str) -> None:
    problem, given = drawn(epilogue, kind)
    total = np.zeros((M, N), np.float16)
    for start in range(0, K, 16):
        step = given.a[:, start : start + 16].astype(np.float32) @ given.b[start : start + 16].astype(np.float32)
        total = (total + step).astype(np.float16)
    assert not check(computed(given, epilogue, total.astype(np.float32)), Reference.of(given, problem)).ok


MISTAKES = {
    "alpha missing": ("scaled", {"alpha": 1.0}),
    "bias a column further": ("bias_n", {"bias": lambda given: np.roll(given.bias, 1)}),
    "bias a row further": ("bias_m+relu", {"bias": lambda given: np.roll(given.bias, 1)}),
    "bias missing": ("bias_n+gelu", {"bias": None}),
    "beta missing": ("residual", {"beta": 1.0}),
    "residual missing": ("bias_n+residual+silu", {"residual": None}),
    "residual a row further": ("residual", {"residual": lambda given: np.roll(given.residual, 1, axis=0)}),
}


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("case", MISTAKES)
def test_a_wrong_term_fails(case: str, kind: str) -> None:
    epilogue, changes = MISTAKES[case]
    problem, given = drawn(epilogue, kind)
    changed = {name: value(given) if callable(value) else value for name, value in changes.items()}
    assert not check(computed(given._replace(**changed), epilogue), Reference.of(given, problem)).ok


WRONG_ACTIVATIONS = [
    ("relu", "none"),
    ("gelu", "relu"),
    ("gelu", "silu"),
    ("silu", "gelu"),
    # They differ by 4.7e-4 at most, which rounding to float16 hides where results are large.
    ("gelu", "gelu_tanh"),
    ("gelu_tanh", "gelu"),
]


@pytest.mark.parametrize(("right", "wrong"), WRONG_ACTIVATIONS)
def test_a_wrong_activation_fails(right: str, wrong: str) -> None:
    problem, given = drawn(f"bias_n+{right}")
    text = "bias_n" if wrong == "none" else f"bias_n+{wrong}"
    assert not check(computed(given, text), Reference.of(given, problem)).ok


def test_an_activation_before_the_bias_fails() -> None:
    problem, given = drawn("bias_n+silu")
    total = given.alpha * (given.a.astype(np.float32) @ given.b.astype(np.float32))
    early = (activated("silu", total, ERF) + given.bias.astype(np.float32)).astype(np.float16)
    assert not check(early, Reference.of(given, problem)).ok


@pytest.mark.parametrize("epilogue", ["bias_n+gelu", "residual"])
def test_one_wrong_element_fails(epilogue: str) -> None:
    problem, given = drawn(epilogue)
    out = computed(given, epilogue)
    row, column = np.unravel_index(np.argmax(out), out.shape)
    out[row, column] *= np.float16(1.01)
    assert not check(out, Reference.of(given, problem)).ok


def test_terms_are_as_large_as_the_product() -> None:
    """So that a mistake in any of them shows."""
    for kind in DATA_KINDS:
        _, given = drawn("bias_n+residual+silu", kind)
        product = np.abs(given.alpha * (given.a.astype(np.float32) @ given.b.astype(np.float32))).mean()
        for term in (given.bias.astype(np.float32), given.beta * given.residual.astype(np.float32)):
            assert 0.3 * product < np.abs(term).mean() < 3 * product
        assert 0.5 < product < 2
        assert (given.bias.shape, given.residual.shape, given.bias.dtype) == ((N,), (M, N), given.out.dtype)
