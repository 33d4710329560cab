"""What `verify` accepts and refuses, with accumulators of several widths simulated in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cupygemm.dtypes import DTYPES
from cupygemm.kernels.operands import Operands
from cupygemm.measuring.verify import (
    DATA_KINDS,
    GUARD_BYTES,
    POSITIVE_MEAN,
    ZERO_MEAN,
    GuardedOutput,
    Reference,
    Verdict,
    check,
    draw_operands,
    numpy_dtype,
)
from cupygemm.problem import Problem

Rounded = Callable[[Any], Any]
DEPTHS = (64, 256, 1024, 4096, 8192)
SIZE = 64
MMA_K = DTYPES["float16"].mma_k


@cache
def case(k: int, kind: str, out_dtype: str = "float16", dtype: str = "float16") -> tuple[Any, Any, Reference]:
    problem = Problem(SIZE, SIZE, k, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype)
    operands = draw_operands(np.random.default_rng(k), problem, kind)
    return operands.a, operands.b, Reference.of(operands, problem)


def accumulated(a: Any, b: Any, rounded: Rounded) -> Any:
    """The product as a tensor core forms it: 16 products at a time onto an accumulator that `rounded` keeps narrow."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], MMA_K):
        total = rounded(total + a[:, start : start + MMA_K] @ b[start : start + MMA_K]).astype(np.float64)
    return total


def to_float32(values: Any) -> Any:
    return values.astype(np.float32)


def truncated_to_24_bits(values: Any) -> Any:
    """Rounding toward zero, as tensor cores do."""
    return (values.view(np.int64) & ~((1 << 29) - 1)).view(np.float64)


def to_float16(values: Any) -> Any:
    return values.astype(np.float16)


def verdict_on(out: Any, reference: Reference, out_dtype: str = "float16") -> Verdict:
    return check(out.astype(numpy_dtype(out_dtype)), reference)


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rounded", [to_float32, truncated_to_24_bits])
def test_fp32_accumulation_passes(rounded: Rounded, out_dtype: str, k: int, kind: str) -> None:
    if out_dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    a, b, reference = case(k, kind, out_dtype)
    verdict = verdict_on(accumulated(a, b, rounded), reference, out_dtype)
    assert verdict.ok, verdict.detail
    assert verdict.detail == ""


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_fp16_accumulation_fails_the_frobenius_bound(out_dtype: str, k: int, kind: str) -> None:
    a, b, reference = case(k, kind, out_dtype)
    verdict = verdict_on(accumulated(a, b, to_float16), reference, out_dtype)
    assert verdict.error > 1.2 * verdict.frobenius_bound
    assert not verdict.ok
    assert "Frobenius" in verdict.detail


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("k", DEPTHS)
def test_bf16_accumulation_fails(k: int, kind: str) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    a, b, reference = case(k, kind, "bfloat16", "bfloat16")
    assert not verdict_on(accumulated(a, b, lambda values: values.astype(bfloat16)), reference, "bfloat16").ok


def test_the_bound_is_near_what_rounding_costs() -> None:
    _, _, reference = case(4096, ZERO_MEAN)
    rounded = verdict_on(reference.product, reference)
    assert 2.0e-4 < rounded.error < 2.2e-4
    assert rounded.error < reference.frobenius_bound < 3 * rounded.error


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_one_wrong_element_fails(kind: str) -> None:
    a, b, reference = case(256, kind)
    out = accumulated(a, b, to_float32)
    out[3, 5] += 0.1 * np.abs(reference.product).max()
    # Among 10^8 elements the Frobenius error alone would not show it.
    diluted = replace(reference, norm=1e4 * reference.norm)
    verdict = verdict_on(out, diluted)
    assert verdict.error <= verdict.frobenius_bound
    assert not verdict.ok
    assert "element" in verdict.detail


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_an_unwritten_or_infinite_element_fails(value: float, kind: str) -> None:
    a, b, reference = case(1024, kind)
    out = accumulated(a, b, to_float32)
    row, column = np.unravel_index(np.argmax(np.abs(reference.product)), reference.product.shape)
    out[row, column] = value
    assert not verdict_on(out, reference).ok


