"""The cores that this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """How many: in a container fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
