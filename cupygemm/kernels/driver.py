"""CuPy and the CUDA driver, as far as cupygemm asks them: devices, how many CTAs fit at once, dependent launches.

CuPy and cuda.bindings are loaded at the first use, so that the package works where there is neither.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cupygemm.device import DeviceSpec
from cupygemm.errors import LaunchError, not_installed

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Is there while NVIDIA's kernel module is loaded."""


@cache
def cupy() -> ModuleType:
    """The CuPy module.

    Raises:
        LaunchError: CuPy is not installed; where there is no driver either, that is said first.
        OSError: CuPy, which makes the folder of its own kernels as it is imported, cannot make it.
    """
    try:
        return import_module("cupy")
    except ImportError as error:
        if not KERNEL_MODULE.exists():
            raise LaunchError("no NVIDIA driver is loaded here, and no CuPy is installed: this needs a GPU") from error
        raise LaunchError(not_installed("CuPy", "cu13")) from error
    except OSError as error:
        if error.filename is None:
            raise
        why = f"{error.strerror}: CuPy cannot be imported without this folder; CUPY_CACHE_DIR names another"
        raise OSError(error.errno, why, error.filename) from error


@cache
def bindings() -> ModuleType:
    """The module cuda.bindings.driver.

    Raises:
        LaunchError: cuda.bindings is not installed.
    """
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise LaunchError(not_installed("cuda-bindings", "cu13")) from error


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a cuda.bindings call.

    Raises:
        LaunchError: the driver refused the call; the message has its name for the error.
    """
    status, *values = result
    if int(status) != 0:
        raise LaunchError(f"the CUDA driver answered {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def status_name(status: int) -> str:
    """What the driver calls one of its answers that came as a number; that number where cuda.bindings is missing."""
    try:
        return str(bindings().CUresult(status).name)
    except (LaunchError, ValueError):
        return f"error {status}"


@cache
def device_spec(index: int) -> DeviceSpec:
    """The properties of CUDA device `index`.

    Raises:
        LaunchError: CuPy is not installed, or there is no such device.
    """
    runtime = cupy().cuda.runtime
    try:
        properties = runtime.getDeviceProperties(index)
        attribute = runtime.deviceGetAttribute
        return DeviceSpec(
            name=properties["name"].decode(),
            compute_capability=(properties["major"], properties["minor"]),
            sm_count=properties["multiProcessorCount"],
            shared_bytes=properties["sharedMemPerBlockOptin"],
            l2_bytes=properties["l2CacheSize"],
            # cudaDevAttrClockRate, kHz: CUDA 13 dropped the field of the properties, not the attribute.
            clock_mhz=attribute(13, index) // 1000,
        )
    except runtime.CUDARuntimeError as error:
        there = devices()
        here = f"the devices here are {', '.join(map(str, there))}" if there else "no NVIDIA GPU or driver is here"
        raise LaunchError(f"CUDA device {index}: {error}; {here}, see `cupygemm doctor`") from error


def pci_bus_id(index: int) -> str:
    """The PCI address of CUDA device `index`, such as "0000:3b:00.0".

    Raises:
        LaunchError: CuPy is not installed, or there is no such device.
    """
    runtime = cupy().cuda.runtime
    try:
        return str(runtime.deviceGetPCIBusId(index))
    except runtime.CUDARuntimeError as error:
        raise LaunchError(f"CUDA device {index}: {error}") from error


@cache
def devices() -> tuple[int, ...]:
    """Indices of all CUDA devices; empty without CuPy, a driver or a device."""
    return tuple(range(_ask(lambda runtime: runtime.getDeviceCount()) or 0))


def why_not_asked() -> str | None:
    """Why no device was looked for though a driver is loaded; None where that is not so."""
    if not KERNEL_MODULE.exists():
        return None
    try:
        cupy()
    except LaunchError as error:
        return str(error)
    return None


def newest_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the installed driver runs; None without CuPy or a driver."""
    version = _ask(lambda runtime: runtime.driverGetVersion())
    return (version // 1000, version % 1000 // 10) if version else None


def _ask(question: Callable[[Any], int]) -> int | None:
    """What CUDA's runtime answers, or None where CuPy or a driver is missing."""
    try:
        runtime = cupy().cuda.runtime
    except LaunchError:
        return None
    try:
        return int(question(runtime))
    except runtime.CUDARuntimeError:
        return None


@cache
def hopper_devices() -> tuple[int, ...]:
    """Indices of the CUDA devices that the kernels run on; empty without CuPy, a driver or such a device."""
    return tuple(index for index in devices() if device_spec(index).is_hopper)


def max_active_clusters(function: int, cluster_size: int, threads: int, shared_bytes: int) -> int:
    """How many clusters of a kernel the current device holds at once.

    Uneven GPCs, MIG slices and other products hold fewer than SMs / cluster_size: persistent grids must not assume it.

    Args:
        function: CUfunction of the kernel.
        cluster_size: CTAs of a cluster, along x.

    Raises:
        LaunchError: the driver refused.
    """
    attribute = bindings().CUlaunchAttribute()
    attribute.id = bindings().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = cluster_size
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    config = _launch_config(cluster_size, threads, shared_bytes, attribute)
    return int(checked(bindings().cuOccupancyMaxActiveClusters(bindings().CUfunction(function), config)))


def max_active_blocks(function: int, threads: int, shared_bytes: int) -> int:
    """How many CTAs of a kernel one SM of the current device holds at once.

    Raises:
        LaunchError: the driver refused.
    """
    driver = bindings()
    result = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(driver.CUfunction(function), threads, shared_bytes)
    return int(checked(result))


class DependentLaunch:
    """Launches a kernel so that it may begin before the kernel before it in the stream has ended."""

    def __init__(self, function: int, grid: int, threads: int, shared_bytes: int) -> None:
        """Takes a CUfunction, and a grid in CTAs along x."""
        attribute = bindings().CUlaunchAttribute()
        attribute.id = bindings().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        self._config = _launch_config(grid, threads, shared_bytes, attribute)
        self._function = bindings().CUfunction(function)
        self._lock = threading.Lock()  # the config names the stream

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        """Launches on a CUstream; `addresses` are those of the arguments in host memory, which are copied.

        Raises:
            LaunchError: the driver refused.
        """
        driver = bindings()
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        with self._lock:
            self._config.hStream = driver.CUstream(stream)
            checked(driver.cuLaunchKernelEx(self._config, self._function, ctypes.addressof(arguments), 0))


def _launch_config(grid: int, threads: int, shared_bytes: int, attribute: Any) -> Any:
    config = bindings().CUlaunchConfig()
    config.gridDimX = grid
    config.gridDimY = config.gridDimZ = 1
    config.blockDimX = threads
    config.blockDimY = config.blockDimZ = 1
    config.sharedMemBytes = shared_bytes
    config.attrs = [attribute]
    config.numAttrs = 1
    return config
