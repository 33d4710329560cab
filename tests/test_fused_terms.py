"""Bias, residual and out of `cupygemm.matmul` on a fake GPU: every shape and layout, own kernels and cuBLAS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_products import fresh_gpu, plain
from tests.fused_calls import PROBLEM, K, M, N, Shape, array, assert_near, operands, tuned


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


# Bias


BIASES: list[tuple[Shape, Shape, Shape, Problem | None]] = [
    # a, b, bias, and the problem where an own kernel runs
    ((M, K), (K, N), (N,), replace(PROBLEM, epilogue="bias_n")),
    ((M, K), (K, N), (1, N), replace(PROBLEM, epilogue="bias_n")),
    ((M, K), (K, N), (M, 1), replace(PROBLEM, epilogue="bias_m")),
    ((N, K), (K, N), (N,), Problem(N, N, K, epilogue="bias_n")),
    ((N, K), (K, N), (N, 1), Problem(N, N, K, epilogue="bias_m")),
    ((M, K), (K, N), (M, N), None),
    ((M, K), (K, N), (1,), None),
    ((M, K), (K, N), (), None),
    ((K,), (K, N), (N,), Problem(1, N, K, epilogue="bias_n")),
    ((M, K), (K,), (M,), Problem(M, 1, K, layout="nt", epilogue="bias_m")),
    ((M, K), (K,), (1,), None),
    ((M, K), (K, 1), (M, 1), Problem(M, 1, K, layout="nt", epilogue="bias_m")),
    ((1, K), (K, N), (1, N), Problem(1, N, K, epilogue="bias_n")),
    ((K,), (K,), (), None),
    # A stack times one matrix has more rows than the caller sees.
    ((5, M, K), (K, N), (N,), Problem(5 * M, N, K, epilogue="bias_n")),
    ((5, M, K), (K, N), (1, 1, N), Problem(5 * M, N, K, epilogue="bias_n")),
    ((5, M, K), (K, N), (M, 1), None),
    ((5, M, K), (K, N), (5, M, 1), None),
    ((5, M, K), (K, N), (5, 1, N), None),
    ((1, M, K), (K, N), (M, 1), replace(PROBLEM, epilogue="bias_m")),
    ((5, M, K), (K,), (M,), None),
    ((5, M, K), (K,), (5, 1), None),
    # Stacks: one bias for all matrices.
    ((5, M, K), (5, K, N), (N,), replace(PROBLEM, batch=5, epilogue="bias_n")),
    ((5, M, K), (5, K, N), (M, 1), replace(PROBLEM, batch=5, epilogue="bias_m")),
    ((5, M, K), (5, K, N), (1, M, 1), replace(PROBLEM, batch=5, epilogue="bias_m")),
    ((M, K), (5, K, N), (M, 1), replace(PROBLEM, batch=5, epilogue="bias_m")),
    ((5, M, K), (5, K, N), (5, M, 1), None),
    ((5, M, K), (5, K, N), (5, 1, N), None),
    ((5, M, K), (5, K, N), (5, 1, 1), None),
    ((K,), (5, K, N), (N,), Problem(1, N, K, 5, epilogue="bias_n")),
    ((K,), (5, K, N), (1, 1), Problem(1, N, K, 5, epilogue="bias_m")),
    ((K,), (5, K, N), (5, 1), None),
    ((K,), (5, K, N), (5, N), None),
    ((2, 3, M, K), (2, 3, K, N), (N,), replace(PROBLEM, batch=6, epilogue="bias_n")),
    ((M, M, K), (M, K, N), (M, 1), replace(PROBLEM, batch=M, epilogue="bias_m")),
]


@pytest.mark.parametrize(("a_shape", "b_shape", "shape", "problem"), BIASES)
def test_a_bias_is_broadcast_as_numpy_does(
    gpu: FakeGpu, a_shape: Shape, b_shape: Shape, shape: Shape, problem: Problem | None
) -> None:
    a, b = operands(gpu, a=a_shape, b=b_shape)
    layouts = [replace(problem, layout=layout) for layout in ("nn", "nt", "tn")] if problem else []
    tuned(*layouts)
    terms = {"bias": array(gpu, shape, seed=3)}
    result = cupygemm.matmul(a, b, **terms)
    assert_near(result, a, b, terms, roundings=1 if problem else 2)
    assert (len(gpu.launches), len(gpu.fallbacks)) == ((1, 0) if problem else (0, 1))


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "bias"),
    [((M, 0), (0, N), (N,)), ((0, K), (K, N), (N,)), ((M, K), (K, 0), (M, 1)), ((5, M, 0), (5, 0, N), (M, 1))],
)
def test_sums_of_nothing_get_their_bias(gpu: FakeGpu, a_shape: Shape, b_shape: Shape, bias: Shape) -> None:
    a, b = operands(gpu, a=a_shape, b=b_shape)
    terms = {"bias": array(gpu, bias, seed=3), "activation": "relu"}
    assert_near(cupygemm.matmul(a, b, **terms), a, b, terms, roundings=2)
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("view", "own"),
    [
        (lambda wide: wide[:, :N], True),
        (lambda wide: wide[:, 2 : N + 2], True),
        (lambda wide: wide[:, 1 : N + 1], False),  # pairs are read
        (lambda wide: wide[:, : 2 * N : 2], False),
        (lambda wide: wide[:, N - 1 :: -1], False),
        (lambda wide: np.broadcast_to(wide[:, :1], (1, N), subok=True), False),
    ],
)
def test_a_bias_that_a_kernel_cannot_read_is_cublas(gpu: FakeGpu, view: Any, own: bool) -> None:
    tuned(replace(PROBLEM, epilogue="bias_n"))
    a, b = operands(gpu)
    for terms in ({"bias": view(array(gpu, (1, 100)))}, {"bias": view(array(gpu, (1, 100)))[0]}):
        assert_near(cupygemm.matmul(a, b, **terms), a, b, terms, roundings=2)
    assert len(gpu.launches) == (2 if own else 0)


def test_rows_that_are_not_aligned_need_no_aligned_terms(gpu: FakeGpu) -> None:
    problem = replace(PROBLEM, n=39, layout="nt", epilogue="bias_n+residual")
    tuned(problem)
    a, b = array(gpu, (M, K)), array(gpu, (39, K)).T
    terms = {"bias": array(gpu, (40,))[1:], "residual": array(gpu, (M, 41))[:, 1:40]}
    assert_near(cupygemm.matmul(a, b, **terms), a, b, terms)
    assert len(gpu.launches) == 1


# Residual


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "problem"),
    [
        ((M, K), (K, N), PROBLEM),
        ((K,), (K, N), Problem(1, N, K)),
        ((M, K), (K,), Problem(M, 1, K, layout="nt")),
        ((5, M, K), (K, N), Problem(5 * M, N, K)),
        ((5, M, K), (5, K, N), replace(PROBLEM, batch=5)),
        ((2, 3, M, K), (2, 3, K, N), replace(PROBLEM, batch=6)),
        ((K,), (5, K, N), Problem(1, N, K, 5)),
    ],
)
@pytest.mark.parametrize("into", ["new", "out", "the residual"])
def test_a_residual_has_the_shape_of_the_result(
    gpu: FakeGpu, a_shape: Shape, b_shape: Shape, problem: Problem, into: str
) -> None:
    tuned(replace(problem, epilogue="residual+relu"))
    a, b = operands(gpu, a=a_shape, b=b_shape)
    residual = array(gpu, np.matmul(a, b).shape, seed=3)
    terms = {"residual": residual.copy(), "beta": 0.5, "activation": "relu"}
    out = {"new": None, "out": array(gpu, residual.shape, seed=4), "the residual": residual}[into]
    result = cupygemm.matmul(a, b, out, **{**terms, "residual": residual})
    assert out is None or result is out
    assert_near(result, a, b, terms)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.parametrize("shape", [(N,), (1, N), (M, 1), (1, 1), ()])
def test_a_residual_that_is_broadcast_is_cublas(gpu: FakeGpu, shape: Shape) -> None:
    tuned(replace(PROBLEM, epilogue="residual"))
    a, b = operands(gpu)
    terms = {"residual": array(gpu, shape, seed=3), "beta": 2.0}
    assert "broadcast" in cupygemm.explain(a, b, **terms).reason
    assert_near(cupygemm.matmul(a, b, **terms), a, b, terms, roundings=2)


@pytest.mark.parametrize(
    ("view", "own"),
    [
        (lambda gpu: array(gpu, (M, 64))[:, 8:48], True),
        (lambda gpu: array(gpu, (M, 64))[:, 2:42], True),
        (lambda gpu: array(gpu, (2 * M, N))[::2], True),
        (lambda gpu: array(gpu, (M, 64))[:, 1:41], False),
        (lambda gpu: array(gpu, (N, M)).T, False),
        (lambda gpu: array(gpu, (M, N))[::-1], False),
        (lambda gpu: array(gpu, (M, 2 * N))[:, ::2], False),
    ],
)
def test_a_residual_may_have_gaps_between_rows(gpu: FakeGpu, view: Any, own: bool) -> None:
    tuned(replace(PROBLEM, epilogue="residual"))
    a, b = operands(gpu)
    terms = {"residual": view(gpu)}
    assert_near(cupygemm.matmul(a, b, **terms), a, b, terms, roundings=1 if own else 2)
    assert len(gpu.launches) == own


@pytest.mark.parametrize("own", [True, False])
def test_residuals_in_place_add_up(gpu: FakeGpu, own: bool) -> None:
    if own:
        tuned(replace(PROBLEM, epilogue="residual", out_dtype="float32"))
    a, b = operands(gpu)
    total = gpu.empty((M, N), np.float32)
    total[...] = 0
    for _ in range(3):
        assert cupygemm.matmul(a, b, out=total, residual=total) is total
    np.testing.assert_allclose(plain(total), 3 * (plain(a) @ plain(b)), rtol=1e-5, atol=1e-5)
    assert len(gpu.launches) == 3 * own


# Out


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("case", ["a", "bias", "bias row of the residual", "shifted residual"])
def test_out_may_overlap_what_is_read(gpu: FakeGpu, case: str, own: bool) -> None:
    square = Problem(N, N, N, epilogue="bias_n+residual")
    if own:
        tuned(square)
    memory = array(gpu, (N + 1, N), seed=5)
    out = memory[1:]
    a, b = array(gpu, (N, N), seed=1), array(gpu, (N, N), seed=2)
    bias, residual = array(gpu, (N,), seed=3), array(gpu, (N, N), seed=4)
    given = {
        "a": (out, {"bias": bias, "residual": residual}),
        "bias": (a, {"bias": out[3], "residual": residual}),
        "bias row of the residual": (a, {"bias": out[3], "residual": out}),
        "shifted residual": (a, {"bias": bias, "residual": memory[:-1]}),
    }
    left, terms = given[case]
    kept, values = left.copy(), {name: value.copy() for name, value in terms.items()}
    assert not own or "copied to out: it overlaps" in cupygemm.explain(left, b, out, **terms).reason
    assert cupygemm.matmul(left, b, out=out, **terms) is out
    assert_near(out, kept, b, values, roundings=2)
    assert len(gpu.launches) == own


@pytest.mark.parametrize(
    "view",
    [
        lambda gpu: array(gpu, (N, M)).T,
        lambda gpu: array(gpu, (M, 2 * N))[:, ::2],
        lambda gpu: array(gpu, (M, 64))[:, 1:41],
        lambda gpu: array(gpu, (M, N))[::-1],
    ],
)
def test_out_may_lie_in_any_way(gpu: FakeGpu, view: Any) -> None:
    tuned(replace(PROBLEM, epilogue="bias_n"))
    a, b = operands(gpu)
    terms, out = {"bias": array(gpu, (N,), seed=3)}, view(gpu)
    assert cupygemm.matmul(a, b, out=out, **terms) is out
    assert_near(out, a, b, terms)
    assert len(gpu.launches) == 1
