"""`cupygemm bench` on a fake GPU: rows, the file that grows, failures, interruption, and wrong usage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.bundles import in_force
from cupygemm.commands import bench_run
from cupygemm.epilogue import Epilogue
from cupygemm.errors import LaunchError
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import gpu_lock, measure, provenance, telemetry
from cupygemm.measuring.measuring_stream import stream
from cupygemm.measuring.suites import SUITES
from cupygemm.measuring.timing import QUICK
from cupygemm.problem import Problem
from tests.bench_calls import bench, read
from tests.commands import failed
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import product
from tests.fake_products import SMALL, bundle_of, fresh_gpu

TUNED, OTHER = Problem(24, 40, 16), Problem(8, 16, 24)


class FakeCublas:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gemm = gpu.kernel(product, 10.0)


class FakeLt:
    def __init__(self, gpu: FakeGpu) -> None:
        self.run = gpu.kernel(product, 9.0)

    def algorithms(self, operands: Operands, count: int, epilogue: Epilogue) -> list[Any]:
        return [self]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpu:
    """A GPU on which an own kernel takes 8 µs, cuBLAS 10 and cublasLt 9; its lock is no other test's."""
    monkeypatch.setattr(gpu_lock.settings, "cache_dir", lambda: tmp_path / "locks")
    gpu = fresh_gpu(monkeypatch)
    stream.cache_clear()
    monkeypatch.setattr(measure, "Cublas", lambda: FakeCublas(gpu))
    monkeypatch.setattr(measure, "CublasLt", lambda: FakeLt(gpu))
    # Kernels of a plan do not move the clock by themselves.
    own = gpu.kernel(product, 8.0)
    monkeypatch.setattr(bench_run.Dispatcher, "choose_for", _timed(bench_run.Dispatcher.choose_for, own))
    monkeypatch.setattr(telemetry, "read", lambda device: telemetry.Reading(1755, 640.5))
    facts = {"device": "NVIDIA H200", "date": "2026-11-30T10:00:00+00:00", "sm_clock_mhz": 345, "power_w": 75.0}
    monkeypatch.setattr(
        provenance, "collect", lambda device, command, commit: {**facts, "commit": commit, "command": command}
    )
    return gpu


