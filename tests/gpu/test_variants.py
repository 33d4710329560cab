"""Kernels of stacks of matrices and kernels with epilogues, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from cupygemm.errors import ProblemError
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.verify import Reference
from cupygemm.problem import Problem
from tests.gpu.protocol import (
    CONFIGS,
    EPILOGUES,
    FUSED,
    SMALL,
    STACKED,
    Checks,
    Kernels,
    fused_problems,
    operands,
    stacked_problems,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("variants_ahead")]

EDGES = ((1, 1, 8), (63, 64, 72), (64, 65, 64), (129, 72, 200), (257, 264, 129), (400, 520, 1000))
PASS = CONFIGS["ping-pong"]
WITH_RESIDUAL = [name for name in FUSED if not CONFIGS[name].swap_ab]


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize("batch", [2, 7, 150])
def test_stacks(name: str, batch: int, kernels: Kernels, checks: Checks) -> None:
    for m, n, k in EDGES:
        for problem in stacked_problems(m, n, k, batch)[name]:
            checks.verify(kernels.plan(problem, CONFIGS[name]), kinds=(verify.ZERO_MEAN,), seed=m + n)


@pytest.mark.parametrize("name", FUSED)
def test_epilogues(name: str, kernels: Kernels, checks: Checks) -> None:
    for m, n, k in EDGES:
        for problem in fused_problems(m, n, k)[name]:
            checks.verify(kernels.plan(problem, CONFIGS[name]), seed=m + n)


@pytest.mark.parametrize("max_sms", [1, 24])
@pytest.mark.parametrize("name", STACKED)
def test_stacks_on_fewer_sms(name: str, max_sms: int, kernels: Kernels, checks: Checks) -> None:
    problem = Problem(200, 136, 264, 9)
    checks.verify(kernels.plan(problem, CONFIGS[name], max_sms), kinds=(verify.ZERO_MEAN,))


def repeated(matrix: Any, batch: int) -> Any:
    """One matrix as a stack."""
    return driver.cupy().broadcast_to(matrix, (batch, *matrix.shape))


@pytest.mark.parametrize("config", [PASS, CONFIGS["cluster 2x2"], CONFIGS["prefetch, no cluster"]])
def test_an_operand_that_all_products_share(config: Any, kernels: Kernels) -> None:
    problem = Problem(136, 72, 200, 5)
    given = operands(problem, verify.ZERO_MEAN, 3)
    plan = kernels.plan(problem, config)
    for changes in ({"a": repeated(given.a[2], 5)}, {"b": repeated(given.b[4], 5)}):
        shared = given._replace(**changes)
        shared.out.fill(float("nan"))
        plan.launch(shared)
        assert verify.check(shared.out, Reference.of(shared, problem)).ok


def test_matrices_that_lie_apart_or_overlap(kernels: Kernels) -> None:
    """Every second matrix of a stack, and windows that slide by 16 bytes; the result's matrices lie apart too."""
    cupy = driver.cupy()
    problem = Problem(64, 72, 128, 6)
    plan = kernels.plan(problem, SMALL)
    given = operands(problem, verify.ZERO_MEAN, 5)
    rng = cupy.random.default_rng(6)
    spread = rng.standard_normal((12, 64, 128), dtype=cupy.float32).astype(cupy.float16)[::2]
    line = rng.standard_normal(64 * 128 + 8 * 6, dtype=cupy.float32).astype(cupy.float16)
    windows = cupy.lib.stride_tricks.as_strided(line, (6, 64, 128), (16, 256, 2))
    for a in (spread, windows):
        out = cupy.full((6, 2, 64, 72), float("nan"), dtype=cupy.float16)
        moved = given._replace(a=a, out=out[:, 1])
        plan.launch(moved)
        assert verify.check(moved.out, Reference.of(moved, problem)).ok
        assert bool(cupy.isnan(out[:, 0]).all())


def test_a_stack_of_more_than_2_to_the_31_elements(kernels: Kernels) -> None:
    cupy = driver.cupy()
    problem = Problem(4096, 4096, 64, 130)
    assert problem.batch * problem.m * problem.n > 2**31
    rng = cupy.random.default_rng(5)
    a = rng.integers(-2, 3, (130, 4096, 64), dtype=cupy.int8).astype(cupy.float16)
    b = rng.integers(-2, 3, (130, 64, 4096), dtype=cupy.int8).astype(cupy.float16)
    for config in (PASS, CONFIGS["direct store"]):
        out = cupy.full((130, 4096, 4096), float("nan"), dtype=cupy.float16)
        kernels.plan(problem, config)(a, b, out)
        for z in (0, 64, 127, 128, 129):
            expected = (a[z].astype(cupy.float64) @ b[z].astype(cupy.float64)).astype(cupy.float16)
            assert bool((out[z] == expected).all())
        del out
    del a, b
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_the_residual_may_be_the_result(name: str, kernels: Kernels) -> None:
    problem = Problem(264, 136, 200, epilogue="bias_n+residual+silu")
    given = operands(problem, verify.POSITIVE_MEAN, 3)
    reference = Reference.of(given, problem)
    in_place = given._replace(out=given.residual)
    kernels.plan(problem, CONFIGS[name]).launch(in_place)
    assert verify.check(in_place.out, reference).ok


