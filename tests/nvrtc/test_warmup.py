"""Compiling ahead with NVRTC itself, in threads and without a GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels import compiler, driver, kernel_cache, pack_kernel
from cupygemm.problem import Problem
from cupygemm.runtime import warming
from tests.fake_products import bundle_of

pytestmark = pytest.mark.nvrtc

TINY = KernelConfig(64, 16, 64, 2, 1, False, 1, 1, False, 1, 40, 0, 1)
PROBLEMS = Problem(64, 64, 64), Problem(64, 64, 64, layout="nt")


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "devices", tuple)


def test_the_cache_is_filled_without_a_gpu() -> None:
    bundle = bundle_of(*PROBLEMS, config=TINY)
    pairs = [(KernelSpec.of(problem), TINY) for problem in PROBLEMS]
    assert not any(compiler.is_cached(*pair) for pair in pairs)
    report = warming.warmup(bundle)
    assert (report.compiled, report.cached, report.failed, report.loaded) == (3, 0, {}, False)
    assert (report.uncopied, pack_kernel.is_compiled()) == (None, True)
    assert all(compiler.is_cached(*pair) for pair in pairs)
    assert len(kernel_cache.kernels()) == 3
    kernel_cache.kernels()[0].with_suffix(".json").unlink()
    report = warming.warmup(bundle, threads=1)
    assert (report.compiled, report.cached) == (1, 2)


def test_python_goes_on_while_nvrtc_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiling in threads, and in the background, relies on."""
    spec, ticks, over = KernelSpec.of(PROBLEMS[0]), [0], threading.Event()
    compile_program = compiler.compile_program
    ticked: list[int] = []

    def count(*arguments: Any) -> Any:
        before = ticks[0]
        program = compile_program(*arguments)
        ticked.append(ticks[0] - before)
        return program

    def tick() -> None:
        while not over.wait(0.001):
            ticks[0] += 1

    monkeypatch.setattr(compiler, "compile_program", count)
    beside = threading.Thread(target=tick)
    beside.start()
    compiler.compile_kernel(spec, TINY)
    over.set()
    beside.join()
    assert ticked[0] > 10
