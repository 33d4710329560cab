"""What is asked of CUDA's runtime and of NVML, where they answer and where they are missing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.measuring import telemetry
from cupygemm.measuring.telemetry import Condition


class CudaError(RuntimeError):
    """In place of CuPy's."""


def refuse(*_: Any) -> Any:
    raise CudaError("cudaErrorInsufficientDriver")


def no_cupy() -> Any:
    raise LaunchError("CuPy is not installed")


def cupy_with(version: Callable[[], int], count: Callable[[], int]) -> Callable[[], Any]:
    runtime = SimpleNamespace(CUDARuntimeError=CudaError, driverGetVersion=version, getDeviceCount=count)
    return lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    ("cupy", "newest", "devices"),
    [
        (cupy_with(lambda: 12040, lambda: 2), (12, 4), (0, 1)),
        (cupy_with(lambda: 0, refuse), None, ()),
        (cupy_with(refuse, refuse), None, ()),
        (no_cupy, None, ()),
    ],
)
def test_the_driver_and_devices_are_asked_of_the_runtime(
    monkeypatch: pytest.MonkeyPatch, cupy: Any, newest: tuple[int, int] | None, devices: tuple[int, ...]
) -> None:
    monkeypatch.setattr(driver, "cupy", cupy)
    assert driver.newest_cuda() == newest
    assert driver.devices.__wrapped__() == devices


def test_a_folder_that_cupy_cannot_make_is_named_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(name: str) -> Any:
        raise PermissionError(13, "Permission denied", "/home/.cupy")

    monkeypatch.setattr(driver, "import_module", read_only)
    with pytest.raises(PermissionError, match="CUPY_CACHE_DIR names another") as caught:
        driver.cupy.__wrapped__()
    assert caught.value.filename == "/home/.cupy"


def test_a_driver_without_cupy_is_why_no_device_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "KERNEL_MODULE", tmp_path)
    monkeypatch.setattr(driver, "cupy", no_cupy)
    assert driver.why_not_asked() == "CuPy is not installed"
    monkeypatch.setattr(driver, "cupy", lambda: None)
    assert driver.why_not_asked() is None
    monkeypatch.setattr(driver, "KERNEL_MODULE", tmp_path / "nothing")
    monkeypatch.setattr(driver, "cupy", no_cupy)
    assert driver.why_not_asked() is None


class Result(enum.IntEnum):
    """In place of CUresult."""

    CUDA_ERROR_LAUNCH_FAILED = 719


@pytest.mark.parametrize(("status", "name"), [(719, "CUDA_ERROR_LAUNCH_FAILED"), (12345, "error 12345")])
def test_an_answer_of_the_driver_has_a_name(monkeypatch: pytest.MonkeyPatch, status: int, name: str) -> None:
    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(CUresult=Result))
    assert driver.status_name(status) == name


def test_without_bindings_an_answer_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", no_cupy)
    assert driver.status_name(719) == "error 719"


class NvmlError(Exception):
    """In place of pynvml's."""


def unsupported(*_: Any) -> Any:
    raise NvmlError("Not Supported")


def nvml(**answers: Any) -> Any:
    """An NVML that answers these questions and supports no others."""
    names = (
        *("PowerManagementLimit", "PowerManagementDefaultLimit", "CurrentClocksThrottleReasons"),
        *("EccMode", "PersistenceMode", "ClockInfo", "MaxClockInfo", "PowerUsage"),
    )
    asked = {name: (lambda *_, value=answers[name]: value) if name in answers else unsupported for name in names}
    functions = {f"nvmlDeviceGet{name}": function for name, function in asked.items()}
    return SimpleNamespace(NVMLError=NvmlError, NVML_CLOCK_SM=1, **functions)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            nvml(
                PowerManagementLimit=500_000,
                PowerManagementDefaultLimit=700_000,
                CurrentClocksThrottleReasons=0x1 | 0x4 | 0x40,
                EccMode=(1, 1),
                PersistenceMode=0,
                ClockInfo=1500,
                MaxClockInfo=1980,
            ),
            Condition(500.0, 700.0, ("software power cap", "hardware thermal slowdown"), True, False, 1500, 1980),
        ),
        (nvml(ClockInfo=345), Condition(None, None, None, None, None, 345, None)),
        (None, Condition(*[None] * 7)),
    ],
)
def test_the_condition_of_a_gpu_is_read_as_far_as_nvml_tells(
    monkeypatch: pytest.MonkeyPatch, module: Any, expected: Condition
) -> None:
    monkeypatch.setattr(telemetry, "_nvml", lambda: module)
    monkeypatch.setattr(telemetry, "_handle", lambda device: None if module is None else object())
    assert telemetry.condition(0) == expected
