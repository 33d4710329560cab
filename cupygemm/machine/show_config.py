"""`show_config`: what there is, and what is in force."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from cupygemm import __version__, settings
from cupygemm.bundles.bundle import gpu_words
from cupygemm.errors import BundleError
from cupygemm.kernels import compiler, driver, kernel_cache
from cupygemm.measuring import telemetry
from cupygemm.runtime import api
from cupygemm.text import count, one_line, printable

_PACKAGES = ("numpy", "cuda-bindings", "ml-dtypes", "nvidia-ml-py")


def show_config(mode: str = "stdout") -> dict[str, dict[str, Any]] | None:
    """Versions, devices, bundles in force, caches and environment variables, for a bug report or a look.

    Works without CuPy and without a GPU, and compiles nothing. `cupygemm doctor` looks deeper and says what to do.

    Args:
        mode: "stdout" to print it; "dicts" to have it.

    Returns:
        With "dicts", the sections `versions`, `devices`, `bundles`, `caches` and `environment`; None where something is
        not there.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"show_config(mode={mode!r}): the modes are 'stdout' and 'dicts'")
    sections = {
        "versions": _versions(),
        "devices": _devices(),
        "bundles": _bundles(),
        "caches": _caches(),
        "environment": settings.checked_variables(),
    }
    if mode == "dicts":
        return sections
    sys.stdout.write("\n".join(_lines(sections)) + "\n")
    return None


def _versions() -> dict[str, Any]:
    newest = driver.newest_cuda()
    return {
        "cupygemm": __version__,
        "kernel sources": compiler.source_digest(),
        "python": platform.python_version(),
        "cupy": _cupy_version(),
        **{name: _version(name) for name in _PACKAGES},
        "nvrtc": compiler.nvrtc_version_if_any(),
        "driver": telemetry.driver_version(),
        "cuda of the driver": None if newest is None else ".".join(map(str, newest)),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cupy_version() -> str | None:
    # Its wheels have a name for each CUDA.
    wheels = metadata.packages_distributions().get("cupy", [])
    return ", ".join(f"{_version(name)} ({name})" for name in sorted(set(wheels))) or None


def _devices() -> dict[str, Any]:
    specs = {index: driver.device_spec(index) for index in driver.devices()}
    return {
        str(index): f"{gpu_words(spec)}, {'own kernels' if spec.is_hopper else 'cuBLAS: it is not a Hopper GPU'}"
        for index, spec in specs.items()
    }


def _bundles() -> dict[str, Any]:
    """In the order in which they are asked."""
    try:
        bundles = api.bundles_in_force()
    except BundleError as error:
        return {"1": f"cannot be read: {one_line(error)}"}
    return {
        str(place): f"{name}, {count(len(bundle.entries), 'entry', 'entries')} of {bundle.device.name}"
        for place, (name, bundle) in enumerate(bundles, 1)
    }


def _caches() -> dict[str, Any]:
    held = f"{count(len(kernel_cache.kernels()), 'kernel')}, {kernel_cache.size_bytes()} bytes"
    return {"kernels": f"{kernel_cache.folder()}, {held}", "trials": str(settings.data_dir())}


def _lines(sections: dict[str, dict[str, Any]]) -> Iterator[str]:
    for section, facts in sections.items():
        yield f"{section}:{'' if facts else ' none'}"
        for name, value in facts.items():
            yield printable(f"  {name}: {'not there' if value is None else value}")
