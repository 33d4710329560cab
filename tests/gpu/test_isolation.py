"""Candidates that hang, fault or crash on a real GPU: each becomes a status, and the search goes on."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import ConfigError, LaunchError
from cupygemm.kernels import compiler, kernel_source
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.kernels.kernel_plan import LoadedKernel
from cupygemm.measurement import Status
from cupygemm.measuring.timing import HEAT, THOROUGH
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_jobs import GPU_JOBS
from cupygemm.search.runners.gpu_runner import GpuRunner
from tests.gpu.protocol import LARGE

pytestmark = pytest.mark.gpu

# `block_n` / 8 says what becomes of the config; any other value is healthy.
HANGS, FAULTS, IS_WRONG, CRASHES_COMPILER = 2, 3, 5, 7
CHANGES = {
    HANGS: ("gemm.cuh", "expect_tx(full, args.loaded_bytes);", "expect_tx(full, args.loaded_bytes + 16);"),
    FAULTS: ("epilogue.cuh", "out + index * dtype_bytes(OUT)", "out + (index + (1ll << 42)) * dtype_bytes(OUT)"),
    IS_WRONG: ("gemm.cuh", "TileB::offset(0, k)", "TileB::offset(0, 0)"),
}
HEALTHY = LARGE.swapped(store_stages=0, group=1)
PROBLEM = Problem(512, 512, 512)


def compile_some_wrong(spec: KernelSpec, config: KernelConfig) -> CompiledKernel:
    """What the compiling processes of the runner under test do."""
    task = config.block_n // 8
    if task == CRASHES_COMPILER:
        os.kill(os.getpid(), signal.SIGSEGV)
    healthy = compiler.compile_kernel(spec, config)
    if task not in CHANGES:
        return healthy
    name, old, new = CHANGES[task]
    headers = compiler.sources(spec, config)
    if headers[name].count(old) != 1:
        raise AssertionError(f"the source has moved on: {old!r} is not in {name}")
    changed = {**headers, name: headers[name].replace(old, new)}
    program = compiler.compile_program(kernel_source.name_expression(spec, config), changed)
    cubin = healthy.cubin.with_suffix(".mutant")
    cubin.write_bytes(program.cubin)
    return dataclasses.replace(healthy, cubin=cubin, lowered_name=program.lowered_name)


def test_the_search_survives_its_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    jobs = dataclasses.replace(GPU_JOBS, compile=compile_some_wrong)
    tasks = (1, HANGS, 4, FAULTS, 6, CRASHES_COMPILER, 8, IS_WRONG, 9)
    with GpuRunner(compile_workers=4, deadline_s=5.0, jobs=jobs) as runner:
        found = list(runner.run(PROBLEM, [HEALTHY.swapped(block_n=8 * task) for task in tasks]))
        again = list(runner.run(PROBLEM, [HEALTHY]))
    assert [measurement.status for measurement in found] == [
        Status.OK,
        Status.TIMED_OUT,
        Status.OK,
        Status.LAUNCH_FAILED,
        Status.OK,
        Status.CRASHED,
        Status.OK,
        Status.WRONG_RESULT,
        Status.OK,
    ]
    assert all(measurement.detail for measurement in found if not measurement.ok)
    assert again[0].ok


def test_finalists_race_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    # A problem that fills the GPU with these tiles: where all candidates are hopeless there is no race.
    problem = Problem(2048, 2048, 1024)
    configs = [HEALTHY.swapped(group=group) for group in (1, 2, 4, 8, 16)]
    with GpuRunner() as runner:
        found = list(runner.run(problem, configs))
        raced = runner.confirm(problem, configs)
    assert all(measurement.ok for measurement in (*found, *raced))
    heat, last = (effort.rounds - effort.trial_rounds for effort in (HEAT, THOROUGH))
    assert sorted(len(measurement.samples_us) for measurement in raced) == [heat] * 3 + [last] * 2


def test_one_gpu_has_one_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    with GpuRunner(), pytest.raises(LaunchError, match="another process is measuring"):
        GpuRunner()


def test_a_sweep_loads_each_kernel_once_for_all_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    problems = [Problem(512, 512, 512), Problem(256, 1024, 128)]
    configs = [HEALTHY, HEALTHY.swapped(group=4), HEALTHY.swapped(stages=9)]
    with GpuRunner() as runner:
        assert runner.compile_ahead(problems, configs) == 2
        started = time.monotonic()
        records = list(runner.sweep(problems, configs))
        assert time.monotonic() - started < 60
    assert [(record.problem, record.config) for record in records] == [(p, c) for c in configs for p in problems]
    assert [record.measurement.status for record in records] == [Status.OK] * 4 + [Status.ILLEGAL] * 2
    assert all(record.measurement.speedup for record in records[:4])


def test_a_kernel_that_is_not_what_was_asked_for_is_not_loaded() -> None:
    compiled = compiler.compile_kernel(KernelSpec.of(PROBLEM), HEALTHY)
    for damaged in (
        dataclasses.replace(compiled, advisories=("C7508",)),
        dataclasses.replace(compiled, registers=compiled.registers - 8),
    ):
        with pytest.raises(ConfigError, match="wait for ever"):
            LoadedKernel(damaged)
