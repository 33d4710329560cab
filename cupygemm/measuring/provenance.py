"""Where a recorded number comes from: device, software and commit."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cupygemm import settings
from cupygemm.kernels import compiler, driver, kernel_source
from cupygemm.measuring import cublas, telemetry
from cupygemm.measuring.telemetry import Reading

DIRTY_SUFFIX = "-dirty"


def collect(
    device: int | None, command: str | None = None, commit: str | None = None, reading: Reading | None = None
) -> dict[str, Any]:
    """Everything that a recorded result says about its origin; null where something is not there or not known.

    Args:
        device: CUDA index of the GPU it was recorded on; None for none, and then nothing of CUDA is asked.
        command: that made it; None for the command line of this process.
        commit: of the source, in place of what git says: a hash, with "-dirty" behind it if files had been
            changed. None to ask the environment (CUPYGEMM_COMMIT), then git.
        reading: clock and power during the run; None to read them now.
    """
    commit, dirty = _commit(commit or settings.commit())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        **_device(device, reading),
        "nvrtc": compiler.nvrtc_version_if_any(),
        "python": platform.python_version(),
        "source_digest": compiler.source_digest(),
        "cp_async_source_digest": kernel_source.cp_async_source_digest(),
        "command": shlex.join(sys.argv) if command is None else command,
    }


def _device(device: int | None, reading: Reading | None) -> dict[str, Any]:
    if device is None:
        return dict.fromkeys(("device", "driver", "cuda", "cublas", "cupy", "sm_clock_mhz", "power_w"))
    reading = telemetry.read(device) if reading is None else reading
    cupy = driver.cupy()
    return {
        "device": driver.device_spec(device).name,
        "driver": telemetry.driver_version(),
        "cuda": _dotted(cupy.cuda.runtime.driverGetVersion()),
        "cublas": cublas.version(),
        "cupy": cupy.__version__,
        "sm_clock_mhz": reading.clock_mhz,
        "power_w": reading.power_w,
    }


def _dotted(version: int) -> str:
    """13000 → "13.0"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _commit(named: str | None) -> tuple[str | None, bool | None]:
    """The commit and whether files differ from it."""
    if named:
        return named.removesuffix(DIRTY_SUFFIX), named.endswith(DIRTY_SUFFIX)
    root = Path(__file__).resolve().parent.parent.parent
    # An installed package may lie inside somebody else's repository.
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain")
    return commit, None if commit is None or changes is None else bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
