"""Plans of stacks and with epilogues: what the kernel is told, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cupygemm.config import KernelSpec
from cupygemm.errors import ProblemError
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan, _Arguments
from cupygemm.kernels.raster import Divisor
from cupygemm.kernels.tensor_map import Matrix
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, SMALL, plain, right, spread

B, M, N, K = 3, 24, 40, 16
STACK = Problem(M, N, K, B)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    return gpu


def made(gpu: FakeGpu, *shape: int, seed: int = 0, dtype: str = "float16") -> Any:
    array = gpu.empty(shape, np.dtype(dtype))
    array[...] = np.random.default_rng(seed).integers(-2, 3, shape)
    return array


def ready(gpu: FakeGpu, problem: Problem, config: Any = SMALL, **options: Any) -> Plan:
    return Plan(problem, LoadedKernel(gpu.compile(KernelSpec.of(problem), config)), **options)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[_Arguments]:
    """What kernels are told, in place of their launches."""
    found: list[_Arguments] = []

    def enqueue(plan: Plan, addresses: tuple[int, ...]) -> None:
        found.append(_Arguments.from_buffer_copy(_Arguments.from_address(addresses[-1])))

    monkeypatch.setattr(Plan, "_enqueue", enqueue)
    return found


@pytest.mark.parametrize(
    ("config", "m", "n", "batch", "max_sms", "grid"),
    [
        (SMALL, 64, 64, 7, None, 7),
        (SMALL, 65, 64, 7, None, 14),
        (SMALL, 640, 640, 2, None, 132),
        (LARGE, 1, 1, 9, 5, 4),
    ],
)
def test_the_grid_covers_the_tiles_of_all_matrices(
    gpu: FakeGpu, config: Any, m: int, n: int, batch: int, max_sms: int | None, grid: int
) -> None:
    assert ready(gpu, Problem(m, n, 64, batch), config.swapped(store_stages=0), max_sms=max_sms).grid == grid


def test_tiles_of_all_matrices_are_counted_in_32_bits(gpu: FakeGpu) -> None:
    config = SMALL.swapped(store_stages=0)
    assert ready(gpu, Problem(64, 64 * 2**15, 64, 2**16 - 1), config).grid == 132
    with pytest.raises(ProblemError, match=f"{2**31} tiles are more than"):
        ready(gpu, Problem(64, 64 * 2**15, 64, 2**16), config)


def test_a_stack_is_told_by_steps_and_tiles(gpu: FakeGpu, told: list[_Arguments]) -> None:
    problem = Problem(130, 72, K, B)
    a, b, out = made(gpu, B, 130, K), made(gpu, 2 * B, K, 80)[::2, :, :72], made(gpu, B, 140, 72)[:, :130]
    ready(gpu, problem, SMALL.swapped(prefetch=1))(a, b, out)
    (got,) = told
    assert bytes(got.matrix_tiles) == bytes(Divisor.of(3 * 2))
    assert got.raster.tiles == 3 * 2 * B
    assert (got.a_step, got.b_step) == (1, 1)
    assert (got.a_batch_bytes, got.b_batch_bytes, got.out_batch_stride) == (130 * K * 2, 2 * K * 80 * 2, 140 * 72)
    assert (got.a_row_bytes, got.b_row_bytes, got.out_row_stride) == (K * 2, 160, 72)
    (map_a, _), (map_b, _), (map_out, _) = gpu.maps.values()
    assert map_a == Matrix(a.data.ptr, 130, K, K * 2, "float16", B, 130 * K * 2)
    assert map_b == Matrix(b.data.ptr, K, 72, 160, "float16", B, 2 * K * 80 * 2)
    assert map_out == Matrix(out.data.ptr, 130, 72, 144, "float16", B, 140 * 144)


@pytest.mark.parametrize("shared", ["a", "b", "both"])
@pytest.mark.parametrize("config", [SMALL, SMALL.swapped(store_stages=0)])
def test_an_operand_that_all_share_is_a_stack_of_one(gpu: FakeGpu, config: Any, shared: str) -> None:
    a, b = made(gpu, B, M, K, seed=1), made(gpu, B, K, N, seed=2)
    a = spread(a[1], (B, M, K), (0, 2 * K, 2)) if shared != "b" else a
    b = spread(b[1], (B, K, N), (0, 2 * N, 2)) if shared != "a" else b
    out = gpu.empty((B, M, N), np.float16)
    ready(gpu, STACK, config)(a, b, out)
    (map_a, _), (map_b, _), *_ = gpu.maps.values()
    assert (map_a.depth, map_b.depth) == (B if shared == "b" else 1, B if shared == "a" else 1)
    np.testing.assert_array_equal(plain(out), right(a, b))


OUTS = {
    "one for all": lambda out: spread(out, (B, M, N), (0, 2 * N, 2)),
    "overlapping": lambda out: spread(out, (B, M, N), (2 * N, 2 * N, 2)),
    "backwards": lambda out: out[::-1],
}


@pytest.mark.parametrize("store_stages", [0, 1])
@pytest.mark.parametrize("case", OUTS)
def test_matrices_of_a_result_lie_apart(gpu: FakeGpu, case: str, store_stages: int) -> None:
    plan = ready(gpu, STACK, SMALL.swapped(store_stages=store_stages))
    with pytest.raises(ProblemError, match=r"out: (its )?matrices are -?\d+ bytes apart"):
        plan(made(gpu, B, M, K), made(gpu, B, K, N), OUTS[case](gpu.empty((B, M, N), np.float16)))
    assert gpu.launches == []


def test_a_plan_of_a_stack_takes_stacks_alone(gpu: FakeGpu) -> None:
    a, b, out = made(gpu, B, M, K), made(gpu, B, K, N), gpu.empty((B, M, N), np.float16)
    with pytest.raises(ProblemError, match=r"a is float16\[24, 16\]: the plan was made for float16\[3, 24, 16\]"):
        ready(gpu, STACK)(a[0], b, out)
    with pytest.raises(ProblemError, match=r"a is float16\[3, 24, 16\]: the plan was made for float16\[24, 16\]"):
        ready(gpu, replace(STACK, batch=1))(a, b, out)
    with pytest.raises(ProblemError, match="a: matrices are 776 bytes apart: TMA needs a multiple of 16"):
        ready(gpu, STACK)(spread(made(gpu, 2000), (B, M, K), (776, 32, 2)), b, out)


# Epilogues

FUSED = Problem(M, N, K, epilogue="bias_n+residual")


def test_an_epilogue_is_told_by_addresses_and_factors(gpu: FakeGpu, told: list[_Arguments]) -> None:
    problem = replace(FUSED, batch=B)
    bias, residual = made(gpu, N), made(gpu, 2 * B, 30, 48)[::2, :M, 8:]
    out = gpu.empty((B, M, N), np.float16)
    ready(gpu, problem)(made(gpu, B, M, K), made(gpu, B, K, N), out, bias, residual, 0.5, -0.75)
    (got,) = told
    assert (got.bias, got.residual) == (bias.data.ptr, residual.data.ptr)
    assert (got.residual_row_stride, got.residual_batch_stride) == (48, 2 * 30 * 48)
    assert (got.alpha, got.beta) == (0.5, -0.75)


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("store_stages", [0, 1])
@pytest.mark.parametrize(("kind", "length"), [("bias_n", N), ("bias_m", M)])
def test_terms_are_added_where_they_belong(gpu: FakeGpu, kind: str, length: int, store_stages: int, batch: int) -> None:
    problem = replace(FUSED, epilogue=f"{kind}+residual+relu", batch=batch)
    shapes = (problem.matrix(M, K), problem.matrix(K, N), problem.matrix(M, N))
    a, b, residual = (made(gpu, *shape, seed=seed) for seed, shape in enumerate(shapes))
    bias, out = made(gpu, length, seed=5), gpu.empty(shapes[2], np.float16)
    ready(gpu, problem, SMALL.swapped(store_stages=store_stages))(a, b, out, bias, residual, 0.5, -2.0)
    added = plain(bias) if kind == "bias_n" else plain(bias)[:, None]
    expected = np.maximum(0.5 * right(a, b) + added - 2 * plain(residual), 0)
    np.testing.assert_array_equal(plain(out), expected)


TERMS: dict[str, tuple[Problem, dict[str, Any], str]] = {
    "no bias": (FUSED, {"bias": None}, r"bias is missing, and the plan was made for the epilogue bias_n\+residual"),
    "no residual": (FUSED, {"residual": None}, "residual is missing"),
    "a bias of rows": (FUSED, {"bias": (M,)}, r"bias is float16\[24\]: the plan was made for float16\[40\]"),
    "a bias of two axes": (FUSED, {"bias": (1, N)}, r"bias is float16\[1, 40\]"),
    "a residual of a stack": (FUSED, {"residual": (1, M, N)}, r"residual is float16\[1, 24, 40\]"),
    "a bias beside relu": (
        replace(FUSED, epilogue="relu"),
        {"residual": None},
        "bias is there, and the plan was made for the epilogue relu",
    ),
    "a residual beside a bias": (replace(FUSED, epilogue="bias_n"), {}, "residual is there"),
    "terms without an epilogue": (replace(FUSED, epilogue="none"), {}, "without an epilogue"),
    "alpha without an epilogue": (
        replace(FUSED, epilogue="none"),
        {"bias": None, "residual": None, "alpha": 2.0},
        "it takes no bias, residual or alpha",
    ),
}


@pytest.mark.parametrize("case", TERMS)
def test_terms_that_a_plan_was_not_made_for_are_refused(gpu: FakeGpu, case: str) -> None:
    problem, changes, words = TERMS[case]
    given: dict[str, Any] = {"bias": (N,), "residual": (M, N)} | changes
    terms = {name: made(gpu, *value) if isinstance(value, tuple) else value for name, value in given.items()}
    with pytest.raises(ProblemError, match=words):
        ready(gpu, problem)(made(gpu, M, K), made(gpu, K, N), gpu.empty((M, N), np.float16), **terms)
    assert gpu.launches == []


LIES = {
    "a bias of another dtype": ("bias", lambda gpu: made(gpu, N, dtype="float32"), r"bias is float32\[40\]"),
    "a bias apart": ("bias", lambda gpu: made(gpu, 2 * N)[::2], "bias has a stride of 4 bytes: it must be contiguous"),
    "a bias between pairs": ("bias", lambda gpu: made(gpu, N + 1)[1:], "bias starts at an address that is no multiple"),
    "a residual between pairs": ("residual", lambda gpu: made(gpu, M, 50)[:, 1:41], "residual starts at an address"),
    "odd rows of a residual": (
        "residual",
        lambda gpu: made(gpu, M, 41)[:, :40],
        "residual has strides .*tiples of 4",
    ),
    "a residual by columns": ("residual", lambda gpu: made(gpu, N, M).T, "residual: its rows are not contiguous"),
    "a row for all": ("residual", lambda gpu: spread(made(gpu, N), (M, N), (0, 2)), "residual: its rows are 0 bytes"),
}


@pytest.mark.parametrize("case", LIES)
def test_terms_that_a_kernel_cannot_read_are_refused(gpu: FakeGpu, case: str) -> None:
    name, make, words = LIES[case]
    terms = {"bias": made(gpu, N), "residual": made(gpu, M, N)} | {name: make(gpu)}
    with pytest.raises(ProblemError, match=words):
        ready(gpu, FUSED)(made(gpu, M, K), made(gpu, K, N), gpu.empty((M, N), np.float16), **terms)
    assert gpu.launches == []


def test_where_rows_are_not_aligned_single_elements_are_read(gpu: FakeGpu) -> None:
    problem = replace(FUSED, n=39, layout="nt")
    a, b = made(gpu, M, K, seed=1), made(gpu, 39, K, seed=2).T
    bias, residual, out = made(gpu, 40)[1:], made(gpu, M, 41)[:, 1:40], gpu.empty((M, 39), np.float16)
    ready(gpu, problem, SMALL.swapped(store_stages=0))(a, b, out, bias, residual)
    np.testing.assert_array_equal(plain(out), right(a, b) + plain(bias) + plain(residual))