def _timed(choose_for: Callable[..., Any], own: Callable[..., None]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        choice, plan = choose_for(*arguments)
        return choice, None if plan is None else SimpleNamespace(launch=own)

    return timed


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.yaml"
    bundle_of(TUNED).save(path)
    return path


def wrong(a: Any, b: Any, out: Any) -> None:
    out[...] = 1.0


def test_a_bundle_alone_is_measured_whole_in_both_modes(gpu: FakeGpu, bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "results" / "mine.json"
    result = bench("--bundle", bundle, "-o", output, "--commit", "abc123")
    assert result.exit_code == 0, result.output
    document = read(output)
    assert (document["schema"], document["name"], document["failures"]) == ("cupygemm.results/1", "mine", [])
    assert document["command"] == document["provenance"]["command"]
    assert document["provenance"]["commit"] == "abc123"
    assert (document["provenance"]["sm_clock_mhz"], document["provenance"]["power_w"]) == (1755, 640.5)
    assert [row["mode"] for row in document["rows"]] == ["rotated", "resident"]
    for row in document["rows"]:
        assert Problem.from_dict({name: row[name] for name in TUNED.to_dict()}) == TUNED
        assert (row["kernel"], row["config"], row["pdl"]) == ("own", SMALL.to_dict(), False)
        assert [row[f"{name}_us"] for name in ("cupygemm", "cublas", "cublaslt")] == pytest.approx([8, 10, 9])
    assert "1/2 24×40×16 float16 nn, rotated: 8.00 µs, 1.250× cuBLAS, 1.125× best cublasLt" in result.stdout
    assert "against cuBLAS: 1 faster, 0 not, geometric mean of the ratio 1.250" in result.stdout
    assert "left to cuBLAS" not in result.stdout
    assert f"{output}: 2 rows" in result.stdout


def test_without_a_config_cublas_is_measured_against_itself(gpu: FakeGpu, bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    result = bench(TUNED.shape, OTHER.shape, "--bundle", bundle, "--mode", "rotated", "-o", output)
    assert result.exit_code == 0, result.output
    own, left = read(output)["rows"]
    assert (own["kernel"], left["kernel"], left["config"]) == ("own", "cublas", None)
    assert (left["cupygemm_us"], left["cublas_us"]) == (pytest.approx(10.0), pytest.approx(10.0))
    assert "8×16×24 float16 nn, rotated: 10.00 µs by cuBLAS, 1.000× cuBLAS" in result.stdout
    assert "1 of 2 problems left to cuBLAS" in result.stdout


def test_entries_of_other_sources_and_lost_ones_are_measured(gpu: FakeGpu, tmp_path: Path) -> None:
    old = bundle_of(TUNED, digest="other")
    (entry,) = old.entries
    lost = entry.model_copy(update={"measured": entry.measured.model_copy(update={"speedup": 0.9})})
    old.model_copy(update={"entries": [lost]}).save(tmp_path / "old.yaml")
    assert bench("--bundle", tmp_path / "old.yaml", "-o", tmp_path / "out.json").exit_code == 0
    assert {row["kernel"] for row in read(tmp_path / "out.json")["rows"]} == {"own"}


def test_without_a_bundle_or_a_problem_the_shipped_ones_are_measured(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUPYGEMM_BUNDLE")
    monkeypatch.setattr(in_force, "shipped_bundle", lambda: bundle_of(TUNED))
    assert bench("-o", tmp_path / "out.json").exit_code == 0
    assert {row["kernel"] for row in read(tmp_path / "out.json")["rows"]} == {"own"}


def test_the_bundle_of_the_environment_counts_only_without_another(
    gpu: FakeGpu, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_of(OTHER).save(tmp_path / "other.yaml")
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(bundle))
    output = tmp_path / "out.json"
    assert bench("-o", output).exit_code == 0
    assert {row["m"] for row in read(output)["rows"]} == {TUNED.m}
    assert bench(TUNED.shape, "--bundle", tmp_path / "other.yaml", "-o", output).exit_code == 0
    assert {row["kernel"] for row in read(output)["rows"]} == {"cublas"}


def test_a_suite_and_its_seed_are_in_the_file(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "grid_sample", replace(SUITES["grid_sample"], problems=(TUNED,)))
    output = tmp_path / "out.json"
    assert bench("grid_sample", "--mode", "resident", "-o", output).exit_code == 0
    document = read(output)
    assert (document["suite"], document["seed"]) == ("grid_sample", SUITES["grid_sample"].seed)
    assert [row["mode"] for row in document["rows"]] == ["resident"]


def test_the_file_holds_every_row_as_soon_as_it_is_measured(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.json"
    on_disk: list[int] = []
    once = bench_run.benchmark

    def watched(*arguments: Any) -> Any:
        on_disk.append(len(read(output)["rows"]) if output.exists() else 0)
        return once(*arguments)

    monkeypatch.setattr(bench_run, "benchmark", watched)
    assert bench(TUNED.shape, OTHER.shape, "-o", output).exit_code == 0
    assert on_disk == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("failure", "said"),
    [(None, "an element is wrong|relative Frobenius"), (MemoryError("Out of memory allocating 9 bytes"), "Out of mem")],
)
def test_a_failure_is_one_line_and_the_others_go_on(
    gpu: FakeGpu, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any, said: str
) -> None:
    output = tmp_path / "out.json"
    if failure is None:
        broken = gpu.kernel(wrong, 1.0)
        chosen = bench_run.Dispatcher.choose_for
        monkeypatch.setattr(bench_run.Dispatcher, "choose_for", _timed(chosen, broken))
    else:
        made = bench_run.Bench

        def full(problem: Problem, device: int) -> Any:
            if problem == TUNED:
                raise failure
            return made(problem, device)

        monkeypatch.setattr(bench_run, "Bench", full)
    result = bench(TUNED.shape, OTHER.shape, "--bundle", bundle, "-o", output)
    assert result.exit_code == 1
    line, last = result.stderr.splitlines()
    assert line.startswith("24x40x16 float16 nn: ")
    assert line.count("24x40x16") == 1
    assert last == "Error: 1 of 2 problems not measured"
    document = read(output)
    assert [row["m"] for row in document["rows"]] == [OTHER.m, OTHER.m]
    (failed,) = document["failures"]
    assert (failed["m"], failed["layout"]) == (TUNED.m, "nn")
    assert any(part in failed["detail"] for part in said.split("|"))


def test_after_a_fault_nothing_more_is_tried(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(problem: Problem, device: int) -> Any:
        gpu.faulted = True
        raise LaunchError("an illegal memory access was encountered")

    monkeypatch.setattr(bench_run, "Bench", fault)
    result = bench(TUNED.shape, OTHER.shape, "-o", tmp_path / "out.json")
    assert result.exit_code == 1
    assert [failed["detail"] for failed in read(tmp_path / "out.json")["failures"]] == [
        "an illegal memory access was encountered",
        "the device cannot be used any more",
    ]
    assert result.stderr.splitlines()[-1].endswith("2 of 2 problems not measured, the device cannot be used any more")


def test_an_interruption_keeps_what_was_measured(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, once, calls = tmp_path / "out.json", bench_run.benchmark, iter(range(9))

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return once(*arguments)

    monkeypatch.setattr(bench_run, "benchmark", interrupted)
    result = bench(TUNED.shape, OTHER.shape, "-o", output)
    assert result.exit_code == 1
    assert result.stderr == "Error: 1 of 2 problems not measured, interrupted\n"
    assert "resident, 1 row" in result.stdout
    document = read(output)
    assert len(document["rows"]) == 2
    assert [(failed["m"], failed["detail"]) for failed in document["failures"]] == [(OTHER.m, "interrupted")]


def test_an_interruption_before_the_first_row_is_status_130(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "benchmark", interrupt)
    result = bench(TUNED.shape, "-o", tmp_path / "out.json")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
    assert not (tmp_path / "out.json").exists()


def test_a_plot_is_drawn_of_the_same_rows(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(bench_run.plot, "draw", lambda document, path: drawn.append((document, path)))
    result = bench(TUNED.shape, "-o", tmp_path / "out.json", "--plot", tmp_path / "out.svg")
    assert result.exit_code == 0, result.output
    assert drawn == [(read(tmp_path / "out.json"), tmp_path / "out.svg")]


def test_without_matplotlib_nothing_is_measured(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = bench(TUNED.shape, "--plot", tmp_path / "out.png")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "install the extra `plot`" in result.stderr
    assert not gpu.replayed


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_operands_are_padded_where_tma_needs_it_and_for_all_alike(gpu: FakeGpu, layout: str) -> None:
    seen: dict[str, set[tuple[int, ...]]] = {"own": set(), "cublas": set(), "lt": set()}

    def noting(name: str) -> Callable[..., None]:
        def launch(operands: Operands) -> None:
            seen[name].add((*operands.a.strides, *operands.b.strides, *operands.out.strides))
            product(operands.a, operands.b, operands.out)

        return launch

    bench = measure.Bench(Problem(5, 7, 3, layout=layout))
    bench.time({"own": noting("own"), "cublas": noting("cublas"), "lt": noting("lt")}, QUICK)
    (strides,) = seen["own"]
    assert seen["own"] == seen["cublas"] == seen["lt"]
    outer = (strides[0], strides[2]) if layout == "nn" else (strides[1], strides[3])
    assert outer == (16, 16)
    assert strides[4] == 7 * np.dtype(np.float16).itemsize


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["headlin"], "no suite 'headlin'"),
        (["headline", "squares"], "headline is a suite"),
        (["64x64"], "MxNxK"),
        (["headline", "--dtype", "bfloat16"], "--dtype"),
        (["--layout", "tt"], "--layout"),
        (["64x64x64", "--device", "replay"], "needs a GPU"),
        (["64x64x64", "--mode", "warm"], "warm"),
        (["64x64x64", "--plot", "a.jpg"], ".png, .svg, .pdf"),
        (["64x64x64", "--from", "a.json"], "nothing is measured"),
        (["--from", "a.json", "--bundle", "b.yaml"], "--bundle"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], what: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert what in result.stderr


def test_without_a_gpu_it_is_said_what_needs_none(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(index: int) -> None:
        raise LaunchError("this needs a GPU")

    monkeypatch.setattr(bench_run.driver, "device_spec", missing)
    failed(bench(TUNED.shape), "this needs a GPU; --from FILE shows what was measured elsewhere")


def test_nothing_to_measure_is_said(gpu: FakeGpu) -> None:
    result = bench()
    assert result.exit_code == 2
    assert "name a suite or shapes, or a bundle" in result.stderr
