"""`cupygemm.matmul` with an epilogue, on a fake GPU and against NumPy in float64: whichever way it is computed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.epilogue import Epilogue
from cupygemm.errors import CaptureError, ProblemError
from cupygemm.measuring.verify import activated, numpy_dtype
from cupygemm.problem import Problem
from tests.fake_gpu import FakeDevice, FakeGpu
from tests.fake_kernel import ERF
from tests.fake_products import SMALL, bundle_of, fresh_gpu, plain
from tests.fused_calls import PROBLEM, TERMS, K, M, N, Shape, array, assert_near, made, operands, tuned, wanted


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


@pytest.mark.parametrize("into", ["new", "out"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("epilogue", TERMS)
def test_each_term_by_an_own_kernel(gpu: FakeGpu, epilogue: str, dtype: str, into: str) -> None:
    problem = replace(PROBLEM, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, epilogue=epilogue)
    tuned(problem)
    a, b = operands(gpu, dtype)
    terms = made(gpu, TERMS[epilogue], dtype)
    out = None if into == "new" else array(gpu, (M, N), dtype, 9)
    assert cupygemm.explain(a, b, out, **terms).problem == problem
    result = cupygemm.matmul(a, b, out, **terms)
    assert out is None or result is out
    assert result.dtype == a.dtype
    assert_near(result, a, b, terms)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("epilogue", TERMS)
def test_each_term_by_cublas(gpu: FakeGpu, epilogue: str, dtype: str) -> None:
    a, b = operands(gpu, dtype)
    terms = made(gpu, TERMS[epilogue], dtype)
    assert cupygemm.explain(a, b, **terms).kernel == "cublas"
    out = array(gpu, (M, N), dtype, 9)
    for result in (cupygemm.matmul(a, b, **terms), cupygemm.matmul(a, b, out=out, **terms)):
        assert result.dtype == a.dtype
        assert_near(result, a, b, terms, roundings=2)
    assert (gpu.launches, len(gpu.fallbacks)) == ([], 2)


def test_float64_is_computed_in_float64(gpu: FakeGpu) -> None:
    a, b = operands(gpu, "float64")
    terms = {"bias": array(gpu, (N,), "float64", 3), "alpha": 1 / 3, "activation": "gelu"}
    result = cupygemm.matmul(a, b, **terms)
    assert result.dtype == np.float64
    np.testing.assert_allclose(plain(result), wanted(a, b, terms), rtol=1e-14)


# Dtypes


@pytest.mark.parametrize("how", ["out_dtype", "out", "both"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float32"])
def test_the_result_has_the_dtype_that_is_asked_for(gpu: FakeGpu, dtype: str, out_dtype: str, how: str) -> None:
    problem = replace(PROBLEM, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype)
    tuned(problem, replace(problem, epilogue="bias_n"))
    a, b = operands(gpu, dtype)
    element = numpy_dtype(out_dtype)
    options: dict[str, Any] = {"out_dtype": out_dtype if out_dtype != "bfloat16" else element}
    if how != "out_dtype":
        options = ({} if how == "out" else options) | {"out": gpu.empty((M, N), element)}
    for terms in ({"bias": array(gpu, (N,), out_dtype, 3)}, {"activation": "none"}):
        result = cupygemm.matmul(a, b, **terms, **options)
        assert result.dtype == element
        assert_near(result, a, b, terms)
    assert (len(gpu.launches), gpu.fallbacks) == (2, [])


def test_float32_results_are_never_rounded_to_16_bits(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    terms = {"bias": array(gpu, (N,), "float32", 3)}
    result = cupygemm.matmul(a, b, out_dtype=np.float32, **terms)
    np.testing.assert_allclose(plain(result), wanted(a, b, terms), rtol=1e-5, atol=1e-5)
    assert gpu.launches == []


def test_a_bias_of_another_dtype_is_cublas(gpu: FakeGpu) -> None:
    tuned(replace(PROBLEM, epilogue="bias_n"))
    a, b = operands(gpu)
    terms = {"bias": array(gpu, (N,), "float32", 3)}
    result = cupygemm.matmul(a, b, **terms)
    assert (result.dtype, gpu.launches) == (np.float16, [])
    assert_near(result, a, b, terms, roundings=2)


@pytest.mark.parametrize(("left", "right"), [("float16", "float32"), ("float32", "float16"), ("float64", "float16")])
def test_operands_of_two_dtypes_are_promoted(gpu: FakeGpu, left: str, right: str) -> None:
    a, b = array(gpu, (M, K), left), array(gpu, (K, N), right)
    result = cupygemm.matmul(a, b, activation="silu")
    assert result.dtype == np.promote_types(left, right)
    np.testing.assert_allclose(plain(result), wanted(a, b, {"activation": "silu"}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [2, np.float16(0.5), np.float32(0.5), np.float64(0.5), np.int64(3), True])
def test_factors_are_numbers_of_any_kind(gpu: FakeGpu, alpha: Any) -> None:
    a, b = operands(gpu)
    for problems in ((), (replace(PROBLEM, epilogue="residual"),)):
        tuned(*problems)
        terms = {"alpha": float(alpha), "beta": float(alpha), "residual": array(gpu, (M, N), seed=3)}
        assert_near(cupygemm.matmul(a, b, **{**terms, "alpha": alpha, "beta": alpha}), a, b, terms, roundings=2)
    assert len(gpu.launches) == 1


# What is refused


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "activation": ({"activation": "swish"}, ProblemError, "'swish': legal are None, none, relu, gelu, gelu_tanh, silu"),
    "beta alone": ({"beta": 0.5}, ProblemError, "no residual: residual=out"),
    "alpha": ({"alpha": "2"}, TypeError, "alpha is str"),
    "alpha an array": ({"alpha": np.ones(3)}, TypeError, "alpha is numpy.ndarray"),
    "beta complex": ({"beta": 1j}, TypeError, "beta is complex"),
    "a bias of NumPy's": ({"bias": np.zeros(N)}, TypeError, "bias is numpy.ndarray: with an epilogue it must be a"),
    "out_dtype": ({"out_dtype": "int32"}, TypeError, "out_dtype is int32"),
    "an option": ({"activation": "relu", "casting": "no"}, TypeError, "casting: options of cupy.matmul do not go"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_have_their_errors(gpu: FakeGpu, case: str) -> None:
    terms, error, words = MISTAKES[case]
    a, b = operands(gpu)
    for call in (cupygemm.matmul, cupygemm.explain):
        with pytest.raises(error, match=words):
            call(a, b, **terms)
    assert (gpu.launches, gpu.fallbacks) == ([], [])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("bias", (M,)), ("bias", (N, 1)), ("bias", (1, M, N)), ("bias", (2, N)), ("residual", (N, M)), ("out", (M, 1))],
)
def test_shapes_that_do_not_fit_are_told(gpu: FakeGpu, name: str, shape: Shape, own: bool) -> None:
    if own:
        tuned(*(replace(PROBLEM, epilogue=epilogue) for epilogue in ("bias_n", "bias_m", "residual", "relu")))
    a, b = operands(gpu)
    given = {name: array(gpu, shape)} | ({"activation": "relu"} if name == "out" else {})
    with pytest.raises(ProblemError, match=rf"{name} has shape \({shape[0]},.*\({M}, {N}\)"):
        cupygemm.matmul(a, b, **given)
    assert gpu.launches == []


def test_terms_that_numpy_would_not_take_either(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    with pytest.raises(TypeError, match="a is int8: epilogues are built for floating-point"):
        cupygemm.matmul(array(gpu, (M, K), "int8"), b, activation="relu")
    with pytest.raises(TypeError, match="b is NoneType"):
        cupygemm.matmul(a, None, activation="relu")
    with pytest.raises(ProblemError, match="out_dtype is float32, and out float16"):
        cupygemm.matmul(a, b, out=array(gpu, (M, N)), out_dtype="float32")
    with FakeDevice(gpu, 1):
        elsewhere = array(gpu, (N,))
    with pytest.raises(ProblemError, match="bias is on device 1, a on 0"):
        cupygemm.matmul(a, b, bias=elsewhere)
    with pytest.raises(ValueError, match=r"\w"):
        cupygemm.matmul(a, a, activation="relu")
    assert gpu.launches == []


# Captures


def test_an_own_kernel_is_captured_with_its_terms(gpu: FakeGpu) -> None:
    tuned(replace(PROBLEM, epilogue="bias_n+residual"))
    a, b = operands(gpu)
    terms = {"bias": array(gpu, (N,), seed=3), "residual": array(gpu, (M, N), seed=4)}
    out = cupygemm.matmul(a, b, **terms)
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b, out=out, **terms)
    graph = gpu.stream.end_capture()
    terms["bias"][...] = 3
    graph.launch()
    assert_near(out, a, b, terms)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"activation": "relu"}, "no own kernel runs: no bundle in force has a config"),
        ({"bias": (N,), "out": (N, M)}, "out needs an array beside it: out cannot be stored to"),
        ({"bias": (M, N)}, "no own kernel runs: bias or residual is broadcast"),
    ],
)
def test_what_needs_memory_beside_out_is_not_captured(gpu: FakeGpu, given: dict[str, Any], words: str) -> None:
    tuned(replace(PROBLEM, epilogue="bias_n"))
    a, b = operands(gpu)
    terms = made(gpu, given)
    if "out" in terms:
        terms["out"] = terms["out"].T
    cupygemm.matmul(a, b, **terms)
    launches = len(gpu.launches)
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match=words):
        cupygemm.matmul(a, b, **terms)
    assert gpu.stream.end_capture().launches == []
    assert len(gpu.launches) == launches


def test_stacks_are_computed_by_one_launch(gpu: FakeGpu) -> None:
    """Without terms too; operands that are broadcast are not copied."""
    cases = {
        ((5, M, K), (5, K, N)): replace(PROBLEM, batch=5),
        ((M, K), (5, K, N)): replace(PROBLEM, batch=5),
        ((5, 1, K), (5, K, N)): Problem(1, N, K, 5),
        ((2, 1, M, K), (2, 1, K, N)): replace(PROBLEM, batch=2),
        ((K,), (5, K, N)): Problem(1, N, K, 5),
        ((5, M, K), (5, K, 1)): Problem(M, 1, K, 5, layout="nt"),
    }
    for number, (shapes, problem) in enumerate(cases.items(), 1):
        layouts = [replace(problem, layout=layout) for layout in ("nn", "nt", "tn")]
        tuned(*layouts)
        a, b = operands(gpu, a=shapes[0], b=shapes[1])
        for out in (None, gpu.empty(np.matmul(a, b).shape, np.float16)):
            result = cupygemm.matmul(a, b, out=out)
            assert out is None or result is out
            assert_near(result, a, b, {})
        assert "copied" not in cupygemm.explain(a, b, result).reason
        assert (len(gpu.launches), gpu.fallbacks) == (2 * number, [])


@pytest.mark.parametrize("store_stages", [0, 1])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_stacks_lie_in_any_layout_with_gaps(gpu: FakeGpu, layout: str, store_stages: int) -> None:
    problem = replace(PROBLEM, batch=3, layout=layout, epilogue="bias_m+residual")
    cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=store_stages)))

    def stored(rows: int, columns: int, letter: str, seed: int) -> Any:
        if letter == "n":
            return array(gpu, (6, rows, columns + 8), seed=seed)[::2, :, :columns]
        return array(gpu, (6, columns, rows + 8), seed=seed)[::2, :, :rows].swapaxes(1, 2)

    a, b = stored(M, K, layout[0], 1), stored(K, N, layout[1], 2)
    terms = {"bias": array(gpu, (M, 1), seed=3), "residual": stored(M, N, "n", 4), "alpha": 0.5, "beta": 2.0}
    heads = array(gpu, (M, 3, N), seed=5).swapaxes(0, 1)
    for out in (None, stored(M, N, "n", 6), heads):
        assert_near(cupygemm.matmul(a, b, out=out, **terms), a, b, terms)
    assert (len(gpu.launches), gpu.fallbacks) == (3, [])
    assert "copied" not in cupygemm.explain(a, b, heads, **terms).reason


def test_every_epilogue_of_a_call_is_one_that_a_bundle_can_name() -> None:
    for text in TERMS:
        assert str(Epilogue.parse(text)) == text
    assert math.isclose(activated("gelu", np.float64(1.0), ERF), 0.841344746)
