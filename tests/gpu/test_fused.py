"""`cupygemm.matmul` with an epilogue and of stacks on real arrays: own kernels and cuBLAS against float64."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import cupygemm
from cupygemm.epilogue import Epilogue
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import verify
from cupygemm.measuring.verify import Reference
from cupygemm.problem import Problem
from tests.gpu.everything import everything
from tests.gpu.protocol import EPILOGUES, operands

pytestmark = pytest.mark.gpu

WAYS = {"own": everything, "cublas": None}
ROUNDED_TWICE = 8
"""How many times its bound the error may be where cuBLAS's product is rounded before the rest is added."""


def terms_of(problem: Problem, given: Operands) -> dict[str, Any]:
    """The arguments of `matmul` for drawn operands."""
    epilogue = Epilogue.parse(problem.epilogue)
    bias = given.bias[:, None] if epilogue.bias == "m" else given.bias
    beta = {} if given.residual is None else {"beta": given.beta}
    activation = None if epilogue.activation == "none" else epilogue.activation
    return {"bias": bias, "residual": given.residual, "activation": activation, "alpha": given.alpha, **beta}


def check(problem: Problem, way: str, seed: int = 0) -> None:
    """Into a new array, into `out`, and into the residual where there is one."""
    make = WAYS[way]
    with cupygemm.use(make()) if make else contextlib.nullcontext():
        given = operands(problem, verify.ZERO_MEAN, seed)
        reference = Reference.of(given, problem)
        terms = terms_of(problem, given) | {"out_dtype": verify.numpy_dtype(problem.out_dtype)}
        assert cupygemm.explain(given.a, given.b, **terms).kernel == way
        results = [cupygemm.matmul(given.a, given.b, **terms), cupygemm.matmul(given.a, given.b, given.out, **terms)]
        assert results[1] is given.out
        if given.residual is not None:
            results.append(cupygemm.matmul(given.a, given.b, given.residual, **terms))
            assert results[-1] is given.residual
        for result in results:
            assert result.dtype == verify.numpy_dtype(problem.out_dtype)
            verdict = verify.check(result, reference)
            if way == "own":
                assert verdict.ok, f"{problem}: {verdict.detail}"
            else:
                assert verdict.error < ROUNDED_TWICE * verdict.frobenius_bound, problem


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_each_epilogue(epilogue: str, dtype: str, way: str) -> None:
    for m, n, k in ((64, 72, 64), (129, 264, 200)):
        check(Problem(m, n, k, 1, dtype, dtype, dtype, epilogue=epilogue), way, seed=m)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("float16", "float32"), ("bfloat16", "float32"), ("float16", "bfloat16")]
)
def test_dtypes_of_results(dtype: str, out_dtype: str, way: str) -> None:
    check(Problem(129, 72, 200, 1, dtype, dtype, out_dtype, epilogue="bias_n+residual+silu"), way)


def test_stacks_with_epilogues() -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        check(Problem(40, 72, 64, 5, layout=layout, epilogue="bias_m+residual+gelu_tanh"), "own")


@pytest.mark.parametrize("shape", [(1,), (72,), (40, 1), (40, 72), (5, 1, 1), (5, 40, 1), (5, 1, 72)])
def test_a_bias_of_any_shape(shape: tuple[int, ...]) -> None:
    cupy = driver.cupy()
    rng = cupy.random.default_rng(1)
    a, b, bias = (
        rng.standard_normal(each, dtype=cupy.float32).astype(cupy.float16) for each in ((5, 40, 64), (5, 64, 72), shape)
    )
    wanted = a.astype(cupy.float64) @ b.astype(cupy.float64) + bias.astype(cupy.float64)
    with cupygemm.use(everything()):
        result = cupygemm.matmul(a, b, bias=bias)
    assert float(cupy.linalg.norm((result - wanted).ravel()) / cupy.linalg.norm(wanted.ravel())) < 6e-4


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_float64_is_left_in_float64(activation: str) -> None:
    cupy = driver.cupy()
    rng = cupy.random.default_rng(2)
    a, b, bias = (rng.standard_normal(each) for each in ((40, 64), (64, 72), (72,)))
    result = cupygemm.matmul(a, b, bias=bias, alpha=1 / 3, activation=activation)
    wanted = verify.activated(activation, a @ b / 3 + bias, None)
    assert bool(cupy.allclose(result, wanted, rtol=1e-13, atol=1e-13))


def test_an_epilogue_is_captured_and_replayed() -> None:
    cupy = driver.cupy()
    problem = Problem(64, 72, 64, epilogue="bias_n+residual+gelu")
    given = operands(problem, verify.ZERO_MEAN, 4)
    terms = terms_of(problem, given)
    with cupygemm.use(everything()):
        cupygemm.matmul(given.a, given.b, given.out, **terms)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            cupygemm.matmul(given.a, given.b, given.out, **terms)
            graph = stream.end_capture()
            given.out.fill(float("nan"))
            graph.launch()
            stream.synchronize()
    assert verify.check(given.out, Reference.of(given, problem)).ok
