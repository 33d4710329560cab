"""`cupygemm doctor` on made-up machines, and on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cupygemm import cli, settings
from cupygemm.choosing.forecast import shipped_forecast
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import BundleError, CompileError, LaunchError
from cupygemm.kernels import compiler, driver
from cupygemm.kernels.kernel_source import cp_async_source_digest
from cupygemm.machine import bundle_fit, doctor
from cupygemm.machine.checks import Check, State
from cupygemm.measuring import telemetry
from cupygemm.measuring.telemetry import Condition
from tests.fake_products import PROBLEM, bundle_of

AMPERE = DeviceSpec("NVIDIA A100", (8, 0), 108, 166912, 40 << 20, 1410)
WELL = Condition(700.0, 700.0, (), True, True, 1980, 1980)


@dataclass
class Machine:
    """What is installed on a made-up machine; as it stands, a sound one with an H200."""

    wheels: dict[str, str] = field(default_factory=lambda: {"cupy-cuda13x": "14.2.0", "numpy": "2.4.6"})
    cupy_error: Exception | None = None
    bindings: str | None = "13.5.0"
    nvrtc: str | None = "13.0"
    driver: str | None = "580.159.04"
    newest_cuda: tuple[int, int] | None = (13, 0)
    gpus: list[DeviceSpec] = field(default_factory=lambda: [H200])
    condition: Condition = WELL
    log: str = "ptxas info : Used 248 registers"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts it in the place of what this machine has."""
        found = [SimpleNamespace(name=name, version=version) for name, version in self.wheels.items()]
        monkeypatch.setattr(doctor.metadata, "distributions", lambda: found)
        monkeypatch.setattr(doctor.metadata, "version", self._version)
        monkeypatch.setattr(doctor.driver, "KERNEL_MODULE", Path("/nowhere"))
        monkeypatch.setattr(driver, "cupy", self._cupy)
        monkeypatch.setattr(driver, "devices", lambda: tuple(range(len(self.gpus))))
        monkeypatch.setattr(driver, "hopper_devices", self._hopper_devices)
        monkeypatch.setattr(driver, "device_spec", lambda index: self.gpus[index])
        monkeypatch.setattr(driver, "newest_cuda", lambda: self.newest_cuda)
        monkeypatch.setattr(telemetry, "driver_version", lambda: self.driver)
        monkeypatch.setattr(telemetry, "condition", lambda index: self.condition)
        monkeypatch.setattr(compiler, "nvrtc_version", self._nvrtc_version)
        monkeypatch.setattr(compiler, "compile_program", lambda *_: compiler.Program(b"", "kernel", self.log))

    def _version(self, name: str) -> str:
        assert name == "cuda-bindings"
        if self.bindings is None:
            raise metadata.PackageNotFoundError(name)
        return self.bindings

    def _cupy(self) -> Any:
        if self.cupy_error is not None:
            raise self.cupy_error

    def _hopper_devices(self) -> list[int]:
        self._cupy()
        return [i for i, gpu in enumerate(self.gpus) if gpu.is_hopper]

    def _nvrtc_version(self) -> str:
        if self.nvrtc is None:
            raise CompileError("cuda-bindings (for NVRTC) is not installed")
        return self.nvrtc


BARE = Machine(
    wheels={}, cupy_error=LaunchError("no"), bindings=None, nvrtc=None, driver=None, newest_cuda=None, gpus=[]
)

Examine = Callable[[Machine], dict[str, Check]]


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Examine:
    """The checks of a made-up machine by name; of two of one name, the worse."""
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUPYGEMM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("CUPYGEMM_BUNDLE", raising=False)

    def call(machine: Machine) -> dict[str, Check]:
        machine.install(monkeypatch)
        severity = list(State)
        found: dict[str, Check] = {}
        for check in doctor.examine(["json"]):
            known = found.get(check.name)
            if known is None or severity.index(check.state) > severity.index(known.state):
                found[check.name] = check
        return found

    return call


def states(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.state.value for name, check in checks.items() if check.state is not State.OK}


