"""CUDA graphs that are being captured, and device memory for what is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from cupygemm.errors import CaptureError
from cupygemm.kernels import driver


def is_capturing() -> bool:
    """Whether CuPy's current stream is being captured into a CUDA graph."""
    stream = driver.cupy().cuda.get_current_stream()
    # The legacy default stream cannot be captured, and asking it during another capture is an error.
    return stream.ptr != 0 and bool(stream.is_capturing())


class Place(NamedTuple):
    """An address: what CuPy's arrays have as `data`."""

    ptr: int


class GraphMemory(NamedTuple):
    """Device memory of a CUDA graph; as far as `Packing` looks at a buffer.

    Attributes:
        data: where it begins, a multiple of 256.
        nbytes: its size.
    """

    data: Place
    nbytes: int


@contextmanager
def graph_memory(size: int) -> Iterator[GraphMemory]:
    """Device memory for what is captured inside, on the current stream, which is being captured into a CUDA graph.

    The graph itself allocates it and frees it again, in nodes before and behind: its address stays the same as long as
    there is the graph, whoever else is gone by then, and what lies there lives for a replay. The driver sees to it that
    no two replays that may run at once, of one graph or of two, share it (CUDA C++ Programming Guide, graph memory
    nodes). CuPy's pool could not: it would hand the memory to others between replays.

    Args:
        size: bytes, at least 1.

    Raises:
        CaptureError: the driver has no such memory.
    """
    cupy = driver.cupy()
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
    try:
        place = runtime.mallocAsync(size, stream)
    except runtime.CUDARuntimeError as error:
        raise CaptureError(
            f"a CUDA graph is being captured, and the driver has no memory of {size} bytes for it: {error}"
        ) from error
    try:
        yield GraphMemory(Place(place), size)
    except BaseException:
        # What went wrong first is what is told; the capture may have ended with it.
        with suppress(runtime.CUDARuntimeError):
            runtime.freeAsync(place, stream)
        raise
    try:
        runtime.freeAsync(place, stream)
    except runtime.CUDARuntimeError as error:
        raise CaptureError(f"memory of the CUDA graph that is being captured cannot be freed in it: {error}") from error
