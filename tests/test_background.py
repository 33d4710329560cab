"""Kernels that are compiled in the background: cuBLAS runs until they are there, and what measures waits."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import CaptureError, CompileError, SettingError
from cupygemm.kernels import compiler
from cupygemm.kernels.compiling import cubin_of
from cupygemm.problem import Problem
from cupygemm.runtime import api
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right, stored
from tests.gate import Gate, compiling_threads, in_thread

OTHER = replace(PROBLEM, m=8, layout="nt")
"""Of another spec than PROBLEM, so of another kernel."""
ENOUGH = 400
"""Calls, of several threads together."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")


@pytest.mark.usefixtures("behind")
def test_cublas_runs_until_the_kernel_is_there(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    for _ in range(3):
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.problem, choice.config) == ("cublas", PROBLEM, None)
    assert "being compiled in the background (CUPYGEMM_COMPILE)" in choice.reason
    assert gate.began.wait(20)
    assert (len(gpu.fallbacks), gpu.launches, len(gate.tried)) == (3, [], 1)
    gate.pass_through()
    for _ in range(3):
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert cupygemm.explain(a, b).config == SMALL
    assert (len(gpu.fallbacks), len(gpu.launches), len(gate.tried)) == (3, 3, 1)
    assert compiling_threads() == []


@pytest.mark.usefixtures("behind")
def test_calls_with_an_epilogue_wait_for_nothing_either(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, epilogue="bias_n+relu")))
    a, b = operands(gpu)
    bias = stored(gpu, (1, 40))[0]
    wanted = np.maximum(right(a, b) + plain(bias), 0)
    for launches in (0, 1, 2):
        result = cupygemm.matmul(a, b, bias=bias, activation="relu")
        np.testing.assert_array_equal(plain(result), wanted)
        assert len(gpu.launches) == launches
        gate.pass_through()


