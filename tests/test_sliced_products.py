"""Products of stacks that are no single axis of equal steps: a launch for each of several stacks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.problem import Problem
from cupygemm.runtime import product
from cupygemm.views import packing_cost
from cupygemm.views.stacks import MOST_LAUNCHES, pose_slices, pose_stack
from tests.fake_gpu import FakeGpu
from tests.fake_products import SMALL, bundle_of, fresh_gpu, plain, stored

M, N, K = 24, 40, 16


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(product, "slices_pay", lambda *told: True)  # products of a test are too small for it
    return fresh_gpu(monkeypatch)


def drawn(gpu: FakeGpu, *shape: int, seed: int = 1) -> Any:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return stored(gpu, (rows, shape[-1]), seed=seed).reshape(shape)


def heads(gpu: FakeGpu, batch: int, rows: int, count: int, width: int, seed: int) -> Any:
    """[batch, heads, rows, width] where the heads of a row lie side by side, as attention has them."""
    return drawn(gpu, batch, rows, count, width, seed=seed).transpose(0, 2, 1, 3)


CASES: list[tuple[tuple[int, ...], tuple[int, ...], int, int]] = [
    ((2, 1, M, K), (1, 3, K, N), 2, 3),
    ((5, 1, M, K), (1, 3, K, N), 3, 5),
    ((5, 6, M, K), (6, K, N), 5, 6),
    ((2, 1, 4, M, K), (3, 4, K, N), 6, 4),
    ((2, 2, 1, M, K), (1, 1, 3, K, N), 3, 4),
]
"""Shapes, launches, and the batch of one."""


@pytest.mark.parametrize(("a_shape", "b_shape", "launches", "batch"), CASES)
def test_broadcast_stacks(
    gpu: FakeGpu, a_shape: tuple[int, ...], b_shape: tuple[int, ...], launches: int, batch: int
) -> None:
    with cupygemm.use(bundle_of(Problem(M, N, K, batch), config=SMALL)):
        for seed in range(3):
            a, b = drawn(gpu, *a_shape, seed=seed), drawn(gpu, *b_shape, seed=seed + 9)
            if seed == 0:
                assert f"in {launches} launches" in cupygemm.explain(a, b).reason
            wanted = plain(a) @ plain(b)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), wanted)
            out = gpu.empty(wanted.shape, np.float16)
            assert cupygemm.matmul(a, b, out=out) is out
            np.testing.assert_array_equal(plain(out), wanted)
    assert (len(gpu.launches), gpu.fallbacks) == (6 * launches, [])


def test_heads_of_several_sequences(gpu: FakeGpu) -> None:
    """Scores: keys are read transposed, and nothing is copied."""
    with cupygemm.use(bundle_of(Problem(M, M, 16, 4, layout="nt"))):
        plan = cupygemm.plan(heads(gpu, 3, M, 4, 16, 1), heads(gpu, 3, M, 4, 16, 2).swapaxes(-1, -2))
        for seed in range(3):
            q, k = heads(gpu, 3, M, 4, 16, seed), heads(gpu, 3, M, 4, 16, seed + 5).swapaxes(-1, -2)
            wanted = plain(q) @ plain(k)
            for call in (cupygemm.matmul, plan):
                np.testing.assert_array_equal(plain(call(q, k)), wanted)
    assert (len(gpu.launches), gpu.fallbacks) == (18, [])


def test_epilogues(gpu: FakeGpu) -> None:
    residual, bias = drawn(gpu, 2, 3, M, N, seed=4), stored(gpu, (1, N))[0]
    with cupygemm.use(bundle_of(Problem(M, N, K, 3, epilogue="bias_n+residual"))):
        for seed in range(2):
            a, b = drawn(gpu, 2, 1, M, K, seed=seed), drawn(gpu, 3, K, N, seed=seed + 7)
            wanted = 2 * (plain(a) @ plain(b)) + plain(bias) - plain(residual)
            terms = {"bias": bias, "residual": residual, "alpha": 2.0, "beta": -1.0}
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **terms)), wanted)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, residual, **terms)), wanted)
    assert gpu.fallbacks == []


def test_an_out_that_is_not_contiguous_is_copied_to(gpu: FakeGpu) -> None:
    a, b = drawn(gpu, 2, 1, M, K), drawn(gpu, 3, K, N, seed=2)
    out = drawn(gpu, 2, M, 3, N).transpose(0, 2, 1, 3)
    with cupygemm.use(bundle_of(Problem(M, N, K, 3))):
        for _ in range(2):
            out[...] = 0
            cupygemm.matmul(a, b, out=out)
            np.testing.assert_array_equal(plain(out), plain(a) @ plain(b))
    assert gpu.fallbacks == []


def test_too_many_launches_are_cupys(gpu: FakeGpu) -> None:
    a, b = drawn(gpu, MOST_LAUNCHES + 1, 1, 8, 8), drawn(gpu, MOST_LAUNCHES + 2, 8, 8)
    assert pose_slices(a, b) is None
    assert cupygemm.explain(a, b).kernel == "cublas"


def test_many_small_launches_are_cupys(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "slices_pay", packing_cost.slices_pay)
    a, b = drawn(gpu, 8, 1, 8, 8), drawn(gpu, 3, 8, 8)
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, "in 3 launches" in choice.reason) == ("cublas", True)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), plain(a) @ plain(b))
    assert len(gpu.fallbacks) == 1
    wide = Problem(1024, 1024, 1024, 4)
    assert packing_cost.slices_pay(wide, 3, a, b)
    assert not packing_cost.slices_pay(Problem(64, 64, 64, 4), 32, a, b)
    mixed = dict.fromkeys(("a_dtype", "b_dtype", "out_dtype"), "bfloat16")
    assert packing_cost.slices_pay(Problem(64, 64, 64, 4, **mixed), 32, a, b)  # CuPy refuses these


def test_every_arrangement_of_axes(gpu: FakeGpu) -> None:
    """Each launch's arrays, element by element, against what NumPy broadcasts."""
    rng = np.random.default_rng(3)
    for axes in itertools.permutations(range(3)):
        for sizes in ((2, 3, 4), (2, 1, 3), (1, 1, 2)):
            wide = drawn(gpu, *(sizes[axis] for axis in axes), M, K)
            a = wide.transpose(*np.argsort(axes), 3, 4)
            b_shape = tuple(size if rng.random() < 0.6 else 1 for size in sizes)
            b = drawn(gpu, *b_shape, K, N, seed=7)
            posed = pose_stack(a, b) or pose_slices(a, b)
            assert posed is not None
            with cupygemm.use(bundle_of(Problem(M, N, K, posed.a.shape[0]))):
                np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), plain(a) @ plain(b))
