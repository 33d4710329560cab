"""CUDA graphs that are being captured."""

from __future__ import annotations

from cupygemm import driver


def is_capturing() -> bool:
    """Whether CuPy's current stream is being captured into a CUDA graph."""
    stream = driver.cupy().cuda.get_current_stream()
    # The legacy default stream cannot be captured, and asking it during another capture is an error.
    return stream.ptr != 0 and bool(stream.is_capturing())
