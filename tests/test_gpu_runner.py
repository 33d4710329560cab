"""`GpuRunner` with fake jobs in real child processes: whatever a candidate does, the search goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import LaunchError
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.measurement import Status
from cupygemm.measuring import provenance
from cupygemm.problem import Problem
from cupygemm.search.runners.gpu_runner import GpuRunner
from cupygemm.search.runners.runner import Confirming
from tests import fake_jobs

PROBLEM = Problem(2048, 2048, 4096)
SMALL, LARGE = Problem(64, 2048, 4096), Problem(fake_jobs.LARGE, 2048, 4096)
CONFIG = KernelConfig(128, 8 * fake_jobs.GOOD, 64, 3, 2, False, 1, 1, False, 1, 40, 1, 2)
DEADLINE_S = 4.0
"""Far more than any job takes that does not hang, on a busy machine too."""


def doing(*tasks: int) -> list[KernelConfig]:
    return [CONFIG.swapped(block_n=8 * task) for task in tasks]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jobs note what they do; child processes inherit the environment."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("FAKE_JOBS_LOG", str(path))
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return path


@pytest.fixture
def runner(log: Path) -> Iterator[GpuRunner]:
    with open_runner() as runner:
        yield runner


def open_runner() -> GpuRunner:
    return GpuRunner(compile_workers=1, deadline_s=DEADLINE_S, jobs=fake_jobs.FAKE_JOBS, device_spec=H200)


def lines(log: Path, word: str) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines() if line.startswith(word)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_config_has_a_measurement_in_its_place(runner: GpuRunner, log: Path) -> None:
    illegal = CONFIG.swapped(block_m=100)
    configs = [*doing(fake_jobs.GOOD, fake_jobs.SERIALISED, fake_jobs.REFUSED), illegal, *doing(fake_jobs.WRONG)]
    found = list(runner.run(PROBLEM, configs))
    assert [each.status for each in found] == [
        Status.OK, Status.SERIALISED, Status.COMPILE_FAILED, Status.ILLEGAL, Status.WRONG_RESULT
    ]  # fmt: skip
    good, serialised, refused, never_compiled, wrong = found
    assert (good.us, good.registers, good.spill_bytes) == (2048.0, 168, 8)
    assert "C7510" in serialised.detail
    assert "NVRTC refused" in refused.detail
    assert "block_m 100" in never_compiled.detail
    assert (wrong.error, wrong.registers) == (0.5, 168)
    assert len(lines(log, "measure")) == 2
    assert lines(log, "prepare") == [["prepare", "2048"]]


def test_hangs_crashes_and_faults_are_statuses_and_the_next_config_runs(runner: GpuRunner, log: Path) -> None:
    good = fake_jobs.GOOD
    bad = {
        fake_jobs.HANGS: (Status.TIMED_OUT, "4 s"),
        fake_jobs.EXITS: (Status.CRASHED, "exit status 7"),
        fake_jobs.SEGFAULTS: (Status.CRASHED, "SIGSEGV"),
        fake_jobs.FAULTS: (Status.LAUNCH_FAILED, "illegal memory access"),
        fake_jobs.RAISES: (Status.LAUNCH_FAILED, "ValueError: a defect"),
    }
    found = list(runner.run(PROBLEM, doing(good, *(task for each in bad for task in (each, good)))))
    assert [each.status for each in found[::2]] == [Status.OK] * (len(bad) + 1)
    assert [each.status for each in found[1::2]] == [status for status, _ in bad.values()]
    for each, (_, words) in zip(found[1::2], bad.values(), strict=True):
        assert words in each.detail
        assert (each.registers, each.samples_us) == (168, ())
    # Every process that one of them spoilt is gone, and each successor was prepared anew.
    pids = {int(line[3]) for line in lines(log, "measure")}
    assert len(pids) == len(bad) + 1
    assert sum(map(is_alive, pids)) == 1
    assert len(lines(log, "prepare")) == len(pids)
    runner.close()
    assert not any(map(is_alive, pids))


def test_a_compiler_that_dies_is_a_status(runner: GpuRunner) -> None:
    dead, good = runner.run(PROBLEM, doing(fake_jobs.COMPILER_DIES, fake_jobs.GOOD))
    assert dead.status is Status.CRASHED
    assert "SIGKILL" in dead.detail
    assert good.ok


def test_a_gpu_that_cannot_be_used_ends_the_search(runner: GpuRunner) -> None:
    with pytest.raises(LaunchError, match="no GPU at all"):
        list(runner.run(PROBLEM, doing(fake_jobs.NO_GPU)))


def test_a_search_may_stop_in_the_middle(runner: GpuRunner, log: Path) -> None:
    measurements = runner.run(PROBLEM, doing(fake_jobs.GOOD, fake_jobs.HANGS))
    assert next(measurements).ok
    measurements.close()
    assert len(lines(log, "measure")) == 1
    assert [each.ok for each in runner.run(SMALL, doing(fake_jobs.GOOD))] == [True]


def test_a_sweep_measures_every_problem_with_each_kernel_in_one_job(
    runner: GpuRunner, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "collect", lambda device: {"device": "fake"})
    configs = doing(fake_jobs.GOOD, fake_jobs.HANGS_ON_LARGE, fake_jobs.FAULTS, fake_jobs.REFUSED)
    records = list(runner.sweep([SMALL, LARGE, PROBLEM], configs))
    assert [(each.config, each.problem) for each in records] == [
        (config, problem) for config in configs for problem in (SMALL, LARGE, PROBLEM)
    ]
    statuses = [[each.measurement.status for each in records[start : start + 3]] for start in (0, 3, 6, 9)]
    assert statuses == [
        [Status.OK] * 3,
        [Status.OK, Status.TIMED_OUT, Status.OK],
        [Status.LAUNCH_FAILED] * 3,
        [Status.COMPILE_FAILED] * 3,
    ]
    assert {each.provenance["device"] for each in records} == {"fake"}
    assert lines(log, "measure")[0][1:3] == [str(fake_jobs.GOOD), "3"]


def test_problems_of_different_specs_are_swept_apart(
    runner: GpuRunner, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "collect", lambda device: {})
    other = Problem(64, 2048, 4096, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16")
    records = list(runner.sweep([SMALL, other], doing(fake_jobs.GOOD)))
    assert [each.problem for each in records] == [SMALL, other]
    assert [line[2] for line in lines(log, "measure")] == ["1", "1"]


def test_finalists_are_confirmed_in_one_run(runner: GpuRunner, log: Path) -> None:
    assert isinstance(runner, Confirming)
    found = runner.confirm(PROBLEM, doing(fake_jobs.GOOD, fake_jobs.REFUSED, fake_jobs.WRONG))
    assert [each.status for each in found] == [Status.OK, Status.COMPILE_FAILED, Status.WRONG_RESULT]
    assert found[0].registers == 168
    assert lines(log, "confirm") == [["confirm", "2"]]


def test_finalists_are_confirmed_on_operands_drawn_anew(runner: GpuRunner, log: Path) -> None:
    assert all(each.ok for each in runner.run(PROBLEM, doing(fake_jobs.GOOD)))
    runner.confirm(PROBLEM, doing(fake_jobs.GOOD, fake_jobs.GOOD))
    done = [line.split()[0] for line in log.read_text().splitlines()]
    assert [each for each in done if each != "compile"] == ["prepare", "measure", "renew", "confirm"]
    assert not runner.confirm(PROBLEM, doing(fake_jobs.REFUSED))[0].ok
    assert len(lines(log, "renew")) == 1


def test_where_memory_runs_out_for_new_operands_a_new_process_draws_them(runner: GpuRunner, log: Path) -> None:
    (measured,) = runner.run(LARGE, doing(fake_jobs.GOOD))
    (confirmed,) = runner.confirm(LARGE, doing(fake_jobs.GOOD))
    assert measured.ok
    assert confirmed.ok
    done = [line.split()[0] for line in log.read_text().splitlines()]
    assert [each for each in done if each != "compile"] == ["prepare", "measure", "renew", "prepare", "confirm"]


@pytest.mark.parametrize("task", [fake_jobs.FAULTS, fake_jobs.EXITS])
def test_a_finalist_that_fails_does_not_take_the_others_along(runner: GpuRunner, log: Path, task: int) -> None:
    found = runner.confirm(PROBLEM, doing(fake_jobs.GOOD, task))
    assert [each.ok for each in found] == [True, False]
    assert lines(log, "confirm") == [["confirm", count] for count in "211"]


def test_baselines(runner: GpuRunner) -> None:
    assert runner.baselines(PROBLEM)["cublaslt_us"] == 95.0
    with pytest.raises(LaunchError, match="exit status 3"):
        runner.baselines(LARGE)
    assert runner.baselines(PROBLEM)["cublas_us"] == 100.0


def test_a_gpu_is_measured_by_one_at_a_time(runner: GpuRunner) -> None:
    with pytest.raises(LaunchError, match="another process is measuring on cuda:0"):
        open_runner()
    runner.close()
    open_runner().close()


def test_configs_that_differ_at_launch_alone_are_compiled_once(runner: GpuRunner, log: Path) -> None:
    configs = [CONFIG, CONFIG.swapped(group=8), CONFIG.swapped(stages=4), CONFIG.swapped(keep_out=-1)]
    kernels = list(runner._compiled(KernelSpec.of(PROBLEM), configs))
    assert [kernel.config for kernel in kernels if isinstance(kernel, CompiledKernel)] == configs
    assert len(lines(log, "compile")) == 2