@pytest.mark.parametrize("count", [1, 2], ids=["in place", "two buffers"])
@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_dependent_launches_wait_for_the_residual_too(name: str, count: int, kernels: Kernels) -> None:
    """The operands are there all along, and each residual is the result before: it adds one, so none is like another.

    Integers that fp16 holds: a residual that is read before it is written, or out of a cache, leaves a sum too small.
    """
    cupy = driver.cupy()
    problem, steps = Problem(520, 264, 64, epilogue="residual"), 400
    plan = kernels.plan(problem, CONFIGS[name], dependent_launch=True)
    given = operands(problem, verify.ZERO_MEAN, 7)
    given.a[...], given.b[...] = 0, 0
    given.a[:, 3], given.b[3, :] = 1, 1
    first = cupy.arange(520 * 264, dtype=cupy.int32).reshape(520, 264) % 17 - 8
    buffers = [cupy.full((520, 264), float("nan"), dtype=cupy.float16) for _ in range(count)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        for _ in range(10):
            buffers[0][...] = first
            for step in range(steps):
                plan(given.a, given.b, buffers[(step + 1) % count], residual=buffers[step % count])
            assert bool((buffers[steps % count] == first + steps).all())
        stream.synchronize()


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_is_not_finite_stays_so(epilogue: str, kernels: Kernels) -> None:
    """NaN comes through every activation, and infinity through what does not bring it to zero."""
    problem = Problem(64, 64, 64, epilogue=epilogue)
    given = operands(problem, verify.ZERO_MEAN, 1)
    given.a[3, 5] = float("nan")
    given.a[7, :] = 60000.0
    given.b[:, 9] = 60000.0
    kernels.plan(problem, SMALL).launch(given)
    cupy = driver.cupy()
    assert bool(cupy.isnan(given.out[3]).all())
    assert float(given.out[7, 9]) == float("inf")
    assert not bool(cupy.isnan(given.out[:3]).any())


@pytest.mark.parametrize("problem", [Problem(512, 512, 256, 4), Problem(520, 264, 200, epilogue="bias_n+gelu_tanh")])
def test_repeated_launches_are_bitwise_equal(problem: Problem, kernels: Kernels) -> None:
    cupy = driver.cupy()
    given = operands(problem, verify.ZERO_MEAN, 1)
    for config in (PASS, CONFIGS["K in eight shares"]):
        plan = kernels.plan(problem, config)
        plan.launch(given)
        first, different = given.out.copy(), cupy.zeros((), dtype=cupy.int64)
        for _ in range(2000):
            given.out.fill(float("nan"))
            plan.launch(given)
            different += (given.out != first).sum()
        assert int(different) == 0


def test_terms_that_do_not_fit_are_refused(kernels: Kernels) -> None:
    problem = Problem(64, 72, 64, epilogue="bias_n+residual")
    plan = kernels.plan(problem, SMALL)
    given = operands(problem, verify.ZERO_MEAN, 1)
    shifted = driver.cupy().zeros(73, dtype="float16")[1:]
    for changes, match in (
        ({"bias": None}, "bias is missing"),
        ({"residual": None}, "residual is missing"),
        ({"bias": given.bias[:64]}, "the plan was made for"),
        ({"bias": shifted}, "multiple of 4"),
        ({"residual": given.residual.T.copy().T}, "contiguous"),
    ):
        with pytest.raises(ProblemError, match=match):
            plan.launch(given._replace(**changes))
    with pytest.raises(ProblemError, match="without an epilogue"):
        kernels.plan(Problem(64, 72, 64), SMALL).launch(given)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(256, 512, 384, 4),
        Problem(256, 512, 384, epilogue="bias_n+gelu_tanh"),
        Problem(256, 512, 384, epilogue="bias_n+residual+relu"),
        Problem(256, 512, 384, epilogue="bias_m+residual+silu"),
        Problem(256, 512, 384, 3, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16", layout="tn"),
    ],
)
def test_the_baselines_are_right(problem: Problem) -> None:
    """cuBLAS, with a kernel of CuPy's after it, and cublasLt where it has the epilogue."""
    bench = Bench(problem)
    assert bench.has_baseline
    best = bench.cublaslt()
    assert (best is None) == ("silu" in problem.epilogue)
    assert best is None or bench.verify(best.run).error < 5e-3