def test_an_unwritten_output_fails() -> None:
    _, _, reference = case(64, ZERO_MEAN)
    guarded = GuardedOutput(np, (SIZE, SIZE), "float16")
    verdict = check(guarded.array, reference)
    assert not verdict.ok
    assert "not written" in verdict.detail


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_forgotten_step_of_k_fails(kind: str) -> None:
    a, b, reference = case(8192, kind)
    assert not verdict_on(accumulated(a[:, :-MMA_K], b[:-MMA_K], to_float32), reference).ok


def test_zero_operands_have_a_zero_product() -> None:
    problem = Problem(8, 8, 8)
    zeros = np.zeros((8, 8), np.float16)
    reference = Reference.of(Operands(zeros, zeros, zeros), problem)
    assert check(zeros, reference).ok
    assert not check(zeros + np.float16(1e-3), reference).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_nan_in_every_dtype(dtype: str) -> None:
    if not DTYPES[dtype].in_numpy:
        pytest.importorskip("ml_dtypes")
    out = GuardedOutput(np, (3, 5), dtype).array
    assert out.shape == (3, 5)
    assert np.isnan(out.astype(np.float32)).all()


@pytest.mark.parametrize("offset", [-1, 3 * 5])
def test_a_write_outside_is_seen(offset: int) -> None:
    guarded = GuardedOutput(np, (3, 5), "float16")
    guarded.array[...] = 1
    assert guarded.intact()
    buffer = guarded.array.base
    assert buffer is not None
    buffer[GUARD_BYTES + 2 * offset] = 0
    assert not guarded.intact()
    guarded.poison()
    assert guarded.intact()
    assert np.isnan(guarded.array).all()


def test_broken_guards_fail_an_otherwise_right_result() -> None:
    assert Verdict(0.0, 1e-4, 0.5).ok
    broken = Verdict(0.0, 1e-4, 0.5, guards_intact=False)
    assert not broken.ok
    assert "outside" in broken.detail


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(4, 6, 8), (16, 8, 24), (3, 5, 7)])
def test_operands_lie_as_the_layout_says(shape: tuple[int, int, int], layout: str) -> None:
    m, n, k = shape
    problem = Problem(m, n, k, layout=layout, out_dtype="float32")
    a, b, out, bias, residual, *factors = draw_operands(np.random.default_rng(0), problem, ZERO_MEAN)
    assert (bias, residual, factors) == (None, None, [1.0, 1.0])
    assert (a.shape, b.shape, out.shape) == ((m, k), (k, n), (m, n))
    assert (out.dtype, out.strides) == (np.float32, (4 * n, 4))
    for array, letter in ((a, layout[0]), (b, layout[1])):
        stored = array if letter == "n" else array.T
        assert stored.strides == (-(-stored.shape[1] // 8) * 16, 2)
        assert np.isfinite(stored).all()
        assert np.isnan(stored.base[:, stored.shape[1] :]).all()


def test_kinds_of_data_have_the_mean_they_are_named_after() -> None:
    problem = Problem(64, 64, 64)
    zero = draw_operands(np.random.default_rng(0), problem, ZERO_MEAN).a
    positive = draw_operands(np.random.default_rng(0), problem, POSITIVE_MEAN).a
    assert abs(zero.mean(dtype=np.float64)) < 0.1
    assert positive.min() >= 0
    assert 0.45 < positive.mean(dtype=np.float64) < 0.55


def test_a_long_positive_sum_stays_within_fp16() -> None:
    problem = Problem(2, 2, 1 << 20)
    reference = Reference.of(draw_operands(np.random.default_rng(0), problem, POSITIVE_MEAN), problem)
    assert np.abs(reference.product).max() < 65504
    assert np.isfinite(reference.frobenius_bound)
