"""`warmup` and `cupygemm warmup`: what is compiled and loaded ahead, and what is said of the rest."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import cupygemm
from cupygemm import cli
from cupygemm.device import H200
from cupygemm.errors import BundleError, CaptureError, CompileError, LaunchError, ProblemError
from cupygemm.kernels import compiler, driver, pack_kernel
from cupygemm.problem import Problem
from cupygemm.runtime import api, product
from cupygemm.runtime.warming import warm_up
from tests.fake_gpu import FakeDevice, FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right, stored
from tests.test_in_force import slower

OTHER = replace(PROBLEM, m=8, layout="nt")
H100 = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpu:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return fresh_gpu(monkeypatch)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", tuple)

    def missing(index: int) -> Any:
        raise LaunchError(f"CUDA device {index}: no NVIDIA GPU or driver is here")

    monkeypatch.setattr(driver, "device_spec", missing)
    monkeypatch.setattr(driver, "cupy", lambda: pytest.fail("there is no CuPy here"))


@pytest.fixture(autouse=True)
def one_device(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: tuple(gpu.specs))


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    bundle_of(PROBLEM, OTHER).save(tmp_path / "tuned.yaml")
    return lambda *args: CliRunner().invoke(cli.main, ["warmup", str(tmp_path / "tuned.yaml"), *args])


def capture(gpu: FakeGpu, a: Any, b: Any) -> int:
    out = gpu.empty((a.shape[0], b.shape[1]), np.float16)
    gpu.stream.begin_capture()
    try:
        cupygemm.matmul(a, b, out)
    finally:
        graph = gpu.stream.end_capture()
    return len(graph.launches)


def test_first_calls_find_their_kernels(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM, OTHER, replace(PROBLEM, m=16)))
    report = cupygemm.warmup()
    assert (report.device, report.loaded) == (H200, True)
    assert (report.compiled, report.cached, report.failed, report.cublas) == (3, 0, {}, {})  # one copies operands
    assert set(report.ready) == {PROBLEM, OTHER, replace(PROBLEM, m=16)}
    assert str(report).startswith(
        "NVIDIA H200 (132 SMs): 3 kernels compiled, 0 in the cache before, loaded; 3 problems ready, 0 left to cuBLAS ("
    )
    assert (gpu.launches, gpu.fallbacks) == ([], [])
    compiled = len(gpu.compiled)
    for problem in (PROBLEM, OTHER):
        assert capture(gpu, *operands(gpu, problem)) == 1
    a, b = operands(gpu)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(gpu.compiled) == compiled


def test_a_second_warmup_finds_all_in_the_cache(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM, OTHER))
    cupygemm.warmup()
    report = cupygemm.warmup()
    assert (report.compiled, report.cached, len(report.ready)) == (0, 3, 2)


def test_a_bundle_need_not_be_in_force(gpu: FakeGpu, tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    bundle_of(PROBLEM).save(path)
    a, b = operands(gpu)
    for given in (path, str(path), bundle_of(PROBLEM)):
        assert cupygemm.warmup(given).ready == (PROBLEM,)
    assert cupygemm.explain(a, b).kernel == "cublas"
    with cupygemm.use(path):
        assert capture(gpu, a, b) == 1


@pytest.mark.usefixtures("gpu")
def test_without_bundles_there_is_nothing_to_do() -> None:
    report = cupygemm.warmup()
    assert (report.compiled, report.ready, report.device) == (0, (), H200)


def test_problems_may_be_named(gpu: FakeGpu) -> None:
    """Also those for which another's config stands in, and those for which there is none."""
    cupygemm.use(bundle_of(PROBLEM, OTHER))
    fused, unknown, odd = replace(PROBLEM, epilogue="bias_n"), Problem(64, 64, 64), replace(PROBLEM, k=15)
    cupygemm.use(bundle_of(odd))  # asked for with copies of operands
    report = cupygemm.warmup(problems=[fused, unknown, odd, fused])
    assert report.ready == (fused, odd)
    assert report.cublas[unknown] == "no bundle in force has a config for it"
    assert {kernel.spec.epilogue for kernel in gpu.compiled} == {"bias_n", "none"}


@pytest.mark.usefixtures("gpu")
def test_what_lost_is_left_to_cublas() -> None:
    report = cupygemm.warmup(slower(bundle_of(PROBLEM)))
    assert (report.compiled, report.ready) == (0, ())
    assert "has measured cuBLAS to be faster" in report.cublas[PROBLEM]


