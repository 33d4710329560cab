"""The kernel against float64: every tile family at every kind of edge."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.errors import ProblemError
from cupygemm.kernels import driver
from cupygemm.legality import illegal_reason
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.protocol import CONFIGS, DTYPES, LARGE, LAYOUTS, SMALL, Checks, Kernels, fitting, operands

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled_ahead")]

EDGES = (1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257)


def make(m: int, n: int, k: int, dtype: str = "float16", out_dtype: str = "float16", layout: str = "nn") -> Problem:
    return Problem(m, n, k, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, layout=layout)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_m_and_n_edge(name: str, kernels: Kernels, checks: Checks) -> None:
    for m, n in itertools.product(EDGES, EDGES):
        checks.verify(kernels.plan(make(m, n, 72), CONFIGS[name]), kinds=(verify.ZERO_MEAN,), seed=m * 1000 + n)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_count_of_k_tiles(name: str, kernels: Kernels, checks: Checks) -> None:
    config = CONFIGS[name]
    around = [tiles * config.block_k for tiles in (1, 2, config.stages - 1, config.stages, config.stages + 1)]
    for k in sorted({1, 2, 7, 8, 15, 16, 17, *around, *(k + 1 for k in around), *(k - 1 for k in around)}):
        checks.verify(kernels.plan(make(257, 264, k), config), seed=k)


@pytest.mark.parametrize("name", CONFIGS)
def test_more_than_a_wave_and_one_tail_tile(name: str, kernels: Kernels, checks: Checks) -> None:
    config = CONFIGS[name]
    tiles = 132 // config.cluster_size * config.cluster_m + 1
    m = min(config.block_m * tiles, 20000)
    checks.verify(kernels.plan(make(m, 2 * config.block_n * config.cluster_n + 8, 200), config))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_dtypes_and_layouts(dtype: str, out_dtype: str, layout: str, kernels: Kernels, checks: Checks) -> None:
    tried = 0
    for config, shape in itertools.product(CONFIGS.values(), ((512, 768, 256), (129, 257, 65), (1000, 520, 1000))):
        problem = make(*shape, dtype, out_dtype, layout)
        if illegal_reason(fitting(config, problem), KernelSpec.of(problem), H200) is None:
            checks.verify(kernels.plan(problem, config))
            tried += 1
    assert tried >= 20


@pytest.mark.parametrize("max_sms", [1, 2, 24, 78, 114])
@pytest.mark.parametrize("name", CONFIGS)
def test_fewer_sms(name: str, max_sms: int, kernels: Kernels, checks: Checks) -> None:
    plan = kernels.plan(make(1040, 1032, 136), CONFIGS[name], max_sms)
    assert plan.grid <= max(max_sms, CONFIGS[name].cluster_size)
    checks.verify(plan, kinds=(verify.ZERO_MEAN,))


def test_real_sizes(kernels: Kernels, checks: Checks) -> None:
    for shape in ((2048, 2048, 4096), (512, 512, 8192), (128, 4096, 4096), (4096, 4096, 1024), (8192, 8192, 512)):
        for config in (LARGE, SMALL):
            checks.verify(kernels.plan(make(*shape), config))


def test_long_k(kernels: Kernels, checks: Checks) -> None:
    checks.verify(kernels.plan(make(64, 64, 131072), SMALL))


def test_offsets_beyond_32_bits(kernels: Kernels) -> None:
    """More than 2^31 elements in the result, and in A; the last rows and columns are where an overflow would show."""
    cupy = driver.cupy()
    for problem, config in (
        (make(65536 + 8, 32768 + 16, 64), LARGE),
        (make(65536 + 8, 32768 + 16, 64), LARGE.swapped(store_stages=0)),
        (make(131072 + 8, 64, 16384 + 64), LARGE),
    ):
        rng = cupy.random.default_rng(5)
        a = rng.integers(-2, 3, (problem.m, problem.k), dtype=cupy.int8).astype(cupy.float16)
        b = rng.integers(-2, 3, (problem.k, problem.n), dtype=cupy.int8).astype(cupy.float16)
        out = cupy.full((problem.m, problem.n), float("nan"), dtype=cupy.float16)
        kernels.plan(problem, config)(a, b, out)
        assert bool(cupy.isfinite(out).all())
        for rows in (slice(0, 64), slice(problem.m // 2, problem.m // 2 + 64), slice(problem.m - 64, problem.m)):
            expected = (a[rows].astype(cupy.float64) @ b.astype(cupy.float64)).astype(cupy.float16)
            assert bool((out[rows] == expected).all())
        del a, b, out
        cupy.get_default_memory_pool().free_all_blocks()


def test_extents_near_the_limit_of_32_bits(kernels: Kernels) -> None:
    """One long side, narrow tiles and high bands: tile counts and coordinates must not overflow."""
    cupy = driver.cupy()
    long = 2**31 - 2048
    banded = SMALL.swapped(block_n=8, raster_along_n=True, group=64)
    for m, n, config in ((long, 8, LARGE.swapped(block_n=64)), (8, 2**29 + 8, banded), (8, long, banded)):
        problem = make(m, n, 8, out_dtype="float16")
        a, b = (cupy.ones(shape, dtype=cupy.float16) for shape in ((m, 8), (8, n)))
        out = cupy.zeros((m, n), dtype=cupy.float16)
        kernels.plan(problem, config)(a, b, out)
        assert bool((out == 8).all())
        del a, b, out
        cupy.get_default_memory_pool().free_all_blocks()


def test_offset_pointers(kernels: Kernels) -> None:
    """Operands that start 16 bytes into an allocation are legal; 8 bytes are refused before TMA faults."""
    cupy = driver.cupy()
    problem = make(128, 136, 64)
    plan = kernels.plan(problem, SMALL)

    def shifted(array: Any, elements: int) -> Any:
        buffer = cupy.full(array.size + elements, float("nan"), dtype=array.dtype)
        view = buffer[elements:].reshape(array.shape)
        view[...] = array
        return view

    a, b, out = map(cupy.ascontiguousarray, operands(problem, verify.ZERO_MEAN, 1)[:3])
    plan(shifted(a, 8), shifted(b, 8), shifted(out, 8))
    plan(a, b, out)
    moved = shifted(out, 8)
    moved[...] = float("nan")
    plan(shifted(a, 8), shifted(b, 8), moved)
    assert bool((moved == out).all())
    for arguments in ((shifted(a, 4), b, out), (a, shifted(b, 4), out), (a, b, shifted(out, 4))):
        with pytest.raises(ProblemError, match="multiple of 16"):
            plan(*arguments)


def test_zero_size_and_wrong_arrays_are_refused(kernels: Kernels) -> None:
    cupy = driver.cupy()
    plan = kernels.plan(make(128, 136, 64), SMALL)
    a, b, out = (cupy.zeros(shape, dtype=cupy.float16) for shape in ((128, 64), (64, 136), (128, 136)))
    for wrong in ((a[:64], b, out), (a.astype(cupy.float32), b, out), (a, b.T, out), (a, b, out[:, :128])):
        with pytest.raises(ProblemError, match="the plan was made for"):
            plan(*wrong)
    direct = kernels.plan(make(128, 136, 64), SMALL.swapped(store_stages=0))
    for wrong_out in (cupy.zeros((136, 128), dtype=cupy.float16).T, cupy.zeros((128, 272), dtype=cupy.float16)[:, ::2]):
        with pytest.raises(ProblemError, match="contiguous"):
            direct(a, b, wrong_out)
    with pytest.raises(ProblemError, match="at least 1"):
        make(128, 136, 0)
