"""The kernel that copies operands for TMA (cuda_src/pack.cuh): compiled, loaded on a device and launched."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from cupygemm.errors import CompileError, CupygemmError, LaunchError
from cupygemm.kernels import compiler, driver
from cupygemm.kernels.raster import Divisor

PAGE, ENTRY = "pack.cuh", "pack_kernel"
THREADS = 256
MAX_THREAD_CHUNKS = 4
CHUNK_ELEMENTS = 8
"""As the page has them: threads of a block, chunks of a thread at most, elements of a chunk."""
MAX_CHUNKS = 2**31 - 2048
"""Of a copy: a thread's last chunk, there or not, must have a number below 2^31. They are 32 GiB."""


class PackedOperand(ctypes.Structure):
    """`PackedOperand` of cuda_src/pack.cuh."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("matrix_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("element_stride", ctypes.c_int64),
        ("span_begin", ctypes.c_int64),
        ("span_end", ctypes.c_int64),
        ("columns", ctypes.c_int),
        ("chunks", ctypes.c_int),
        ("thread_chunks", ctypes.c_int),
        ("row_chunks", Divisor),
        ("matrix_rows", Divisor),
    )

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return int(-(-self.chunks // (self.thread_chunks * THREADS)))


class PackArguments(ctypes.Structure):
    """`PackArguments` of cuda_src/pack.cuh."""

    _fields_ = (("operands", PackedOperand * 2), ("first_blocks", ctypes.c_int))


class PackKernel:
    """The kernel on one device."""

    def __init__(self, index: int) -> None:
        """Compiles it, or finds it in the cache, and loads it.

        Args:
            index: of the CUDA device.

        Raises:
            CompileError: NVRTC is missing, or the cache cannot be written.
            LaunchError: the driver refused the cubin.
        """
        cupy, compiled = driver.cupy(), compiler.compile_page(PAGE, ENTRY)
        try:
            with cupy.cuda.Device(index):
                self._kernel = cupy.RawModule(path=str(compiled.cubin)).get_function(compiled.lowered_name)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise LaunchError(f"the driver refused {compiled.cubin.name}: {error}") from error

    def __call__(self, operands: Sequence[PackedOperand]) -> None:
        """Copies one operand or two on the current stream of the device, which is the current one."""
        blocks = [operand.blocks for operand in operands]
        # Where there is one operand the second is never looked at.
        arguments = PackArguments((PackedOperand * 2)(*operands), blocks[0])
        pointer = driver.cupy().cuda.function.CPointer(ctypes.addressof(arguments))
        # The driver copies the arguments before the launch returns.
        self._kernel((sum(blocks),), (THREADS,), (pointer,), shared_mem=0)


_loaded: dict[int, PackKernel | CupygemmError] = {}
"""By device: the kernel, or why it cannot be had, which is found out once."""


def is_loaded(index: int) -> bool:
    """Whether a device has the kernel already: loading it cannot be captured in a CUDA graph."""
    return index in _loaded


def is_compiled() -> bool:
    """Whether the disk cache has it.

    Raises:
        CompileError: NVRTC, by whose version kernels are kept, cannot be loaded.
    """
    return compiler.is_page_cached(PAGE, ENTRY)


def compile_now() -> None:
    """Compiles it into the disk cache, if it is not there.

    Raises:
        CompileError: NVRTC is missing, or the cache cannot be written.
    """
    compiler.compile_page(PAGE, ENTRY)


def give_up(index: int, error: CupygemmError) -> None:
    """Remembers why a device cannot have it, if it does not have it."""
    _loaded.setdefault(index, error)


def pack_kernel(index: int) -> PackKernel:
    """The kernel on a device, loaded once.

    Raises:
        CompileError, LaunchError: as `PackKernel`.
    """
    if index not in _loaded:
        # Two threads may both load it; the one that comes second does no harm.
        try:
            _loaded[index] = PackKernel(index)
        except (CompileError, LaunchError) as error:
            _loaded[index] = error
    found = _loaded[index]
    if isinstance(found, CupygemmError):
        # Else the traceback of one error would grow with every call.
        raise found.with_traceback(None)
    return found
