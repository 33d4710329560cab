"""`cupygemm.plan` on real arrays: other arrays each time, several threads, captures."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from cupygemm.measuring.verify import Reference
from cupygemm.problem import Problem
from cupygemm.runtime import prepared
from tests.gpu.everything import everything
from tests.gpu.protocol import operands

pytestmark = pytest.mark.gpu

PROBLEMS = [
    Problem(128, 256, 512),
    Problem(100, 72, 64, layout="tn"),
    Problem(64, 64, 2048, 3, layout="nt"),
    Problem(128, 256, 512, epilogue="bias_n+residual+gelu_tanh"),
    Problem(72, 40, 128, epilogue="scaled", out_dtype="float32"),
]


def plan_for(problem: Problem) -> Any:
    given = operands(problem, verify.ZERO_MEAN, 0)
    activation = "gelu_tanh" if "gelu_tanh" in problem.epilogue else None
    beta = {} if given.residual is None else {"beta": given.beta}
    terms = {"bias": given.bias, "residual": given.residual, "alpha": given.alpha, **beta}
    with cupygemm.use(everything()):
        plan = cupygemm.plan(given.a, given.b, given.out, activation=activation, **terms)
    assert plan.choice.kernel == "own"
    return plan


def check(plan: Any, problem: Problem, seed: int, new: bool) -> None:
    """A call with arrays of its own."""
    given = operands(problem, verify.ZERO_MEAN, seed)
    reference = Reference.of(given, problem)
    beta = {} if given.residual is None else {"beta": given.beta}
    alpha = {} if problem.epilogue == "none" else {"alpha": given.alpha}
    out = None if new else given.out
    result = plan(given.a, given.b, out, bias=given.bias, residual=given.residual, **alpha, **beta)
    verdict = verify.check(result, reference)
    assert verdict.ok, f"{problem}: {verdict.detail}"


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_other_arrays(problem: Problem) -> None:
    plan = plan_for(problem)
    for seed in range(20):
        check(plan, problem, seed, new=bool(seed % 2))


def test_addresses_are_written_into_descriptors() -> None:
    """What is nowhere documented: that it holds of this driver, or that calls take longer, is worth knowing."""
    plan = plan_for(PROBLEMS[0])
    place = plan._repeat._first._map_a
    assert not isinstance(place, prepared._PlaceByDriver), "the driver keeps addresses elsewhere than it did"


def test_several_threads() -> None:
    plans = [(plan_for(problem), problem) for problem in PROBLEMS]
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            with driver.cupy().cuda.Stream(non_blocking=True):
                for turn in range(30):
                    check(*plans[(start + turn) % len(plans)], 100 * start + turn, new=bool(turn % 2))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_capture_and_other_contents() -> None:
    problem = PROBLEMS[0]
    plan = plan_for(problem)
    given = operands(problem, verify.ZERO_MEAN, 1)
    stream = driver.cupy().cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        plan(given.a, given.b, given.out)
        graph = stream.end_capture()
        for seed in (2, 3):
            other = operands(problem, verify.ZERO_MEAN, seed)
            given.a[...], given.b[...] = other.a, other.b
            given.out.fill(float("nan"))
            graph.launch()
            stream.synchronize()
            assert verify.check(given.out, Reference.of(other, problem)).ok
