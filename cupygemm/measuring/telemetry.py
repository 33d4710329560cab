"""Clock and power of a GPU through NVML; None wherever NVML, its Python module or the reading is missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from cupygemm.errors import LaunchError
from cupygemm.kernels import driver


@dataclass(frozen=True)
class Reading:
    """The state of a GPU at one moment.

    Attributes:
        clock_mhz: SM clock.
        power_w: of the whole board; NVML averages it over up to a second.
    """

    clock_mhz: int | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Condition:
    """What may slow a GPU down; None where it cannot be read.

    Attributes:
        power_limit_w, default_power_limit_w: in force, and as shipped.
        slowdowns: what lowers the clock at this moment, in words; empty for nothing.
        ecc: whether memory has error correction on.
        persistence: whether the driver stays loaded between processes.
        clock_mhz, max_clock_mhz: SM clock now and at most.
    """

    power_limit_w: float | None
    default_power_limit_w: float | None
    slowdowns: tuple[str, ...] | None
    ecc: bool | None
    persistence: bool | None
    clock_mhz: int | None
    max_clock_mhz: int | None


SLOWDOWNS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksEventReasons that mean less speed than the GPU could give (nvml.h); idle is none of them."""


def condition(device: int) -> Condition:
    """Power limit, slowdowns and modes of a GPU now.

    Args:
        device: CUDA device index.
    """
    limit = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementLimit(handle))
    default = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    reasons = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    ecc = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetEccMode(handle))
    persistence = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetPersistenceMode(handle))
    return Condition(
        power_limit_w=None if limit is None else limit / 1000,
        default_power_limit_w=None if default is None else default / 1000,
        slowdowns=None if reasons is None else tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
        ecc=None if ecc is None else bool(ecc[0]),
        persistence=None if persistence is None else bool(persistence),
        clock_mhz=read(device).clock_mhz,
        max_clock_mhz=_query(device, lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
    )


def read(device: int) -> Reading:
    """Clock and power now.

    Args:
        device: CUDA device index.
    """
    clock = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    milliwatts = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle))
    return Reading(clock, None if milliwatts is None else milliwatts / 1000)


def uuid(device: int) -> str | None:
    """The identity of a GPU, the same in every process and for every CUDA_VISIBLE_DEVICES."""
    found = _query(device, lambda nvml, handle: nvml.nvmlDeviceGetUUID(handle))
    return None if found is None else _text(found)


def driver_version() -> str | None:
    """The NVIDIA driver, such as "580.159.04"."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return None


def _query(device: int, ask: Any) -> Any:
    nvml, handle = _nvml(), _handle(device)
    if nvml is None or handle is None:
        return None
    try:
        return ask(nvml, handle)
    except nvml.NVMLError:
        return None


@cache
def _nvml() -> ModuleType | None:
    try:
        # Loaded here: it comes with the extras for GPUs, and its library with the driver.
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    module: ModuleType = pynvml
    return module


@cache
def _handle(device: int) -> Any:
    """NVML's handle. Found by PCI address: NVML numbers all GPUs of the machine, CUDA only those it may see."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(driver.pci_bus_id(device))
    except (LaunchError, nvml.NVMLError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
