"""Environment variables and folders: the only module that reads the environment.

CUPYGEMM_CACHE_DIR   where compiled kernels are kept (default: the user's cache folder)
CUPYGEMM_DATA_DIR    where the trial store is kept (default: the user's data folder)
CUPYGEMM_BUNDLE      a YAML bundle that `matmul` asks before the shipped one; "none" for neither
CUPYGEMM_UNSEEN      "off": cuBLAS multiplies what no bundle has a config for
CUPYGEMM_COMPILE     "background" for cuBLAS while a kernel is compiled; "now", the default, to wait for it
CUPYGEMM_COMMIT      the commit that recorded results name, in place of what git says

docs/environment.md tells more of them, and of those that only tests read.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from cupygemm.errors import SettingError

NO_BUNDLE = "none"
"""What CUPYGEMM_BUNDLE says where not even the shipped bundle is wanted; a file of that name is written ./none."""

OFF = "off"
"""What CUPYGEMM_UNSEEN says where nothing is to be expected of shapes that no bundle has."""

COMPILE_NOW, COMPILE_BACKGROUND = "now", "background"
"""What CUPYGEMM_COMPILE may say."""

_OTHERS = ("CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUPY_ACCELERATORS", "CUPY_CACHE_DIR", "CUPY_TF32")
"""What else decides what is found and what runs here."""


KNOWN = (
    "CUPYGEMM_BUNDLE",
    "CUPYGEMM_CACHE_DIR",
    "CUPYGEMM_COMMIT",
    "CUPYGEMM_COMPILE",
    "CUPYGEMM_DATA_DIR",
    "CUPYGEMM_UNSEEN",
    # read by tests
    "CUPYGEMM_CUPY_REPOSITORY",
    "CUPYGEMM_REQUIRE_GPU",
    "CUPYGEMM_REQUIRE_KERNEL_TUNER",
    "CUPYGEMM_REQUIRE_NVRTC",
    "CUPYGEMM_REQUIRE_OPTUNA",
)
"""Every variable with our prefix that something reads."""


def variables() -> dict[str, str]:
    """What is set of the environment that matters here, by name."""
    return {
        name: value for name, value in sorted(os.environ.items()) if name.startswith("CUPYGEMM_") or name in _OTHERS
    }


def checked_variables() -> dict[str, str]:
    """The same, with what is wrong behind a value that may not be."""
    found = variables()
    for name, read in (("CUPYGEMM_COMPILE", compiles_in_background), ("CUPYGEMM_UNSEEN", unseen_in_force)):
        try:
            read()
        except SettingError as error:
            found[name] += f", which is an error: {error}"
    return found


def unknown_variables() -> dict[str, str | None]:
    """Variables with our prefix that nothing reads, each with the one that its name is most like, if it is like any."""
    unknown = [name for name in variables() if name.startswith("CUPYGEMM_") and name not in KNOWN]
    return {name: next(iter(get_close_matches(name, KNOWN, n=1, cutoff=0.8)), None) for name in unknown}


def cache_dir() -> Path:
    """Folder of the cubin cache; it may not exist yet."""
    return Path(os.environ.get("CUPYGEMM_CACHE_DIR") or user_cache_path("cupygemm", appauthor=False))


def data_dir() -> Path:
    """Folder of the trial store; it may not exist yet."""
    return Path(os.environ.get("CUPYGEMM_DATA_DIR") or user_data_path("cupygemm", appauthor=False))


def bundle_path() -> Path | None:
    """The bundle named by the environment, if any."""
    path = os.environ.get("CUPYGEMM_BUNDLE")
    return Path(path) if path and path != NO_BUNDLE else None


def shipped_in_force() -> bool:
    """Whether the bundle of the package is asked."""
    return os.environ.get("CUPYGEMM_BUNDLE") != NO_BUNDLE


def unseen_in_force() -> bool:
    """Whether own kernels may run that are only expected to be faster.

    Raises:
        SettingError: the variable says something else than it may.
    """
    value = os.environ.get("CUPYGEMM_UNSEEN")
    if value and value != OFF:
        raise SettingError(
            f"CUPYGEMM_UNSEEN is {value!r}: it may be {OFF!r}, to leave to cuBLAS what no bundle has a config for, or "
            "not be set, to have the forecast choose"
        )
    return value != OFF


def compiles_in_background() -> bool:
    """Whether a call that needs a kernel compiled is to run cuBLAS meanwhile.

    Raises:
        SettingError: the variable says something else than it may.
    """
    value = os.environ.get("CUPYGEMM_COMPILE") or COMPILE_NOW
    if value not in (COMPILE_NOW, COMPILE_BACKGROUND):
        raise SettingError(
            f"CUPYGEMM_COMPILE is {value!r}: it may be {COMPILE_NOW!r}, to wait until a kernel is compiled, as where "
            f"it is not set, or {COMPILE_BACKGROUND!r}, to run cuBLAS meanwhile"
        )
    return value == COMPILE_BACKGROUND


def commit() -> str | None:
    """The commit named by the environment, if any."""
    return os.environ.get("CUPYGEMM_COMMIT") or None