@pytest.mark.parametrize("kind", ["refused", "unloadable"])
def test_failures_have_their_reasons_and_stop_nothing(gpu: FakeGpu, kind: str) -> None:
    if kind == "refused":
        gpu.refused[LARGE] = CompileError("NVRTC refused the kernel: no", "log")
    else:
        gpu.unloadable.add(LARGE)
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    cupygemm.use(bundle_of(OTHER))
    report = cupygemm.warmup()
    assert report.ready == (OTHER,)
    assert report.failed.keys() == {PROBLEM}
    assert ("NVRTC refused" if kind == "refused" else "the driver refused") in report.failed[PROBLEM]
    assert ", 1 failed (" in str(report)
    assert capture(gpu, *operands(gpu, OTHER)) == 1
    a, b = operands(gpu)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert cupygemm.explain(a, b).config == SMALL


def test_kernels_are_compiled_side_by_side(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=20)

    def compile_together(spec: Any, config: Any) -> Any:
        if not gpu.is_cached(spec, config):
            together.wait()
        return gpu.compile(spec, config)

    monkeypatch.setattr(compiler, "compile_kernel", compile_together)
    assert len(cupygemm.warmup(bundle_of(PROBLEM, OTHER), threads=2).ready) == 2


def test_operands_can_be_copied_at_once(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a problem whose rows TMA never reads, and parts of larger arrays."""
    monkeypatch.setattr(product, "pays", lambda *told: True)
    odd = replace(PROBLEM, k=15)
    cupygemm.use(bundle_of(PROBLEM, odd))
    assert cupygemm.warmup(threads=1).uncopied is None
    part = stored(gpu, (24, 17))[:, 1:]
    for a, b in (operands(gpu, odd), (part, stored(gpu, (16, 40)))):
        gpu.packed.clear()
        assert capture(gpu, a, b) == 4  # memory, copies, product, memory
        assert len(gpu.packed) == 1
    assert gpu.fallbacks == []


@pytest.mark.parametrize("stage", ["compiled", "loaded"])
def test_what_stands_in_the_way_of_copies_is_told(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, run: Run, stage: str
) -> None:
    def refuse(*told: Any) -> Any:
        raise CompileError("NVRTC refused the page", "log") if stage == "compiled" else LaunchError("no such image")

    words = "NVRTC refused the page" if stage == "compiled" else "no such image"
    if stage == "compiled":
        monkeypatch.setattr(compiler, "compile_page", refuse)
    else:
        monkeypatch.setattr(pack_kernel, "PackKernel", refuse)
    odd = replace(PROBLEM, k=15)
    report = cupygemm.warmup(bundle_of(PROBLEM, odd))
    assert (report.ready, report.failed, report.uncopied) == ((PROBLEM,), {odd: words}, words)
    assert f"1 failed, operands cannot be copied for TMA: {words} (" in str(report)
    assert report.compiled == (1 if stage == "compiled" else 2)
    result = run()  # none of whose problems needs copies
    assert (result.exit_code, result.stderr) == (1, f"Error: operands cannot be copied for TMA: {words}\n")
    assert "2 of 2 problems ready" in result.stdout
    document = json.loads(run("--json").stdout)
    assert (document["uncopied"], document["failed"]) == (words, [])


@pytest.mark.usefixtures("no_gpu")
def test_what_copies_operands_is_compiled_without_a_gpu(gpu: FakeGpu, run: Run) -> None:
    assert run().exit_code == 0
    assert gpu.pages == [(pack_kernel.PAGE, pack_kernel.ENTRY)]


@pytest.mark.parametrize("mode", ["now", "background"])
def test_it_waits_in_every_mode(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", mode)
    cupygemm.use(bundle_of(PROBLEM))
    assert cupygemm.warmup().ready == (PROBLEM,)
    cupygemm.matmul(*operands(gpu))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


def test_an_interruption_drops_what_is_not_begun(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    def compile_slowly(spec: Any, config: Any) -> Any:
        # From the second one on there is time for the interruption, however busy the machine is.
        assert not gpu.compiled or told.wait(20)
        time.sleep(0.02)
        return gpu.compile(spec, config)

    monkeypatch.setattr(compiler, "compile_kernel", compile_slowly)
    problems = [
        Problem(24, 40, 16, layout=layout, epilogue=epilogue)
        for layout in ("nn", "nt", "tn", "tt")
        for epilogue in ("none", "bias_n", "bias_m", "relu", "scaled")
    ]
    cupygemm.use(bundle_of(*problems))

    def interrupt(done: int, total: int) -> None:
        assert total == len(problems) + 1
        told.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_up(api.dispatcher(), threads=1, progress=interrupt)
    assert 1 <= len(gpu.compiled) < len(problems)


def test_another_device_is_named_by_its_index(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    assert cupygemm.warmup(device=1).loaded
    with FakeDevice(gpu, 1):
        a, b = operands(gpu)
        assert capture(gpu, a, b) == 1
    assert list(pack_kernel._loaded) == [1]
    with pytest.raises(CaptureError):
        capture(gpu, *operands(gpu))


def test_for_another_kind_of_gpu_kernels_are_compiled_and_not_loaded(gpu: FakeGpu) -> None:
    gpu.specs[0] = replace(H200, name="NVIDIA B200", compute_capability=(10, 0))
    report = cupygemm.warmup(bundle_of(PROBLEM, device=H100))
    assert (report.device.name, report.loaded, report.compiled, report.ready) == (H100.name, False, 2, (PROBLEM,))
    assert "not loaded, since that GPU is not at hand" in str(report)


@pytest.mark.usefixtures("gpu")
def test_what_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads is 0: give 1 or more"):
        cupygemm.warmup(threads=0)
    with pytest.raises(ProblemError, match=r"'64x64x64' is no Problem: write cupygemm\.Problem"):
        cupygemm.warmup(problems=["64x64x64"])  # type: ignore[list-item]
    with pytest.raises(ProblemError, match=r"problems is one Problem, .*: give a list"):
        cupygemm.warmup(problems=PROBLEM)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=r"warmup\(7\): give a Bundle or the path of one"):
        cupygemm.warmup(7)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=r"none\.yaml: No such file"):
        cupygemm.warmup(tmp_path / "none.yaml")


def test_in_a_capture_it_is_refused(gpu: FakeGpu) -> None:
    gpu.stream.begin_capture()
    with pytest.raises(CaptureError, match="call it before the capture"):
        cupygemm.warmup(bundle_of(PROBLEM))
    gpu.stream.end_capture()
    assert gpu.compiled == []


def test_a_cache_that_cannot_be_written_is_found_out_before(gpu: FakeGpu, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(OSError, match="CUPYGEMM_CACHE_DIR names another folder") as caught:
        cupygemm.warmup(bundle_of(PROBLEM))
    assert caught.value.filename == str(tmp_path / "cache" / "kernels")
    assert gpu.compiled == []


# The command


def test_the_command_says_how_it_goes_and_what_came_of_it(run: Run, tmp_path: Path) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    progress, summary = result.stdout.splitlines()
    assert progress == "3/3 kernels"
    folder = tmp_path / "cache" / "kernels"
    assert summary.startswith(f"{folder}: 3 kernels compiled, 0 there before; 2 of 2 problems ready (")


@pytest.mark.usefixtures("no_gpu")
def test_the_command_needs_no_gpu(run: Run) -> None:
    result = run("--threads", "1")
    assert result.exit_code == 0, result.output
    assert "no Hopper GPU found: compiled for NVIDIA H200 (132 SMs), and not loaded" in result.stdout


def test_the_bundles_in_force_are_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(tmp_path / "tuned.yaml"))
    result = CliRunner().invoke(cli.main, ["warmup"])
    assert "2 of 2 problems ready" in result.stdout


def test_a_program_gets_one_object(run: Run, gpu: FakeGpu) -> None:
    document = json.loads(run("--json").stdout)
    assert (document["compiled"], document["cached"], document["loaded"]) == (3, 0, True)
    assert document["ready"] == [PROBLEM.to_dict(), OTHER.to_dict()]
    gpu.unloadable.add(SMALL)
    failed = run("--json")
    assert failed.exit_code == 1
    (first, _) = json.loads(failed.stdout)["failed"]
    assert first["problem"] == PROBLEM.to_dict()
    assert "the driver refused" in first["reason"]


def test_what_failed_is_said_and_is_exit_status_1(run: Run, gpu: FakeGpu) -> None:
    gpu.refused[SMALL] = CompileError("NVRTC refused\nthe kernel", "log")
    result = run()
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "24x40x16 float16 nn: NVRTC refused the kernel",
        "8x40x16 float16 nt: NVRTC refused the kernel",
        "Error: no kernel for 2 of 2 problems",
    ]
