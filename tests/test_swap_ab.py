"""Kernels with A and B swapped, which compute the transpose: what they are told, and that it comes to the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.fitting import fitted
from cupygemm.config import KernelConfig, KernelSpec, loaded_bytes, shared_storage_bytes, stage_bytes, store_columns
from cupygemm.device import H200
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.tensor_map import out_box
from cupygemm.legality import illegal_reason, violation
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.search.policy.features import FEATURES, features
from cupygemm.search.runners.traffic import traffic
from tests.fake_gpu import FakeGpu
from tests.fake_products import PROBLEM, SMALL, bundle_of, fresh_gpu, plain, right, stored

SWAPPED = SMALL.swapped(store_stages=1, swap_ab=True)
TRANSPOSED = {"nn": "tt", "nt": "nt", "tn": "tn", "tt": "nn"}
"""Layouts of Bᵀ and Aᵀ."""
WIDE = KernelConfig(64, 208, 64, 5, 1, False, 2, 1, True, 4, 40, 1, 1, swap_ab=True)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def transposed(problem: Problem) -> Problem:
    return replace(problem, m=problem.n, n=problem.m, layout=TRANSPOSED[problem.layout])


# What follows from a config


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kernel_sees_the_majors_of_the_transposed_product(layout: str) -> None:
    problem = Problem(200, 4096, 512, layout=layout)
    spec = KernelSpec.of(problem)
    seen = spec.seen_by(WIDE)
    assert seen == replace(KernelSpec.of(transposed(problem)), out_transposed=True)
    assert seen.seen_by(WIDE) == seen
    assert spec.seen_by(WIDE.swapped(swap_ab=False)) == spec


def test_a_bias_a_column_becomes_one_a_row() -> None:
    for epilogue, seen in (("bias_n+gelu", "bias_m+gelu"), ("bias_m", "bias_n"), ("none", "none"), ("silu", "silu")):
        assert KernelSpec.of(Problem(64, 64, 64, epilogue=epilogue)).seen_by(WIDE).epilogue == seen


@pytest.mark.parametrize(
    ("block_n", "rows"),
    [
        *[(8, 8), (24, 24), (96, 96), (104, 104), (112, 56), (128, 64), (144, 72), (176, 88), (208, 104), (256, 64)],
        # These do not divide the columns: the last sub-tile overlaps the one before.
        *[(120, 64), (136, 72), (152, 80), (184, 96), (200, 104), (232, 80), (248, 88)],
    ],
)
def test_a_store_takes_many_rows_of_the_result(block_n: int, rows: int) -> None:
    spec = KernelSpec.of(Problem(64, 64, 64))
    assert store_columns(WIDE.swapped(block_n=block_n), spec) == rows
    box = out_box(WIDE.swapped(block_n=block_n), spec)
    assert (box.rows, box.columns) == (rows, 64)


def test_shared_memory_is_that_of_the_transposed_product() -> None:
    # Of nt both are k-major; of nn A becomes the columns' operand, k-major, and B the rows', which is not.
    by_k, not_by_k = (KernelSpec.of(Problem(200, 4096, 512, layout=layout)) for layout in ("nt", "tt"))
    assert stage_bytes(WIDE, by_k) == (64 + 208) * 128
    assert stage_bytes(WIDE, not_by_k) == (64 + 256) * 128
    assert shared_storage_bytes(WIDE, by_k) == 5 * (64 + 208) * 128 + 104 * 128 + 1024
    assert loaded_bytes(WIDE.swapped(cluster_m=1), by_k, 4096, 200) == (64 * 128, 200 * 128)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"store_stages": 0}, {}),
        ({}, {"out_dtype": "float32"}),
        ({}, {"epilogue": "residual"}),
        ({}, {"epilogue": "bias_m+relu"}),
    ],
)
def test_each_rule(changes: dict[str, int], problem: dict[str, str]) -> None:
    spec = KernelSpec.of(Problem(64, 64, 64, **problem))  # type: ignore[arg-type]
    config = SWAPPED.swapped(**changes)
    found = violation(config, spec, H200)
    assert found is not None
    assert found.rule == "swap_ab"
    assert illegal_reason(config.swapped(swap_ab=False), spec, H200) is None


def test_columns_of_an_operand_by_rows_are_divided_at_slabs() -> None:
    divided = KernelConfig(64, 96, 64, 4, 2, True, 1, 1, True, 4, 40, 1, 1, swap_ab=True)
    legal = {
        layout: illegal_reason(divided, KernelSpec.of(Problem(96, 64, 64, layout=layout)), H200) for layout in LAYOUTS
    }
    assert {layout for layout, reason in legal.items() if reason is None} == {"nn", "nt"}  # A lies by rows of K
    assert "mn-major" in (legal["tn"] or "")


def test_what_is_mirrored_computes_the_same_tiles_and_comes_back() -> None:
    wide = WIDE.swapped(block_n=192, cluster_m=1, cluster_n=2, keep_a=1, keep_b=-1, swap_ab=False)
    other = wide.mirrored()
    assert other.swap_ab
    assert other.as_computed(other.block_m, other.block_n) == (64, 192)
    assert other.as_computed(other.keep_a, other.keep_b) == (1, -1)
    assert other.as_computed(other.cluster_m, other.cluster_n) == (1, 2)
    assert other.mirrored() == wide


# What is expected of it


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_expected_to_take_what_the_transposed_product_takes(layout: str) -> None:
    problem = Problem(200, 4096, 512, layout=layout)
    other, alike = transposed(problem), WIDE.swapped(swap_ab=False)
    assert estimated_us(problem, [WIDE, alike], H200) == [
        *estimated_us(other, [alike], H200),
        *estimated_us(problem, [alike], H200),
    ]
    assert traffic(problem, WIDE, H200) == traffic(other, alike, H200)
    both = [FEATURES.index(name) for name in ("useful", "log2 waves", "filled", "A read once", "B read once")]
    ours, theirs = features(problem, H200, [WIDE])[0], features(other, H200, [alike])[0]
    np.testing.assert_array_equal(ours[both], theirs[both])


def test_hints_follow_what_is_read_once() -> None:
    config = fitted(WIDE, Problem(200, 8192, 8192, layout="nt"), H200)
    assert config is not None
    assert (config.keep_a, config.keep_b) == (-1, 0)  # the kernel's A is B, of which each row is read once
    assert fitted(WIDE, Problem(200, 8191, 8192, layout="nt"), H200) is None


# What it computes


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("changes", [{}, {"cp_async_stages": 2, "wait_depth": 1}, {"cluster_m": 2}])
def test_a_plan_computes_the_product(gpu: FakeGpu, layout: str, changes: dict[str, int], batch: int) -> None:
    problem = Problem(24, 40, 16, batch, layout=layout, epilogue="bias_n+relu")
    config = SWAPPED.swapped(**changes)
    a, b = (
        operand(gpu, problem.matrix(*sizes), letter) for sizes, letter in zip(((24, 16), (16, 40)), layout, strict=True)
    )
    bias, out = operand(gpu, (40,), "n"), gpu.empty(problem.matrix(24, 40), np.float16)
    plan = Plan(problem, LoadedKernel(gpu.compile(KernelSpec.of(problem), config)))
    plan(a, b, out, bias, alpha=0.5)
    np.testing.assert_array_equal(plain(out), np.maximum(0.5 * right(a, b) + plain(bias), 0))


@pytest.mark.parametrize("config", [SWAPPED, SWAPPED.swapped(cp_async_stages=2, wait_depth=1)])
def test_calls_are_repeated_for_other_arrays(gpu: FakeGpu, decided: list[Any], config: KernelConfig) -> None:
    with cupygemm.use(bundle_of(PROBLEM, config=config)):
        for seed in range(4):
            a, b = stored(gpu, (24, 16), seed=2 * seed), stored(gpu, (16, 40), seed=2 * seed + 1)
            out = gpu.empty((24, 40), np.float16)
            cupygemm.matmul(a, b, out=out)
            np.testing.assert_array_equal(plain(out), right(a, b))
    assert len(decided) == 1
    assert len(gpu.launches) == 4


def operand(gpu: FakeGpu, shape: tuple[int, ...], letter: str) -> Any:
    """An array of a shape, stored by rows or transposed."""
    lying = shape if letter == "n" else (*shape[:-2], *shape[:-3:-1])
    array = gpu.empty(lying, np.float16)
    array[...] = np.random.default_rng(len(lying)).integers(-2, 3, lying)
    return array if letter == "n" else array.swapaxes(-1, -2)


def test_layouts_of_the_transposed_product_are_all_there_are() -> None:
    assert set(TRANSPOSED) == {"".join(letters) for letters in product("nt", repeat=2)} == set(LAYOUTS)
