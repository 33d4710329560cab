"""The folder in which `compiler` keeps cubins: what is in it, and how it is emptied."""

from __future__ import annotations

from pathlib import Path

from cupygemm import settings

_SUFFIXES = (".json", ".cubin")
"""The description first: a cubin without one is no entry, so that nothing half-deleted is ever read."""

ELSEWHERE = "CUPYGEMM_CACHE_DIR names another folder"
"""What to do where it cannot be written."""


def folder() -> Path:
    """Where the entries are; it may not exist yet."""
    return settings.cache_dir() / "kernels"


def kernels() -> list[Path]:
    """The cubins, sorted."""
    return sorted(folder().glob("*.cubin"))


def size_bytes() -> int:
    """What the cache takes on disk."""
    return sum(path.stat().st_size for suffix in _SUFFIXES for path in folder().glob(f"*{suffix}"))


def clear() -> int:
    """Deletes all entries, and nothing else that may lie in the folder; the number of kernels deleted.

    Other processes may go on: what they need again they compile again.

    Raises:
        OSError: a file cannot be deleted.
    """
    deleted = len(kernels())
    for suffix in _SUFFIXES:
        for path in folder().glob(f"*{suffix}"):
            path.unlink(missing_ok=True)
    return deleted
