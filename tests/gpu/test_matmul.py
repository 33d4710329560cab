"""`cupygemm.matmul` against `cupy.matmul`: what runs an own kernel, what falls back, and that both are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cupygemm
from cupygemm.bundles import bundle as bundles
from cupygemm.config import KernelConfig
from cupygemm.errors import CaptureError
from cupygemm.kernels import compiler, driver
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.protocol import LARGE, SMALL

pytestmark = pytest.mark.gpu

PROBLEMS = {
    Problem(256, 512, 128): LARGE,
    Problem(256, 512, 128, layout="nt"): LARGE,
    Problem(96, 96, 96): SMALL,
    Problem(256, 512, 128, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16"): SMALL,
    Problem(64, 63, 64, layout="nt"): SMALL.swapped(store_stages=0),
}


def bundle_of(problems: dict[Problem, KernelConfig], digest: str | None = None) -> bundles.Bundle:
    device = bundles.BundleDevice.of(driver.device_spec(0), {})
    measured = bundles.Measured(us=1.0)
    search = bundles.SearchInfo(strategy="test", evaluations=1)
    entries = [
        bundles.Entry(problem=problem, config=config, measured=measured, search=search)
        for problem, config in problems.items()
    ]
    return bundles.new_bundle(device, digest or compiler.source_digest(), entries)


@pytest.fixture(autouse=True)
def in_force() -> Iterator[None]:
    with cupygemm.use(bundle_of(PROBLEMS)):
        yield


def pair(problem: Problem, seed: int = 0) -> tuple[Any, Any]:
    """Small integers: both libraries then give the exact result, whatever the order of additions."""
    cupy = driver.cupy()
    rng = cupy.random.default_rng(seed)
    dtype = verify.numpy_dtype(problem.a_dtype)
    a = rng.integers(-2, 3, (problem.m, problem.k)).astype(cupy.float32).astype(dtype)
    b = rng.integers(-2, 3, (problem.k, problem.n)).astype(cupy.float32).astype(dtype)
    return a, b.T.copy().T if problem.layout[1] == "t" else b


def expected(a: Any, b: Any) -> Any:
    cupy = driver.cupy()
    return (a.astype(cupy.float64) @ b.astype(cupy.float64)).astype(a.dtype)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_own_kernel_runs_and_is_right(problem: Problem) -> None:
    a, b = pair(problem)
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.problem, choice.config) == ("own", problem, PROBLEMS[problem])
    out = cupygemm.matmul(a, b)
    assert out.dtype == a.dtype
    assert bool((out == expected(a, b)).all())


def test_out_of_every_kind() -> None:
    cupy = driver.cupy()
    problem = Problem(96, 96, 96)
    a, b = pair(problem)
    right = expected(a, b)
    out = cupy.full((96, 96), float("nan"), dtype=cupy.float16)
    assert cupygemm.matmul(a, b, out=out) is out
    assert bool((out == right).all())
    strided = cupy.full((96, 192), float("nan"), dtype=cupy.float16)[:, 8:104]
    assert cupygemm.explain(a, b, strided).kernel == "own"
    assert cupygemm.matmul(a, b, out=strided) is strided
    assert bool((strided == right).all())
    # What an own kernel cannot write to is copied to: columns apart, another dtype.
    column_major = cupy.empty((96, 96), dtype=cupy.float16).T
    assert "then copied to out" in cupygemm.explain(a, b, column_major).reason
    assert bool((cupygemm.matmul(a, b, out=column_major) == right).all())
    wide = cupy.empty((96, 96), dtype=cupy.float32)
    assert bool((cupygemm.matmul(a, b, out=wide) == right).all())


@pytest.mark.parametrize("which", ["a", "b", "part of a"])
def test_out_may_overlap_an_operand(which: str) -> None:
    cupy = driver.cupy()
    a, b = pair(Problem(96, 96, 96))
    if which == "part of a":
        buffer = cupy.zeros((200, 96), dtype=cupy.float16)
        buffer[:96] = a
        a, out = buffer[:96], buffer[32:128]
    else:
        out = a if which == "a" else b
    right = expected(a, b)
    assert cupygemm.explain(a, b, out).kernel == "own"
    assert bool((cupygemm.matmul(a, b, out=out) == right).all())


def test_everything_else_is_cupys() -> None:
    cupy = driver.cupy()
    rng = cupy.random.default_rng(1)
    draw = rng.standard_normal
    cases = {
        "float32": (draw((8, 8), dtype=cupy.float32), draw((8, 8), dtype=cupy.float32)),
        "three axes": (draw((2, 8, 8), dtype=cupy.float32), draw((8, 8), dtype=cupy.float32)),
        "one axis": (draw(8, dtype=cupy.float32), draw((8, 8), dtype=cupy.float32)),
        "no config": (draw((72, 56)).astype(cupy.float16), draw((56, 40)).astype(cupy.float16)),
        "mixed": (draw((96, 96)).astype(cupy.float16), draw((96, 96), dtype=cupy.float32)),
        "odd stride": (draw((96, 97)).astype(cupy.float16)[:, :96], draw((96, 96)).astype(cupy.float16)),
        "empty": (cupy.zeros((0, 8), dtype=cupy.float16), cupy.zeros((8, 8), dtype=cupy.float16)),
        "k of 0": (cupy.zeros((8, 0), dtype=cupy.float16), cupy.zeros((0, 8), dtype=cupy.float16)),
    }
    for name, (a, b) in cases.items():
        choice = cupygemm.explain(a, b)
        assert choice.kernel == "cublas", name
        assert choice.reason, name
        own, theirs = cupygemm.matmul(a, b), cupy.matmul(a, b)
        assert own.dtype == theirs.dtype, name
        assert own.shape == theirs.shape, name
        assert bool((own == theirs).all()), name
    with pytest.raises(ValueError, match=r"\w"):
        cupygemm.matmul(cupy.zeros((8, 4), dtype=cupy.float16), cupy.zeros((8, 8), dtype=cupy.float16))


def test_current_stream_and_no_synchronisation() -> None:
    cupy = driver.cupy()
    a, b = pair(Problem(96, 96, 96))
    cupygemm.matmul(a, b)
    stream = cupy.cuda.Stream(non_blocking=True)
    blocker = cupy.cuda.Event(disable_timing=True)
    with stream:
        big = cupy.ones((8192, 8192), dtype=cupy.float32)
        for _ in range(20):
            big = big @ big
        out = cupygemm.matmul(a, b)
        blocker.record()
        # The stream is still busy with what was queued before: the call has not waited for it.
        assert not blocker.done
        stream.synchronize()
        assert bool((out == expected(a, b)).all())


def test_capture_and_replay() -> None:
    cupy = driver.cupy()
    problem = Problem(96, 96, 96)
    a, b = pair(problem)
    out = cupy.empty((96, 96), dtype=cupy.float16)
    cupygemm.matmul(a, b, out=out)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        cupygemm.matmul(a, b, out=out)
        graph = stream.end_capture()
        a[...], b[...] = pair(problem, seed=2)
        out.fill(0)
        graph.launch()
        stream.synchronize()
        assert bool((out == expected(a, b)).all())


def test_capture_of_what_cannot_be_captured_says_so() -> None:
    cupy = driver.cupy()
    a, b = pair(Problem(96, 96, 96))
    never_loaded = bundle_of({Problem(96, 96, 96): SMALL.swapped(group=61)})
    with cupygemm.use(never_loaded), cupy.cuda.Stream(non_blocking=True) as stream:
        for operand, words in ((a, "before the capture"), (a.astype(cupy.float32), "cannot be captured")):
            stream.begin_capture()
            try:
                with pytest.raises(CaptureError, match=words):
                    cupygemm.matmul(operand, b if operand is a else b.astype(cupy.float32))
            finally:
                stream.end_capture()


def test_old_entries_are_used_and_broken_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    a, b = pair(Problem(96, 96, 96))
    with cupygemm.use(bundle_of({Problem(96, 96, 96): LARGE}, digest="0" * 16)):
        # The newest bundle is of other sources: its kernel is compiled from those here.
        assert cupygemm.explain(a, b).config == LARGE
        assert bool((cupygemm.matmul(a, b) == expected(a, b)).all())
    assert "measured with other kernel sources" in caplog.text
    with cupygemm.use(bundle_of({Problem(96, 96, 96): SMALL.swapped(stages=1)})):
        # The newest entry cannot run: it is passed over too.
        assert cupygemm.explain(a, b).config == SMALL
        assert bool((cupygemm.matmul(a, b) == expected(a, b)).all())
    assert "1 stages" in caplog.text


def test_an_entry_that_cannot_run_leaves_the_product_to_cublas() -> None:
    problem = Problem(88, 96, 96)
    a, b = pair(problem)
    with cupygemm.use(bundle_of({problem: SMALL.swapped(stages=1)})):
        choice = cupygemm.explain(a, b)
        assert choice.kernel == "cublas"
        assert "stages" in choice.reason
        assert bool((cupygemm.matmul(a, b) == expected(a, b)).all())