@pytest.mark.usefixtures("behind")
def test_a_plan_made_meanwhile_waits(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    cupygemm.matmul(a, b)
    plans: list[Any] = []
    waiting = in_thread(lambda: plans.append(cupygemm.plan(a, b)))
    time.sleep(0.02)
    assert plans == []
    gate.pass_through()
    waiting.join(20)
    assert plans[0].choice.kernel == "own"
    assert len(gate.tried) == 1


@pytest.mark.usefixtures("behind")
def test_a_kernel_in_the_disk_cache_is_loaded_at_once(
    gpu: FakeGpu, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.is_open.set()
    cupygemm.use(bundle_of(PROBLEM))
    api.dispatcher().kernels.compilations.compile(cubin_of(*_pair()))
    monkeypatch.setattr(threading, "Thread", None)
    cupygemm.matmul(*operands(gpu))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


def _pair() -> tuple[Any, Any]:
    return cupygemm.KernelSpec.of(PROBLEM), SMALL


@pytest.mark.usefixtures("behind")
def test_configs_that_share_a_cubin_share_its_compiling(gpu: FakeGpu, gate: Gate) -> None:
    grouped = replace(PROBLEM, m=16)
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(grouped, config=SMALL.swapped(group=2)))
    first, second = operands(gpu), operands(gpu, grouped)
    for _ in range(2):
        cupygemm.matmul(*first)
        cupygemm.matmul(*second)
    gate.pass_through()
    assert len(gate.tried) == 1
    cupygemm.matmul(*first)
    cupygemm.matmul(*second)
    assert [launched.threads for launched in gpu.launches] == [SMALL.threads] * 2


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("error", [CompileError("NVRTC refused the kernel: no", "log"), MemoryError("none left")])
def test_a_kernel_that_cannot_be_compiled_is_said_and_tried_once(
    gpu: FakeGpu, gate: Gate, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    gpu.refused[LARGE] = error
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    a, b = operands(gpu)
    cupygemm.matmul(a, b)
    gate.pass_through()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cupygemm.kernels.compiling", logging.WARNING)
    assert str(PROBLEM) in record.getMessage()
    assert (record.exc_info is None) == isinstance(error, CompileError)
    for _ in range(3):
        choice = cupygemm.explain(a, b)
        assert choice.kernel == "cublas"
        assert str(error) in choice.reason
        assert "the bundle given is skipped" in choice.reason
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(gate.tried) == 1
    assert len(caplog.records) == 2  # the entry is skipped


@pytest.mark.usefixtures("behind")
def test_after_a_broken_entry_the_next_one_is_compiled(gpu: FakeGpu, gate: Gate) -> None:
    gpu.refused[LARGE] = CompileError("NVRTC refused the kernel: no", "log")
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    a, b = operands(gpu)
    for _ in range(2):
        cupygemm.matmul(a, b)
        gate.pass_through()
    assert (len(gpu.fallbacks), [config for _, config in gate.tried]) == (2, [LARGE, SMALL])
    assert cupygemm.explain(a, b).config == SMALL


@pytest.mark.usefixtures("behind")
def test_an_illegal_entry_is_not_compiled(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM, config=SMALL.swapped(stages=99)))
    assert "99 stages" in cupygemm.explain(*operands(gpu)).reason
    assert gate.tried == []


@pytest.mark.usefixtures("behind")
def test_a_capture_is_refused_and_says_what_the_kernel_is_at(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    out = gpu.empty((24, 40), np.float16)

    def refuse(words: str) -> None:
        for call in (cupygemm.matmul, cupygemm.explain, cupygemm.plan):
            gpu.stream.begin_capture()
            with pytest.raises(CaptureError, match=words):
                call(a, b, out)
            assert gpu.stream.end_capture().launches == []

    refuse("24x40x16 float16 nn: its kernel is not loaded, .* before the capture")
    assert gate.tried == []
    cupygemm.matmul(a, b)
    refuse("is still being compiled in the background, .* cupygemm.plan or cupygemm.warmup")
    gate.pass_through()
    refuse("not loaded")
    cupygemm.matmul(a, b)
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b, out)
    assert len(gpu.stream.end_capture().launches) == 1


@pytest.mark.usefixtures("behind")
def test_a_bundle_that_goes_while_its_kernel_is_compiled_is_forgotten(gpu: FakeGpu, gate: Gate) -> None:
    a, b = operands(gpu)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(a, b)
    assert cupygemm.explain(a, b).reason == "no bundle in force has a config for it"
    gate.pass_through()
    cupygemm.matmul(a, b)
    assert gpu.launches == []


@pytest.mark.usefixtures("behind")
def test_what_cupy_cannot_multiply_waits_for_its_kernel(gpu: FakeGpu, gate: Gate) -> None:
    """Stacks of bfloat16; those times one matrix go to CuPy as two matrices, also into `out`."""
    problem = Problem(8, 40, 16, 3, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16")
    flat = replace(problem, m=24, batch=1)
    cupygemm.use(bundle_of(problem, flat))
    stack = stored(gpu, (24, 16), dtype="bfloat16").reshape(3, 8, 16)
    right_one = stored(gpu, (16, 40), dtype="bfloat16")
    rights = stored(gpu, (48, 40), dtype="bfloat16").reshape(3, 16, 40)
    out = gpu.empty((3, 8, 40), out_dtype := right_one.dtype)
    seen: list[int] = []
    matmul = gpu.matmul

    def refusing(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        seen.append(max(a.ndim, b.ndim))
        return matmul(a, b, out, **options)

    cupygemm.kernels.driver.cupy().matmul = refusing
    for options in ({}, {"out": out}, {"dtype": out_dtype}, {"out": out, "dtype": out_dtype}):
        result = cupygemm.matmul(stack, right_one, **options)
        np.testing.assert_array_equal(plain(result), right(stack, right_one))
    cupygemm.matmul(stack[0], right_one[None])
    assert set(seen) == {2}
    waiting = in_thread(lambda: cupygemm.matmul(stack, rights))
    time.sleep(0.02)
    assert waiting.is_alive()
    gate.pass_through()
    waiting.join(20)
    assert len(gpu.launches) == 1


@pytest.mark.usefixtures("behind")
def test_what_measures_waits(gpu: FakeGpu) -> None:
    choice, plan = Dispatcher({"mine": bundle_of(PROBLEM)}).choose_for(PROBLEM, 0)
    assert (choice.kernel, plan is None) == ("own", False)


@pytest.mark.usefixtures("behind")
def test_where_no_thread_can_be_had_the_call_compiles(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.matmul(*operands(gpu))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.usefixtures("behind")
def test_many_threads_with_many_kernels(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is right, whatever ran; in the end all kernels are there, compiled once."""
    layouts = [Problem(24, 8 * n, 16, layout=layout) for n in range(1, 4) for layout in ("nn", "nt")]
    tried: list[Any] = []

    def compile_slowly(spec: Any, config: Any) -> Any:
        if not gpu.is_cached(spec, config):
            tried.append((spec, config.compiled()))
            time.sleep(0.05)
        return gpu.compile(spec, config)

    monkeypatch.setattr(compiler, "compile_kernel", compile_slowly)
    wrong: list[Any] = []
    called: list[Problem] = []
    ends = time.monotonic() + 20

    def multiply(seed: int) -> None:
        rng = np.random.default_rng(seed)
        # Until both ways were taken, and often.
        while not (gpu.launches and gpu.fallbacks and len(called) >= ENOUGH) and time.monotonic() < ends:
            problem = layouts[rng.integers(len(layouts))]
            called.append(problem)
            a, b = operands(gpu, problem)
            if not (plain(cupygemm.matmul(a, b)) == right(a, b)).all():
                wrong.append(problem)

    with cupygemm.use(bundle_of(*layouts)):
        for thread in [in_thread(lambda seed=seed: multiply(seed)) for seed in range(4)]:
            thread.join(20)
        for thread in compiling_threads():
            thread.join(20)
        assert {cupygemm.explain(*operands(gpu, problem)).kernel for problem in layouts} == {"own"}
    assert wrong == []
    assert gpu.fallbacks
    assert gpu.launches
    assert len(tried) == len({(spec, *config.items()) for spec, config in tried}) == 2


@pytest.mark.parametrize("value", ["later", "Background", "1"])
def test_another_value_is_an_error_that_names_the_legal_ones(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    monkeypatch.setenv("CUPYGEMM_COMPILE", value)
    for call in (cupygemm.matmul, cupygemm.explain):
        with pytest.raises(SettingError, match=f"CUPYGEMM_COMPILE is '{value}': .* 'now', .* 'background'"):
            call(a, b)
    for value in ("", "now"):
        monkeypatch.setenv("CUPYGEMM_COMPILE", value)
        cupygemm.matmul(a, b)
    assert (len(gpu.launches), gpu.fallbacks) == (2, [])
