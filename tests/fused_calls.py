"""Calls of `matmul` with an epilogue on a fake GPU, and what comes of them in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import cupygemm
from cupygemm.dtypes import DTYPES
from cupygemm.measuring.verify import activated, numpy_dtype
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import ERF
from tests.fake_products import SMALL, bundle_of, plain

M, N, K = 24, 40, 16
PROBLEM = Problem(M, N, K)
Shape = tuple[int, ...]


def array(gpu: FakeGpu, shape: Shape, dtype: str = "float16", seed: int = 0) -> Any:
    made = gpu.empty(shape, numpy_dtype(dtype) if dtype in DTYPES else dtype)
    made[...] = np.random.default_rng(seed).standard_normal(shape)
    return made


def operands(gpu: FakeGpu, dtype: str = "float16", a: Shape = (M, K), b: Shape = (K, N)) -> tuple[Any, Any]:
    return array(gpu, a, dtype, 1), array(gpu, b, dtype, 2)


def tuned(*problems: Problem) -> None:
    """Puts a config in force for each; rows that TMA cannot store are stored from registers."""
    for problem in problems:
        aligned = problem.n * DTYPES[problem.out_dtype].bytes % 16 == 0
        cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=int(aligned))))


def wanted(a: Any, b: Any, terms: dict[str, Any]) -> np.ndarray[Any, Any]:
    """In float64, of what the arrays hold."""
    total = terms.get("alpha", 1.0) * (plain(a) @ plain(b))
    if terms.get("bias") is not None:
        total = total + plain(terms["bias"])
    if terms.get("residual") is not None:
        total = total + terms.get("beta", 1.0) * plain(terms["residual"])
    return activated(terms.get("activation") or "none", total, ERF)


def assert_near(result: Any, a: Any, b: Any, terms: dict[str, Any], roundings: int = 1) -> None:
    """Within so many roundings to the result's dtype, of the largest that is rounded, and a little for float32."""
    right = wanted(a, b, terms)
    assert result.shape == right.shape
    product = abs(terms.get("alpha", 1.0)) * abs(plain(a) @ plain(b))
    largest = np.abs(right) if roundings == 1 else np.abs(right) + 1.13 * product
    allowed = DTYPES[result.dtype.name].unit_roundoff * largest + 2.0**-18 * (1 + product)
    assert (np.abs(plain(result) - right) <= allowed).all()


TERMS: dict[str, dict[str, Any]] = {
    "scaled": {"alpha": 0.3},
    "bias_n": {"bias": (N,)},
    "bias_m": {"bias": (M, 1)},
    "residual": {"residual": (M, N)},
    "relu": {"activation": "relu"},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "silu": {"activation": "silu"},
    "bias_n+residual+silu": {"bias": (N,), "residual": (M, N), "activation": "silu", "alpha": 0.5, "beta": -0.75},
    "bias_m+residual+gelu": {"bias": (M, 1), "residual": (M, N), "activation": "gelu", "alpha": -2.0},
    "bias_n+relu": {"bias": (N,), "activation": "relu", "alpha": 0.5},
    "none": {"activation": "none"},
}


def made(gpu: FakeGpu, terms: dict[str, Any], dtype: str = "float16") -> dict[str, Any]:
    """The terms with arrays in place of shapes."""
    return {
        name: array(gpu, value, dtype, seed) if isinstance(value, tuple) else value
        for seed, (name, value) in enumerate(terms.items(), 3)
    }
