"""`matmul` of operands that TMA cannot read: copied for an own kernel where that is expected to pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import LaunchError
from cupygemm.kernels import compiler, driver
from cupygemm.problem import Problem
from cupygemm.runtime import product
from tests.fake_gpu import FakeGpu
from tests.fake_products import PROBLEM, SMALL, bundle_of, fresh_gpu, plain, right, stored

ODD = Problem(24, 39, 17)
DIRECT = SMALL.swapped(store_stages=0)
"""Rows of 39 results are not stored by TMA."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = fresh_gpu(monkeypatch)
    monkeypatch.setattr(product, "pays", lambda *told: True)  # products of a test are too small for it
    return gpu


def draw(gpu: FakeGpu, seed: int = 1) -> tuple[Any, Any]:
    return stored(gpu, (24, 17), seed=seed), stored(gpu, (17, 39), seed=seed + 1)


def off(gpu: FakeGpu, shape: tuple[int, int], elements: int, seed: int = 5) -> Any:
    """An array that starts some elements behind an address which TMA could read from."""
    rows, columns = shape
    buffer = gpu.empty(rows * columns + 16, np.float16)
    view = buffer[elements : elements + rows * columns].reshape(rows, columns)
    view[...] = np.random.default_rng(seed).integers(-2, 3, shape)
    return view


def test_odd_rows_are_copied_and_multiplied(gpu: FakeGpu, decided: list[Any]) -> None:
    with cupygemm.use(bundle_of(ODD, config=DIRECT)):
        choice = cupygemm.explain(*draw(gpu))
        assert choice.kernel == "own"
        assert "a is copied for TMA: rows are 34 bytes apart" in choice.reason
        decided.clear()
        for seed in range(4):
            a, b = draw(gpu, 3 * seed)
            out = gpu.empty((24, 39), np.float16)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
            assert cupygemm.matmul(a, b, out=out) is out
            np.testing.assert_array_equal(plain(out), right(a, b))
    assert len(decided) == 2
    assert (len(gpu.packed), len(gpu.launches), gpu.fallbacks) == (8, 8, [])


def test_only_what_needs_it_is_copied(gpu: FakeGpu) -> None:
    a, b = stored(gpu, (24, 32))[:, ::2], stored(gpu, (16, 40))
    with cupygemm.use(bundle_of(PROBLEM)):
        for _ in range(2):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert [launch.operands for launch in gpu.packed] == [1, 1]


def test_the_same_strides_at_other_addresses(gpu: FakeGpu, decided: list[Any]) -> None:
    """Where addresses alone are in the way, what starts elsewhere is read in place, whichever came first."""
    problem = Problem(16, 16, 16)
    b = stored(gpu, (16, 16))
    with cupygemm.use(bundle_of(problem)):
        for turn in range(3):
            for elements in (3, 0, 4, 8):
                packed = len(gpu.packed)
                a = off(gpu, (16, 16), elements, seed=turn)
                np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
                assert len(gpu.packed) - packed == (elements % 8 > 0)
    assert len(decided) == 2
    assert gpu.fallbacks == []


def test_epilogues_and_overlaps(gpu: FakeGpu, decided: list[Any]) -> None:
    fused = Problem(24, 39, 17, epilogue="bias_n+residual")
    bias, residual = stored(gpu, (1, 39), seed=8)[0], stored(gpu, (24, 39), seed=9)
    with cupygemm.use(bundle_of(fused, Problem(16, 16, 16), config=DIRECT)):
        for seed in range(3):
            a, b = draw(gpu, seed)
            wanted = 2 * right(a, b) + plain(bias) + plain(residual)
            terms = {"bias": bias, "residual": residual, "alpha": 2.0}
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **terms)), wanted)
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, residual, **terms)), wanted)
        assert len(decided) == 2
        square, other = off(gpu, (16, 16), 3), off(gpu, (16, 16), 5)
        for _ in range(2):
            wanted = right(square, other)
            assert cupygemm.matmul(square, other, out=square) is square
            np.testing.assert_array_equal(plain(square), wanted)
    assert gpu.fallbacks == []


