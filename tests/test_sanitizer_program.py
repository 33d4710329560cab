"""What bench/sanitizer.py says of a tool's findings, with programs in the place of compute-sanitizer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from bench import sanitizer
from cupygemm.config import KernelSpec
from cupygemm.kernels import kernel_source
from tests.gpu.protocol import fitting

BANNER = "========= COMPUTE-SANITIZER"
FINDING = "========= Invalid __global__ read of size 16 bytes"
SUMMARY = "========= ERROR SUMMARY: 300 errors"
PROGRESS = [f"product {index}" for index in range(100)]
OUTPUT = [BANNER, *PROGRESS, FINDING, *(f"=========     frame {index}" for index in range(300)), *PROGRESS, SUMMARY]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A compute-sanitizer that is a Python program, and looks at nothing."""
    path = folder / "compute-sanitizer"
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = shlex.join([sys.executable, str(folder / "program.py")])
    path.write_text(f"#!/bin/sh\nexec {command}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_the_first_findings_are_told_with_what_was_done_before_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, f"print({chr(10).join(OUTPUT)!r})\nraise SystemExit(9)")
    found, detail = sanitizer.watched("memcheck", 30)
    assert found == "status 9"
    frames = [f"=========     frame {index}" for index in range(38)]
    assert detail.splitlines() == [BANNER, "...", PROGRESS[-1], FINDING, *frames, "...", *PROGRESS[-11:], SUMMARY]


def test_a_tool_without_findings_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, f"print({chr(10).join([BANNER, *PROGRESS])!r})")
    assert sanitizer.watched("racecheck", 30) == ("clean", "\n".join([BANNER, "...", *PROGRESS[-12:]]))


def test_what_was_found_until_time_was_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import time\nprint({chr(10).join(OUTPUT)!r}, flush=True)\ntime.sleep(60)"
    install(tmp_path, monkeypatch, program)
    found, detail = sanitizer.watched("memcheck", 2)
    assert found == "out of time"
    assert detail.splitlines()[:4] == [BANNER, "...", PROGRESS[-1], FINDING]


@pytest.mark.parametrize("count", [0, 1, 12, 13])
def test_short_output_is_told_whole(count: int) -> None:
    said = "\n".join(f"========= line {index}" for index in range(count))
    assert sanitizer.excerpt(said) == said


def test_every_kernel_that_is_launched_is_watched() -> None:
    watched = sanitizer.own_kernels()
    for name, config, problem in sanitizer.cases():
        kernel = kernel_source.name_expression(KernelSpec.of(problem), fitting(config, problem))
        assert any(each in kernel for each in watched), name
    assert {"gemm_kernel", "gemm_cp_async_kernel", "gemm_cp_async_cluster_kernel", "pack_kernel"} < set(watched)


def test_no_tool_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert sanitizer.watched("memcheck", 1) == ("unavailable", "compute-sanitizer is not there")
