"""What a recorded result says about where it comes from."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, driver
from cupygemm.measuring import cublas, provenance, telemetry
from cupygemm.measuring.provenance import collect

COPYING = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, True, 1, 40, 1, 1, cp_async_stages=1)
CONTRACT = {
    *("date", "commit", "dirty", "device", "driver", "cuda", "nvrtc", "cublas", "cupy", "python"),
    *("sm_clock_mhz", "power_w"),
}


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYGEMM_COMMIT", raising=False)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, taken for the one that holds the package."""
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    module = tmp_path / "cupygemm" / "measuring" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("first\n")
    for arguments in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)
    monkeypatch.setattr(provenance, "__file__", str(module))
    return tmp_path


def test_without_a_gpu_every_key_is_there() -> None:
    found = collect(None, "make test", commit="abc123")
    assert set(found) == CONTRACT | {"source_digest", "cp_async_source_digest", "command"}
    nothing = {"device", "driver", "cuda", "cublas", "cupy", "sm_clock_mhz", "power_w"}
    assert {key for key in nothing if found[key] is not None} == set()
    assert found["source_digest"] == compiler.source_digest()
    assert found["cp_async_source_digest"] == compiler.source_digest(COPYING)
    assert found["command"] == "make test"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found["date"])).total_seconds()) < 60
    json.dumps(found, allow_nan=False)


def test_with_a_gpu_its_software_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(driverGetVersion=lambda: 13000)
    cupy = SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(driver, "cupy", lambda: cupy)
    monkeypatch.setattr(driver, "device_spec", lambda index: H200)
    monkeypatch.setattr(telemetry, "driver_version", lambda: "580.159.04")
    monkeypatch.setattr(telemetry, "read", lambda index: telemetry.Reading(345, 75.0))
    monkeypatch.setattr(cublas, "version", lambda: "13.1.1")
    found = collect(0, commit="abc123")
    named = [found[key] for key in ("device", "driver", "cuda", "cublas", "cupy")]
    assert named == ["NVIDIA H200", "580.159.04", "13.0", "13.1.1", "14.2.0"]
    assert (found["sm_clock_mhz"], found["power_w"]) == (345, 75.0)
    busy = collect(0, commit="abc123", reading=telemetry.Reading(1755, 690.0))
    assert (busy["sm_clock_mhz"], busy["power_w"]) == (1755, 690.0)


@pytest.mark.parametrize(("named", "dirty"), [("abc123", False), ("abc123-dirty", True)])
def test_a_commit_may_be_handed_in(named: str, dirty: bool) -> None:
    found = collect(None, commit=named)
    assert (found["commit"], found["dirty"]) == ("abc123", dirty)


def test_a_commit_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMMIT", "def456")
    assert collect(None)["commit"] == "def456"
    assert collect(None, commit="abc123")["commit"] == "abc123"


def test_else_git_is_asked(repository: Path) -> None:
    head = (repository / ".git" / "HEAD").read_text().split()[-1]
    found = collect(None)
    assert found["commit"] == (repository / ".git" / head).read_text().strip()
    assert found["dirty"] is False
    (repository / "cupygemm" / "measuring" / "provenance.py").write_text("changed\n")
    assert collect(None)["dirty"] is True


def test_a_repository_around_an_installed_package_is_not_its_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = repository / ".venv" / "site-packages" / "cupygemm" / "measuring" / "provenance.py"
    installed.parent.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(installed))
    found = collect(None)
    assert (found["commit"], found["dirty"]) == (None, None)


def test_without_git_the_commit_is_not_known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert collect(None)["commit"] is None


def test_without_nvrtc_its_version_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CompileError("NVRTC is not installed")

    monkeypatch.setattr(compiler, "nvrtc_version", missing)
    assert collect(None, commit="abc123")["nvrtc"] is None
