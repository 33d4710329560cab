"""What a row of recorded times says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def over_cublas(row: Mapping[str, Any]) -> float:
    """cuBLAS's time over what was measured beside it."""
    return float(row["cublas_us"] / row["cupygemm_us"])
