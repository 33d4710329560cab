"""First calls on a real GPU: how long they take, what runs meanwhile, and what is compiled ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cupygemm
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelSpec
from cupygemm.kernels import compiler, driver, pack_kernel
from cupygemm.problem import Problem
from cupygemm.runtime import api, product
from tests.gpu.protocol import LARGE, SMALL
from tests.gpu.test_matmul import bundle_of, expected, pair

pytestmark = pytest.mark.gpu

FIRST_CALL_S = 1.5
"""What a first call may take whose kernel is in no cache, NVRTC and the bundle already read."""

PROBLEMS = {
    Problem(256, 512, 128): LARGE,
    Problem(256, 512, 128, layout="nt"): LARGE,
    Problem(96, 96, 96): SMALL,
    Problem(96, 96, 96, layout="nt"): SMALL,
}
"""Each of another kernel."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing in the disk cache, and nothing loaded."""
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(api, "_dispatcher", Dispatcher(in_background=True))
    yield
    finish()


def finish() -> None:
    """Waits until nothing is compiled in the background."""
    for thread in threading.enumerate():
        if thread.name == "cupygemm-compile":
            thread.join(60)


def check(problem: Problem, seed: int = 0) -> None:
    a, b = pair(problem, seed)
    assert (cupygemm.matmul(a, b) == expected(a, b)).all(), str(problem)


def heaviest() -> list[Problem]:
    """A problem of the shipped bundle for each large tile and each epilogue: what takes long to compile."""
    entries = [entry for entry in shipped_bundle().entries if not entry.is_slower and entry.problem.batch == 1]
    by_tile = {
        (entry.config.consumer_n, entry.config.consumers, entry.problem.epilogue): entry.problem
        for entry in entries
        if entry.config.consumer_n >= 192 or entry.problem.epilogue != "none"
    }
    return list(by_tile.values())


def test_a_first_call_takes_no_longer_than_promised() -> None:
    """Of the kernels that take the longest to compile; which is the slowest, the failure says."""
    api.dispatcher().bundles()
    with cupygemm.use(bundle_of({Problem(64, 64, 64): SMALL})):
        check(Problem(64, 64, 64))  # loads NVRTC, cuRAND and cuBLAS
    took: dict[str, float] = {}
    for problem in heaviest():
        began = time.perf_counter()
        choice, plan = api.dispatcher().choose_for(problem, 0)
        took[f"{problem} {problem.layout}"] = time.perf_counter() - began
        assert plan is not None, f"{problem}: {choice.reason}"
    assert len(took) > 3
    slowest = max(took, key=lambda name: took[name])
    assert took[slowest] < FIRST_CALL_S, f"{slowest} took {took[slowest]:.2f} s; all: {took}"


def test_cublas_runs_first_and_the_own_kernel_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    (problem, *_) = PROBLEMS
    a, b = pair(problem)
    want = expected(a, b)
    driver.cupy().matmul(a, b)
    compiler.nvrtc_version()  # both libraries are loaded before the time is taken
    with cupygemm.use(bundle_of(PROBLEMS)):
        began = time.perf_counter()
        first = cupygemm.matmul(a, b)
        took = time.perf_counter() - began
        assert cupygemm.explain(a, b).kernel == "cublas"
        assert (first == want).all()
        finish()
        assert (cupygemm.matmul(a, b) == want).all()
        assert cupygemm.explain(a, b).kernel == "own"
        assert (cupygemm.matmul(a, b) == want).all()
    assert took < 0.5, f"the first call waited for {took:.2f} s"


def test_threads_multiply_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    ran: set[str] = set()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        stream = driver.cupy().cuda.Stream(non_blocking=True)
        try:
            with stream:
                until = time.monotonic() + 30
                own: set[Problem] = set()
                while len(own) < len(PROBLEMS) and time.monotonic() < until:
                    for problem in PROBLEMS:
                        a, b = pair(problem, seed)
                        kind = cupygemm.explain(a, b).kernel
                        ran.add(kind)
                        check(problem, seed)
                        if kind == "own":
                            own.add(problem)
                stream.synchronize()
                assert len(own) == len(PROBLEMS)
        except BaseException as error:
            errors.append(error)

    with cupygemm.use(bundle_of(PROBLEMS)):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert errors == []
    assert ran == {"own", "cublas"}


