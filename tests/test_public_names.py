"""The public surface is this list, and none of it needs CuPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cupygemm

PUBLIC = {
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
}

WITHOUT_GPU_LIBRARIES = """
import sys
for name in ("cupy", "cuda", "jax", "pynvml"):
    sys.modules[name] = None  # importing it raises ImportError
import cupygemm
for name in cupygemm.__all__:
    getattr(cupygemm, name)
"""


def test_the_public_names_are_the_list():
    assert set(cupygemm.__all__) == PUBLIC
    assert len(cupygemm.__all__) == len(PUBLIC)
    assert set(dir(cupygemm)) >= PUBLIC


def test_every_public_name_resolves_without_cupy_cuda_or_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_GPU_LIBRARIES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = cupygemm.no_such_name
