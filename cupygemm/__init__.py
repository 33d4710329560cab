"""Hopper matrix multiplication for CuPy, tuned by search.

    import cupygemm
    c = cupygemm.matmul(a, b)       # CuPy arrays; cupy.matmul where no config is known
    cupygemm.use("tuned.yaml")      # more configs, from: cupygemm tune 2048x2048x4096 -o tuned.yaml

Public names are loaded at their first use: importing the package needs neither CuPy nor a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cupygemm.bundles.bundle import Bundle
    from cupygemm.choosing.choice import Choice
    from cupygemm.config import KernelConfig, KernelSpec
    from cupygemm.device import DeviceSpec
    from cupygemm.errors import (
        BundleError,
        CaptureError,
        CompileError,
        ConfigError,
        CupygemmError,
        FileError,
        LaunchError,
        ProblemError,
        SettingError,
        VerificationError,
    )
    from cupygemm.machine.show_config import show_config
    from cupygemm.problem import Problem
    from cupygemm.runtime.api import explain, matmul, plan, use
    from cupygemm.runtime.patching import patch
    from cupygemm.runtime.planned import MatmulPlan
    from cupygemm.runtime.warming import Warmup, warmup

_MODULE_OF = {
    "Bundle": "bundles.bundle",
    "BundleError": "errors",
    "CaptureError": "errors",
    "Choice": "choosing.choice",
    "CompileError": "errors",
    "ConfigError": "errors",
    "CupygemmError": "errors",
    "DeviceSpec": "device",
    "FileError": "errors",
    "KernelConfig": "config",
    "KernelSpec": "config",
    "LaunchError": "errors",
    "MatmulPlan": "runtime.planned",
    "Problem": "problem",
    "ProblemError": "errors",
    "SettingError": "errors",
    "VerificationError": "errors",
    "Warmup": "runtime.warming",
    "explain": "runtime.api",
    "matmul": "runtime.api",
    "patch": "runtime.patching",
    "plan": "runtime.api",
    "show_config": "machine.show_config",
    "use": "runtime.api",
    "warmup": "runtime.warming",
}

__all__ = [
    "Bundle",
    "BundleError",
    "CaptureError",
    "Choice",
    "CompileError",
    "ConfigError",
    "CupygemmError",
    "DeviceSpec",
    "FileError",
    "KernelConfig",
    "KernelSpec",
    "LaunchError",
    "MatmulPlan",
    "Problem",
    "ProblemError",
    "SettingError",
    "VerificationError",
    "Warmup",
    "__version__",
    "explain",
    "matmul",
    "patch",
    "plan",
    "show_config",
    "use",
    "warmup",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'cupygemm' has no attribute {name!r}")
    value = getattr(import_module(f"cupygemm.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