def test_stacks(gpu: FakeGpu) -> None:
    a, b = stored(gpu, (5 * 24, 17)).reshape(5, 24, 17), stored(gpu, (5 * 17, 40)).reshape(5, 17, 40)
    with cupygemm.use(bundle_of(Problem(24, 40, 17, 5))):
        for _ in range(2):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), plain(a) @ plain(b))
    assert [launch.operands for launch in gpu.packed] == [1, 1]


def test_plans_copy_too(gpu: FakeGpu) -> None:
    with cupygemm.use(bundle_of(ODD, config=DIRECT)):
        plan = cupygemm.plan(*draw(gpu))
    for seed in range(3):
        a, b = draw(gpu, seed)
        np.testing.assert_array_equal(plain(plan(a, b)), right(a, b))
    assert (len(gpu.packed), len(gpu.launches)) == (3, 3)


def test_a_matrix_times_its_own_transpose_is_copied_once(gpu: FakeGpu) -> None:
    a = stored(gpu, (24, 17))
    with cupygemm.use(bundle_of(Problem(24, 24, 17, layout="nt"))):
        for _ in range(2):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, a.T)), right(a, a.T))
        other = stored(gpu, (24, 17), seed=3)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, other.T)), right(a, other.T))
    assert [launch.operands for launch in gpu.packed] == [1, 1, 2]


def test_what_does_not_pay_or_cannot_be_loaded_is_cupys(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = draw(gpu)

    def refused(*told: Any) -> None:
        raise LaunchError("no such kernel")

    with cupygemm.use(bundle_of(ODD, config=DIRECT)):
        monkeypatch.setattr("cupygemm.kernels.loading.Kernels.load_packing", refused)
        choice = cupygemm.explain(a, b)
        assert (choice.kernel, "but no such kernel" in choice.reason) == ("cublas", True)
        monkeypatch.setattr(product, "pays", lambda *told: False)
        choice = cupygemm.explain(a, b)
        assert (choice.kernel, "not expected to pay" in choice.reason) == ("cublas", True)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert gpu.packed == []
    assert len(gpu.fallbacks) == 1


def test_without_a_config_nothing_is_copied(gpu: FakeGpu) -> None:
    choice = cupygemm.explain(*draw(gpu))
    assert choice.kernel == "cublas"
    assert "TMA cannot copy a: rows are 34 bytes apart" in choice.reason
    assert "with a copy: no bundle in force" in choice.reason


def test_where_memory_for_copies_is_short_it_is_cupys(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = draw(gpu)
    cupy, short = driver.cupy(), []

    def empty(shape: Any, dtype: Any = np.float64) -> Any:
        if short and np.dtype(dtype) == np.uint8:
            raise MemoryError("out of memory")
        return gpu.empty(shape, dtype)

    cupy.empty = empty
    monkeypatch.setattr(driver, "cupy", lambda: cupy)
    with cupygemm.use(bundle_of(ODD, config=DIRECT)):
        short.append(True)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
        short.clear()
        cupygemm.matmul(a, b)
        short.append(True)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert (len(gpu.packed), len(gpu.fallbacks)) == (1, 2)


def test_a_kernel_that_cannot_be_had_is_tried_once(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = draw(gpu)
    tried: list[bool] = []

    def refused(*told: Any) -> Any:
        tried.append(True)
        raise LaunchError("no cache")

    monkeypatch.setattr("cupygemm.kernels.pack_kernel._loaded", {})
    monkeypatch.setattr(compiler, "compile_page", refused)
    with cupygemm.use(bundle_of(ODD, config=DIRECT)):
        for _ in range(3):
            np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert (len(tried), len(gpu.fallbacks)) == (1, 3)