def test_a_capture_goes_on_while_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mode in which CUDA minds what other threads do."""
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    cupy = driver.cupy()
    loaded, *others = PROBLEMS
    a, b = pair(loaded)
    want, out = expected(a, b), cupy.empty((loaded.m, loaded.n), cupy.float16)
    ready = [pair(problem) for problem in others]
    with cupygemm.use(bundle_of(PROBLEMS)):
        cupygemm.warmup(problems=[loaded])
        for operands in ready:
            cupygemm.matmul(*operands)  # begins to compile
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            cupygemm.matmul(a, b, out=out)
            finish()
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
    assert (out == want).all()


def test_warmup_makes_first_calls_capturable() -> None:
    cupy = driver.cupy()
    report = cupygemm.warmup(bundle_of(PROBLEMS))
    assert (report.loaded, report.failed, len(report.ready)) == (True, {}, len(PROBLEMS))
    assert (report.compiled, report.uncopied) == (len(PROBLEMS) + 1, None)  # one copies operands
    operands = {problem: pair(problem) for problem in PROBLEMS}
    wanted = {problem: expected(*each) for problem, each in operands.items()}
    outs = {problem: cupy.empty((problem.m, problem.n), cupy.float16) for problem in PROBLEMS}
    with cupygemm.use(bundle_of(PROBLEMS)), cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        for problem, (a, b) in operands.items():
            cupygemm.matmul(a, b, out=outs[problem])
        stream.end_capture().launch(stream)
        stream.synchronize()
    for problem in PROBLEMS:
        assert (outs[problem] == wanted[problem]).all(), str(problem)


def test_a_kernel_compiled_for_another_cache_says_as_much_of_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUDA keeps what NVRTC made, without its log: a kernel found there would be of no register."""
    spec = KernelSpec.of(Problem(96, 96, 96))
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / name))
        found.append(compiler.compile_kernel(spec, SMALL).registers)
    assert found[0] == found[1] > 0


ODD = Problem(96, 96, 95)
"""Its left operand is copied for TMA."""


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands are copied whatever it costs, and the kernel for it is not loaded."""
    monkeypatch.setattr(product, "pays", lambda *told: True)
    monkeypatch.setattr(pack_kernel, "_loaded", {})


@pytest.mark.usefixtures("copied")
def test_warmup_makes_first_calls_with_copies_capturable() -> None:
    cupy = driver.cupy()
    a, b = pair(ODD)
    want, out = expected(a, b), cupy.empty((ODD.m, ODD.n), cupy.float16)
    bundle = bundle_of({ODD: SMALL})
    report = cupygemm.warmup(bundle)
    assert (report.ready, report.uncopied, report.compiled) == ((ODD,), None, 2)
    cupy.cuda.Device().synchronize()
    with cupygemm.use(bundle), cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        cupygemm.matmul(a, b, out=out)
        graph = stream.end_capture()
        for _ in range(2):
            out.fill(0)
            graph.launch(stream)
            stream.synchronize()
            assert (out == want).all()


@pytest.mark.usefixtures("copied")
def test_cublas_runs_until_operands_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    a, b = pair(ODD)
    want = expected(a, b)
    driver.cupy().matmul(a, b)
    compiler.nvrtc_version()
    with cupygemm.use(bundle_of({ODD: SMALL})):
        began = time.perf_counter()
        assert (cupygemm.matmul(a, b) == want).all()
        took = time.perf_counter() - began
        assert cupygemm.explain(a, b).kernel == "cublas"
        finish()
        for _ in range(2):
            assert (cupygemm.matmul(a, b) == want).all()
        assert cupygemm.explain(a, b).kernel == "own"
    assert took < 0.5, f"the first call waited for {took:.2f} s"


def test_stacks_of_bfloat16_wait_for_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CuPy would refuse to multiply them meanwhile; those times one matrix it gets as two matrices."""
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    dtypes = dict.fromkeys(("a_dtype", "b_dtype", "out_dtype"), "bfloat16")
    flat = replace(Problem(192, 96, 96), **dtypes)
    stack = replace(flat, m=64, batch=3)
    a, b = pair(flat)
    rows = a.reshape(3, 64, 96)
    with cupygemm.use(bundle_of({flat: SMALL, stack: SMALL})):
        out: Any = driver.cupy().empty((3, 64, 96), a.dtype)
        assert cupygemm.matmul(rows, b, out=out) is out
        assert (out.reshape(192, 96) == expected(a, b)).all()
        both = driver.cupy().stack([b, b, b])
        assert cupygemm.explain(rows, both).kernel == "own"
        assert (cupygemm.matmul(rows, both).reshape(192, 96) == expected(a, b)).all()


ENDING = """
import cupy, cupygemm
a, b = cupy.ones((2048, 4096), cupy.float16), cupy.ones((4096, 2048), cupy.float16)
cupy.matmul(a, b)  # loads cuBLAS, so that little is left to do once the kernel is begun
cupygemm.matmul(a, b)
print(cupygemm.explain(a, b).kernel)
"""


def test_a_process_ends_in_the_middle_of_a_compile(tmp_path: Path) -> None:
    environment = {"CUPYGEMM_COMPILE": "background", "CUPYGEMM_CACHE_DIR": str(tmp_path / "other")}
    done = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cublas\n", "")
