"""Entries of bundles that do not work, on a fake GPU: what is passed over, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cupygemm
from cupygemm.device import H200
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right

COMPILE_KERNEL = compiler.compile_kernel


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def refused(gpu: FakeGpu) -> None:
    gpu.refused[LARGE] = CompileError("NVRTC refused the kernel: no", "log")


def too_large(gpu: FakeGpu) -> None:
    gpu.specs[0] = replace(H200, shared_bytes=64 * 1024)


def no_room(gpu: FakeGpu) -> None:
    gpu.active_clusters = 0


def not_loaded(gpu: FakeGpu) -> None:
    gpu.unloadable.add(LARGE)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (refused, "NVRTC refused the kernel: no"),
        (too_large, "bytes of shared memory"),
        (no_room, "not one cluster of 2 CTAs fits"),
        (not_loaded, "the driver refused kernel0.cubin: CUDA_ERROR_INVALID_IMAGE"),
    ],
)
def test_a_broken_entry_falls_through_to_the_next_bundle(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture, break_it: Callable[[FakeGpu], None], words: str
) -> None:
    break_it(gpu)
    a, b = operands(gpu)
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE)):
        choice = cupygemm.explain(a, b)
        assert choice.kernel == "cublas"
        assert words in choice.reason
        assert "the bundle given" in choice.reason
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
        (record,) = caplog.records
        assert words in record.getMessage()
    tiny = SMALL.swapped(stages=2)
    cupygemm.use(bundle_of(PROBLEM, config=tiny))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    assert cupygemm.explain(a, b).config == tiny
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(gpu.launches) == 1


def test_every_entry_passed_over_is_in_the_reason(gpu: FakeGpu) -> None:
    refused(gpu)
    a, b = operands(gpu)
    cupygemm.use(bundle_of(PROBLEM, config=SMALL.swapped(stages=99)))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    reason = cupygemm.explain(a, b).reason
    assert reason.index("NVRTC refused") < reason.index("99 stages")


def compile_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `compile_kernel` with its cache, on a made-up NVRTC."""
    program = compiler.Program(b"\x7fELF", "kernel0", "ptxas info : Used 248 registers")
    monkeypatch.setattr(compiler, "compile_program", lambda *_: program)
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(compiler, "compile_kernel", COMPILE_KERNEL)


def deny(path: Path, data: bytes) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("kind", ["denied", "not a folder"])
def test_a_cache_that_cannot_be_written_is_a_reason(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    compile_without_nvrtc(monkeypatch)
    folder = tmp_path / "cache"
    if kind == "denied":
        monkeypatch.setattr(compiler, "write_atomically", deny)
    else:
        folder.write_text("in the way")
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(folder))
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    choice = cupygemm.explain(a, b)
    assert choice.kernel == "cublas"
    for words in ("the cubin cache cannot be written", str(folder), "CUPYGEMM_CACHE_DIR"):
        assert words in choice.reason
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
