"""The kernel of cuda_src/pack.cuh on the fake GPU: thread by thread, with the arithmetic that it is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cupygemm.kernels.pack_kernel import CHUNK_ELEMENTS, MAX_THREAD_CHUNKS, THREADS, PackArguments, PackedOperand
from cupygemm.kernels.raster import Divisor

if TYPE_CHECKING:
    from tests.fake_gpu import FakeGpu

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Packed:
    """A launch: blocks, and how many operands it copies."""

    grid: int
    operands: int


class FakePackKernel:
    """A function of a loaded module."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int) -> None:
        (pointer,) = arguments
        assert (block, shared_mem) == ((THREADS,), 0)
        # Copied by the launch: what it points to may be gone when a graph is replayed.
        told = PackArguments.from_buffer_copy(PackArguments.from_address(pointer.address))
        shares = [told.first_blocks, grid[0] - told.first_blocks]
        self.gpu.packed.append(Packed(grid[0], sum(share > 0 for share in shares)))

        def run() -> None:
            for operand, blocks in zip(told.operands, shares, strict=True):
                if blocks:
                    self._copy(operand, blocks)

        self.gpu.run(run)

    def _copy(self, operand: PackedOperand, blocks: int) -> None:
        """What `blocks` blocks of the kernel do for an operand; each chunk must be some thread's, and nobody else's."""
        assert 1 <= operand.thread_chunks <= MAX_THREAD_CHUNKS
        block, chunk, thread = np.mgrid[:blocks, : operand.thread_chunks, :THREADS].reshape(3, -1)
        index = (block * operand.thread_chunks + chunk) * THREADS + thread
        index = index[index < operand.chunks]
        assert np.array_equal(np.sort(index), np.arange(operand.chunks))
        row, in_row = _divided(index, operand.row_chunks)
        matrix, in_matrix = _divided(row, operand.matrix_rows)
        column = in_row[:, None] * CHUNK_ELEMENTS + np.arange(CHUNK_ELEMENTS)
        start = matrix * operand.matrix_stride + in_matrix * operand.row_stride
        addresses = operand.source + 2 * (start[:, None] + column * operand.element_stride)
        is_there = column < operand.columns
        low, high = int(addresses[is_there].min()), int(addresses[is_there].max()) + 2
        # The kernel reads whole pieces of 16 bytes within these.
        assert (low, high) == (operand.source + 2 * operand.span_begin, operand.source + 2 * operand.span_end)
        source = self.gpu.span(low, high).view(np.uint16)
        values = np.where(is_there, source[np.where(is_there, (addresses - low) // 2, 0)], np.uint16(0))
        assert operand.copy % 16 == 0
        copy = self.gpu.span(operand.copy, operand.copy + 16 * operand.chunks).view(np.uint16)
        copy.reshape(-1, CHUNK_ELEMENTS)[index] = values


def _divided(values: Indices, by: Divisor) -> tuple[Indices, Indices]:
    """Quotients, as `Divisor::quotient` of cuda_src/raster.cuh has them, and remainders."""
    quotients = (values.astype(np.uint64) * np.uint64(by.multiplier) >> np.uint64(by.shift)).astype(np.int64)
    return quotients, values - quotients * by.divisor
