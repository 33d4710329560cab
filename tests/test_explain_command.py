"""`cupygemm explain`: what `matmul` would run for a problem, here or on the GPU of the bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cupygemm import cli
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelSpec, shared_bytes
from cupygemm.device import H200
from cupygemm.kernels import driver
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.views.packing_cost import MARGIN
from tests.commands import failed
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, bundle_of, fresh_gpu

PROBLEM = Problem(64, 128, 256)
H100 = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)

Explain = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.yaml"


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch) -> Explain:
    """The command on a machine without a GPU."""
    monkeypatch.setattr(driver, "devices", tuple)
    monkeypatch.setattr(driver, "hopper_devices", tuple)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", "none")
    return lambda *args: CliRunner().invoke(cli.main, ["explain", *map(str, args)])


def test_without_a_gpu_the_answer_is_for_the_gpu_of_the_bundle(explain: Explain, path: Path) -> None:
    bundle_of(PROBLEM, config=LARGE, device=H100).save(path)
    result = explain(PROBLEM.shape, "--bundle", path)
    assert result.exit_code == 0, result.output
    first, second, *lines = result.stdout.splitlines()
    assert first == "no GPU found: the answer is for NVIDIA H100 PCIe (114 SMs), and nothing was compiled"
    assert second == "64x128x256 float16 nn: own kernel"
    assert f"  because {path} has a config for it" in lines
    assert "  measured: 1.00 µs a launch" in lines
    assert any(line.startswith("  legal there: ") and "of 232448 bytes of shared memory" in line for line in lines)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_is_said_in_words(explain: Explain, path: Path, layout: str) -> None:
    bundle_of(replace(PROBLEM, layout=layout)).save(path)
    words = {"n": "stored row-major", "t": "stored transposed"}
    result = explain(PROBLEM.shape, "--layout", layout, "--bundle", path)
    assert f"  layout {layout}: A {words[layout[0]]}, B {words[layout[1]]}\n" in result.stdout
    assert "own kernel" in result.stdout
    assert json.loads(explain(PROBLEM.shape, "--layout", layout, "--bundle", path, "--json").stdout)["layout"] == layout


def test_a_program_gets_the_whole_answer(explain: Explain, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of(PROBLEM, config=LARGE)
    bundle.save(path)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(path))
    answer = json.loads(explain(PROBLEM.shape, "--json").stdout)
    assert (answer["kernel"], answer["bundle"], answer["device_here"]) == ("own", str(path), False)
    assert (answer["problem"], answer["config"]) == (PROBLEM.to_dict(), LARGE.to_dict())
    assert answer["measured"]["us"] == 1.0
    assert answer["search"]["strategy"] == "test"
    assert answer["shared_bytes"] == shared_bytes(LARGE, KernelSpec.of(PROBLEM))
    assert answer["device"]["name"] == H200.name


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("8x8x8",), "no bundle in force has a config for it"),
        (("60x64x60",), "TMA cannot read a in place (rows are 120 bytes apart: TMA needs a positive multiple of 16)"),
        ((PROBLEM.shape, "--out-dtype", "bfloat16"), "no bundle in force has a config for it"),
    ],
)
def test_a_fall_back_has_its_reason(explain: Explain, path: Path, args: tuple[str, ...], words: str) -> None:
    bundle_of(PROBLEM).save(path)
    result = explain(*args, "--bundle", path)
    assert result.exit_code == 0
    assert "cupy.matmul (cuBLAS)" in result.stdout
    assert words in result.stdout
    answer = json.loads(explain(*args, "--bundle", path, "--json").stdout)
    assert (answer["kernel"], answer["config"], answer["measured"]) == ("cublas", None, None)


def test_an_entry_that_cannot_run_is_named_with_the_rule(explain: Explain, path: Path) -> None:
    bundle_of(PROBLEM, config=LARGE.swapped(stages=99)).save(path)
    result = explain(PROBLEM.shape, "--bundle", path)
    assert f"the entry of {path} is skipped: 99 stages" in result.stdout


def test_a_lost_entry_is_told_with_its_figures(explain: Explain, path: Path) -> None:
    bundle = bundle_of(PROBLEM)
    measured = bundle.entries[0].measured.model_copy(update={"us": 50.0, "cublas_us": 48.5, "speedup": 0.97})
    bundle.model_copy(update={"entries": [bundle.entries[0].model_copy(update={"measured": measured})]}).save(path)
    result = explain(PROBLEM.shape, "--bundle", path)
    assert "cupy.matmul (cuBLAS)" in result.stdout
    assert "has measured cuBLAS to be faster: 50.00 µs to its 48.50, a speedup of 0.970" in result.stdout
    answer = json.loads(explain(PROBLEM.shape, "--bundle", path, "--json").stdout)
    assert (answer["kernel"], answer["config"], answer["bundle"]) == ("cublas", None, str(path))
    assert answer["measured"]["speedup"] == 0.97


def test_without_a_bundle_named_the_shipped_one_answers(explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYGEMM_BUNDLE")
    entry = next(entry for entry in shipped_bundle().entries if entry.problem.a_dtype == "float16")
    answer = json.loads(explain(entry.problem.shape, "--layout", entry.problem.layout, "--json").stdout)
    assert (answer["bundle"], answer["config"]) == ("the shipped bundle", entry.config.to_dict())
    assert answer["device"]["name"] == H200.name


def test_a_copy_that_is_expected_to_pay_has_its_time_and_ratio(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUPYGEMM_BUNDLE")
    said = explain("2001x777x512").stdout
    found = re.search(r"predicted (\S+) µs, (\S+) µs with a copy of b first, (\S+) times as fast as cuBLAS; TMA", said)
    assert found is not None, said
    kernel_us, whole_us, ratio = map(float, found.groups())
    assert kernel_us < whole_us
    assert ratio >= MARGIN
    assert "TMA cannot read b in place (rows are 1554 bytes apart: TMA needs a positive multiple of 16)\n" in said


def test_a_copy_too_large_is_told_with_the_most(explain: Explain) -> None:
    assert "its copy would take 1490 GiB, and at most 32 GiB are copied" in explain("100000000000x2x2").stdout


def test_a_bundle_that_is_named_is_asked_alone(explain: Explain, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYGEMM_BUNDLE")
    bundle_of(PROBLEM).save(path)
    assert "predicted" in explain("2048x2048x136").stdout
    found = explain("2048x2048x136", "--bundle", path).stdout
    assert "because no bundle in force has a config for it\n" in found


def test_on_a_gpu_the_answer_is_for_it(explain: Explain, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: FakeGpu = fresh_gpu(monkeypatch)
    gpu.specs[0] = H100
    monkeypatch.setattr(driver, "hopper_devices", lambda: (0,))
    bundle_of(PROBLEM, config=LARGE).save(path)
    result = explain(PROBLEM.shape, "--bundle", path)
    assert result.stdout.splitlines()[0] == "64x128x256 float16 nn: own kernel"
    assert "measured on NVIDIA H200 (132 SMs), not on this NVIDIA H100 PCIe (114 SMs)" in result.stdout
    assert (len(gpu.compiled), gpu.launches) == (1, [])


def test_a_gpu_that_is_not_hopper_runs_cublas(explain: Explain, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fresh_gpu(monkeypatch)
    gpu.specs[0] = replace(H200, name="NVIDIA A100", compute_capability=(8, 0))
    monkeypatch.setattr(driver, "devices", lambda: (0,))
    bundle_of(PROBLEM).save(path)
    assert "because NVIDIA A100 is not a Hopper GPU" in explain(PROBLEM.shape, "--bundle", path).stdout


@pytest.mark.parametrize("options", [(), ("--bundle", "tuned.yaml")])
def test_a_variable_that_says_what_it_may_not_is_an_error(
    explain: Explain, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "later")
    failed(explain(PROBLEM.shape, *options), "CUPYGEMM_COMPILE is 'later': it may be 'now'")


def test_a_bundle_that_cannot_be_read_is_one_line(explain: Explain, path: Path) -> None:
    failed(explain(PROBLEM.shape, "--bundle", path), "tuned.yaml: No such file or directory; name a bundle")
    path.write_text("a: [1")
    result = explain(PROBLEM.shape, "--bundle", path)
    failed(result, f"{path}: not YAML that can be read: while parsing a flow sequence at line 1, column 4")
    assert "byte string" not in result.stderr


@pytest.mark.parametrize(
    ("name", "words"), [("none", "CUPYGEMM_BUNDLE=none alone"), ("", "the name is empty: name a file")]
)
def test_a_bundle_without_a_file_is_wrong_usage(
    explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = explain(PROBLEM.shape, "--bundle", name)
    assert result.exit_code == 2
    assert words in result.stderr
    (tmp_path / "none").write_text("a: 1")
    assert explain(PROBLEM.shape, "--bundle", "none").exit_code == 1  # it is read, and no bundle


def test_wrong_usage_is_status_2(explain: Explain) -> None:
    assert explain("64x64").exit_code == 2
