"""`show_config`: what it tells with and without a GPU, in print and as data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cupygemm
from cupygemm import settings
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, driver
from cupygemm.machine import show_config
from cupygemm.measuring import telemetry
from tests.fake_products import PROBLEM, bundle_of, fresh_gpu

BLACKWELL = DeviceSpec("NVIDIA B200", (10, 0), 148, 232448, 130 << 20, 1965)


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path):
    """Two GPUs, one of them a Hopper; caches in a folder of the test."""
    for name in settings.variables():
        monkeypatch.delenv(name)
    fake = fresh_gpu(monkeypatch)
    fake.specs = {0: H200, 1: BLACKWELL}
    monkeypatch.setattr(driver, "devices", lambda: (0, 1))
    monkeypatch.setattr(driver, "newest_cuda", lambda: (13, 0))
    monkeypatch.setattr(telemetry, "driver_version", lambda: "580.1")
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUPYGEMM_DATA_DIR", str(tmp_path / "data"))
    return fake


def test_what_is_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(show_config.metadata, "packages_distributions", lambda: {"cupy": ["cupy-cuda13x"] * 2})
    monkeypatch.setattr(show_config, "_version", lambda name: "1.2" if name != "ml-dtypes" else None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUPYGEMMS", "of somebody else")
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    (folder / "k.cubin").write_bytes(b"12345")
    cupygemm.use(bundle_of(PROBLEM))
    bundle_of(PROBLEM, replace(PROBLEM, m=8)).save(tmp_path / "tuned.yaml")
    cupygemm.use(tmp_path / "tuned.yaml")
    told = cupygemm.show_config("dicts")
    assert told["versions"]["cupygemm"] == cupygemm.__version__
    assert told["versions"]["cupy"] == "1.2 (cupy-cuda13x)"
    assert told["versions"]["ml-dtypes"] is None
    assert (told["versions"]["nvrtc"], told["versions"]["cuda of the driver"]) == ("13.0", "13.0")
    assert told["devices"] == {
        "0": "NVIDIA H200 (132 SMs), own kernels",
        "1": "NVIDIA B200 (148 SMs), cuBLAS: it is not a Hopper GPU",
    }
    assert told["bundles"] == {
        "1": f"{tmp_path}/tuned.yaml, 2 entries of NVIDIA H200",
        "2": "the bundle given, 1 entry of NVIDIA H200",
    }
    assert told["caches"] == {"kernels": f"{folder}, 1 kernel, 5 bytes", "trials": str(tmp_path / "data")}
    assert told["environment"] == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUPYGEMM_BUNDLE": "none",
        "CUPYGEMM_CACHE_DIR": str(tmp_path / "cache"),
        "CUPYGEMM_DATA_DIR": str(tmp_path / "data"),
    }


def test_it_prints_by_itself(capsys):
    assert cupygemm.show_config() is None
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        "versions:",
        "devices:",
        "bundles: none",
        "caches:",
        "environment:",
    ]
    assert f"  cupygemm: {cupygemm.__version__}" in lines
    assert "  0: NVIDIA H200 (132 SMs), own kernels" in lines


def test_what_is_not_there_is_told_too(capsys, monkeypatch):
    def missing():
        raise CompileError("no NVRTC")

    monkeypatch.setattr(compiler, "nvrtc_version", missing)
    monkeypatch.setattr(driver, "newest_cuda", lambda: None)
    monkeypatch.setattr(driver, "devices", lambda: ())
    cupygemm.show_config()
    lines = capsys.readouterr().out.splitlines()
    assert {"  nvrtc: not there", "  cuda of the driver: not there", "devices: none"} <= set(lines)


def test_a_bundle_that_cannot_be_read_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(tmp_path / "nowhere.yaml"))
    told = cupygemm.show_config("dicts")["bundles"]
    assert told["1"].startswith("cannot be read: ")
    assert "nowhere.yaml" in told["1"]


def test_nothing_is_compiled(gpu):
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.show_config("dicts")
    assert gpu.compiled == []


def test_another_mode_is_refused():
    with pytest.raises(ValueError, match=r"show_config\(mode='json'\): the modes are 'stdout' and 'dicts'"):
        cupygemm.show_config("json")


def test_it_works_without_gpu_libraries():
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("cupy", "cuda", "pynvml", "ml_dtypes"))
    source = f"import sys; {blocked}import cupygemm; cupygemm.show_config()"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "nvrtc: not there" in done.stdout


def test_a_value_that_may_not_be_is_told_beside_it(monkeypatch):
    monkeypatch.setenv("CUPYGEMM_COMPILE", "later")
    monkeypatch.setenv("CUPYGEMM_UNSEEN", "off")
    found = cupygemm.show_config("dicts")["environment"]
    assert found["CUPYGEMM_COMPILE"].startswith(
        "later, which is an error: CUPYGEMM_COMPILE is 'later': it may be 'now'"
    )
    assert found["CUPYGEMM_UNSEEN"] == "off"