def test_nothing_is_wrong_with_a_sound_machine(examine: Examine) -> None:
    checks = examine(Machine())
    unusual = states(checks).keys() - {"compute-sanitizer", "ncu"}
    assert unusual == set()
    assert "CUPYGEMM_BUNDLE is not set" in checks["bundle"].found
    assert not doctor.broken(list(checks.values()))
    assert checks["GPU 0"].found == "NVIDIA H200 (132 SMs), compute capability 9.0"
    assert checks["driver"].found == "580.159.04, runs CUDA up to 13.0"
    assert checks["clocks of GPU 0"].found == "1980 of 1980 MHz, at most 700 W, ECC on, persistence on"


@pytest.mark.parametrize(
    ("value", "state", "words"),
    [
        ("", State.OK, "wait for their kernels"),
        ("background", State.OK, "run cuBLAS while kernels are compiled"),
        ("later", State.PROBLEM, "CUPYGEMM_COMPILE is 'later': it may be 'now'"),
    ],
)
def test_first_calls_are_as_a_variable_says(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, value: str, state: State, words: str
) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", value)
    check = examine(Machine())["first calls"]
    assert check.state is state
    assert words in check.found


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("BUNDEL", "write CUPYGEMM_BUNDLE"), ("X", "unset it: docs/environment.md lists those that are")],
)
def test_a_variable_that_nothing_reads_is_a_warning(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    assert "variables" not in examine(Machine())
    monkeypatch.setenv(f"CUPYGEMM_{name}", "tuned.yaml")
    check = examine(Machine())["variables"]
    assert (check.state, check.remedy) == (State.WARNING, remedy)
    assert check.found == f"CUPYGEMM_{name} is set, and nothing reads it"


def test_a_machine_without_a_gpu_is_not_broken(examine: Examine) -> None:
    checks = examine(BARE)
    assert not doctor.broken(list(checks.values()))
    for name in ("CuPy", "cuda.bindings", "NVRTC", "driver", "GPU"):
        assert checks[name].state is State.ABSENT, name
    assert "cu13 (driver 580 or newer) or cu12" in checks["CuPy"].remedy
    assert "compiling" not in checks


@pytest.mark.parametrize(
    ("machine", "name", "state", "found", "remedy"),
    [
        (
            Machine(wheels={"cupy-cuda13x": "14.2.0", "cupy-cuda12x": "14.2.0"}),
            *("CuPy", "problem", "2 wheels: cupy-cuda12x 14.2.0, cupy-cuda13x 14.2.0"),
            "pip uninstall cupy-cuda12x cupy-cuda13x",
        ),
        (Machine(wheels={"cupy": "13.6.0"}), "CuPy", "warning", "cupy 13.6.0", "CuPy 14"),
        (
            Machine(cupy_error=RuntimeError("libcudart is\nnot found")),
            *("CuPy", "problem", "cannot be imported: libcudart is not found", "install it anew"),
        ),
        (
            Machine(cupy_error=PermissionError(13, "Permission denied", "/home/.cupy")),
            *("CuPy", "problem", "cannot be imported: /home/.cupy: Permission denied", "CUPY_CACHE_DIR"),
        ),
        (replace(BARE, driver="580.1"), "CuPy", "problem", "not installed", "pip install '.[cu13]'"),
        (replace(BARE, driver="550.54.14"), "CuPy", "problem", "not installed", "pip install '.[cu12]'"),
        (Machine(bindings="12.9.1"), "cuda.bindings", "problem", "CuPy is for CUDA 13", "'cuda-bindings>=13,<14'"),
        (Machine(bindings=None), "cuda.bindings", "problem", "not installed", "cu13"),
        (Machine(nvrtc=None), "NVRTC", "problem", "is not installed", "compile kernels"),
        (Machine(log="ptxas info : (C7515) serialized"), "compiling", "problem", "C7515", "another NVRTC"),
        (
            Machine(driver="550.54.14", newest_cuda=(12, 4)),
            *("driver", "problem", "runs CUDA up to 12.4, and CuPy is for CUDA 13", "extra cu12"),
        ),
        (Machine(gpus=[]), "GPU", "problem", "CUDA shows no device", "CUDA_VISIBLE_DEVICES"),
        (Machine(gpus=[AMPERE]), "GPU 0", "not here", "compute capability 8.0: not Hopper", ""),
        (
            Machine(gpus=[replace(H200, name="NVIDIA H200 MIG 3g.71gb", sm_count=60)]),
            *("GPU 0", "ok", "(60 SMs), compute capability 9.0, a MIG slice", ""),
        ),
        (
            Machine(condition=replace(WELL, power_limit_w=500.0, slowdowns=("hardware thermal slowdown",))),
            *("clocks of GPU 0", "warning", "hardware thermal slowdown", "below the 700 W"),
        ),
        (
            Machine(condition=Condition(*[None] * 7)),
            *("clocks of GPU 0", "not here", "NVML", "nvidia-ml-py"),
        ),
    ],
)
def test_what_is_amiss_is_found_with_what_to_do(
    examine: Examine, machine: Machine, name: str, state: str, found: str, remedy: str
) -> None:
    check = examine(machine)[name]
    assert check.state == state, check
    assert found in check.found
    assert remedy in check.remedy
    assert len(check.found.splitlines()) == 1


def test_what_a_check_dies_of_is_a_finding(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("an ABI of its own")

    monkeypatch.setattr(settings, "cache_dir", fail)
    check = examine(Machine())["cache folder"]
    assert (check.state, check.found) == (State.PROBLEM, "RuntimeError: an ABI of its own")


def test_a_cupy_that_cannot_be_imported_is_told_once(examine: Examine) -> None:
    checks = examine(Machine(cupy_error=RuntimeError("libcudart is not found")))
    assert [name for name, state in states(checks).items() if state == "problem"] == ["CuPy"]


@pytest.mark.parametrize("variable", ["CUPYGEMM_CACHE_DIR", "CUPYGEMM_DATA_DIR"])
def test_a_folder_that_cannot_be_written_is_a_problem(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(variable, str(tmp_path / "file" / "folder"))
    check = examine(BARE)[f"{variable.split('_')[1].lower()} folder"]
    assert (check.state, variable in check.remedy) == (State.PROBLEM, True)


def test_little_space_is_a_warning(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000_000))
    check = examine(BARE)["cache folder"]
    assert (check.state, "0.0 GB free" in check.found) == (State.WARNING, True)


@pytest.mark.parametrize(
    ("bundle", "state", "found"),
    [
        (bundle_of(PROBLEM), "ok", "1 entry of NVIDIA H200 (132 SMs)"),
        (bundle_of(PROBLEM, digest="0" * 16), "warning", "1 measured with other kernel sources"),
        (bundle_of(PROBLEM, device=AMPERE), "problem", "8.0, not 9.0"),
        (bundle_of(PROBLEM, device=replace(H200, name="NVIDIA H100")), "warning", "used on NVIDIA H200 (132 SMs)"),
        (bundle_of(PROBLEM, config=bundle_of(PROBLEM).entries[0].config.swapped(stages=99)), "warning", "99 stages"),
    ],
)
def test_the_bundle_in_force_is_held_against_the_machine(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Any, state: str, found: str
) -> None:
    path = tmp_path / "tuned.yaml"
    bundle.save(path)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(path))
    check = examine(Machine())["bundle"]
    assert check.state == state
    assert found in check.found


def test_the_shipped_bundle_is_told_and_its_old_times_are_no_fault(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_fit, "shipped_bundle", lambda: bundle_of(PROBLEM, digest="0" * 16))
    check = examine(Machine())["shipped bundle"]
    assert check.state is State.OK
    assert check.found == "1 entry of NVIDIA H200 (132 SMs), 1 measured with other kernel sources"
    assert check.remedy == "cupygemm tune on a Hopper GPU measures anew"
    monkeypatch.setenv("CUPYGEMM_BUNDLE", "none")
    check = examine(Machine())["shipped bundle"]
    assert (check.state, check.found) == (State.ABSENT, "turned off: CUPYGEMM_BUNDLE is none")


def test_the_forecast_is_held_against_the_machine(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> tuple[str, str, str]:
        found = examine(Machine())["forecast"]
        return found.state.value, found.found, found.remedy

    forecast, asked = shipped_forecast(), "asked for shapes that no bundle has"
    digests = {"source_digest": compiler.source_digest(), "cp_async_source_digest": cp_async_source_digest()}
    current = replace(forecast, provenance={"survey": digests})
    monkeypatch.setattr(bundle_fit, "shipped_forecast", lambda: current)
    assert check() == ("ok", asked, "")
    remedy = "cupygemm tune measures a shape that matters"
    monkeypatch.setattr(bundle_fit, "shipped_forecast", lambda: replace(forecast, provenance={}))
    assert check() == ("ok", f"{asked}, surveyed with kernel sources that it does not name", remedy)
    surveyed = {"survey": {"source_digest": "0" * 16}}
    other = replace(forecast, provenance=surveyed, device=replace(H200, name="NVIDIA H100"))
    monkeypatch.setattr(bundle_fit, "shipped_forecast", lambda: other)
    state, found, told = check()
    assert (state, told) == ("warning", remedy)
    assert found.startswith(f"{asked}, surveyed on NVIDIA H100 (132 SMs), not on NVIDIA H200, surveyed with other")

    def damaged() -> None:
        raise BundleError("h200_forecast.npz: no forecast")

    monkeypatch.setattr(bundle_fit, "shipped_forecast", damaged)
    assert check()[:2] == ("problem", "h200_forecast.npz: no forecast")
    monkeypatch.setenv("CUPYGEMM_UNSEEN", "off")
    assert check() == ("ok", "turned off", "")


def test_a_bundle_that_cannot_be_read_is_a_problem(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_BUNDLE", "/nowhere/tuned.yaml")
    check = examine(BARE)["bundle"]
    assert (check.state, "tuned.yaml" in check.found) == (State.PROBLEM, True)


def test_missing_packages_of_the_search_are_named(examine: Examine) -> None:
    examine(BARE)
    (check,) = (each for each in doctor.examine(["json", "no_such_package"]) if each.name == "search")
    assert (check.state, check.found) == (State.ABSENT, "no_such_package not installed")


@pytest.mark.parametrize(
    ("machine", "status", "last"),
    [
        (Machine(), 0, "nothing stops matmul from running its own kernels"),
        (BARE, 0, "nothing is broken; own kernels need a Hopper GPU, and there is none here"),
        (Machine(bindings=None, nvrtc=None), 1, "2 problems: see what to do above"),
    ],
)
def test_the_command_tells_by_its_status(examine: Examine, machine: Machine, status: int, last: str) -> None:
    examine(machine)
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == status, result.output
    *lines, summary = result.stdout.splitlines()
    assert summary == last
    assert all(line[:8].strip() in {*State, ""} for line in lines)
    told = json.loads(CliRunner().invoke(cli.main, ["doctor", "--json"]).stdout)
    assert (told["schema"], told["ok"]) == ("cupygemm.doctor/1", status == 0)
    assert {"name", "state", "found", "remedy"} == told["checks"][0].keys()


def test_a_terminal_gets_a_table(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    examine(Machine(bindings=None, wheels={"cupy": "13.0[/red]"}))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    output = CliRunner().invoke(cli.main, ["doctor"]).stdout
    assert "\x1b[" in output
    assert "13.0[/red]" in output


def test_it_is_true_of_a_machine_without_gpu_libraries() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("cupy", "cuda", "pynvml", "jax", "ml_dtypes"))
    hide = "metadata.distributions = lambda: []; doctor.driver.KERNEL_MODULE = Path('/nowhere'); "
    source = f"import sys; {blocked}from importlib import metadata; from pathlib import Path; "
    source += f"from cupygemm.machine import doctor; {hide}from cupygemm.cli import main; main(['doctor', '--json'])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check["state"] for check in json.loads(done.stdout)["checks"]}
    assert {checks["CuPy"], checks["NVRTC"], checks["GPU"]} == {"not here"}
    assert checks["Python"] == checks["cupygemm"] == "ok"


@pytest.mark.nvrtc
def test_a_kernel_is_really_compiled() -> None:
    check = doctor._compile("13.0")
    assert check.state is State.OK, check
    assert check.found.startswith("a kernel for sm_90a in ")


def test_an_nvrtc_that_is_too_old_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "12.3")
    monkeypatch.setattr(compiler, "_nvrtc", lambda: None)
    check = doctor._compile("12.3")
    assert check.state is State.PROBLEM
    assert "NVRTC 12.3 is too old" in check.found
    assert "nvidia-cuda-nvrtc-cu12>=12.4" in check.found


def test_bindings_without_the_library_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("libnvrtc.so.13 not found")

    monkeypatch.setattr(compiler, "import_module", lambda name: SimpleNamespace(nvrtcVersion=fail))
    monkeypatch.setattr(compiler, "_nvrtc", compiler._nvrtc.__wrapped__)
    with pytest.raises(CompileError, match="the library of NVRTC"):
        compiler.nvrtc_version()
