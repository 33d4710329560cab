"""Kernels of the fake GPU: they compute with what their TMA descriptors and arguments say lies in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.epilogue import NONE, Epilogue
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.kernels.epilogue_terms import pair_alignment
from cupygemm.kernels.kernel_plan import _Arguments
from cupygemm.kernels.operands import Operands
from cupygemm.kernels.tensor_map import Matrix
from cupygemm.measuring.verify import activated, numpy_dtype

if TYPE_CHECKING:
    from tests.fake_gpu import FakeGpu

ERF = np.vectorize(math.erf, otypes=[np.float64])


class CudaError(RuntimeError):
    """In place of CuPy's exceptions."""


@dataclass
class Launched:
    """A launch of a loaded kernel: CTAs, threads of one, bytes of shared memory, the device it went to, and whether it
    may begin before the kernel before it has ended."""

    grid: int
    threads: int
    shared_bytes: int
    device: int
    dependent: bool = False


class FakeKernel:
    """A function of a loaded module."""

    def __init__(self, gpu: FakeGpu, compiled: CompiledKernel) -> None:
        self.gpu = gpu
        self.compiled = compiled
        self.device = gpu.current[-1]
        self.kernel = SimpleNamespace(ptr=id(self))
        self.max_dynamic_shared_size_bytes = 48 * 1024
        gpu._kernels.append(self)

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int) -> None:
        gpu = self.gpu
        if shared_mem > self.max_dynamic_shared_size_bytes or gpu.current[-1] != self.device:
            raise CudaError("invalid argument")
        gpu.launches.append(Launched(grid[0], block[0], shared_mem, self.device))
        # Arguments are copied by the launch: what they point to may be gone when a graph is replayed.
        maps = [gpu.described(pointer.address) for pointer in arguments[:3]]
        told = _Arguments.from_buffer_copy(_Arguments.from_address(arguments[3].address))
        assert all(each is None or each.pointer % TMA_ALIGNMENT == 0 for each in maps)
        gpu.run(lambda: self._compute(*maps, told))

    def _compute(self, map_a: Any, map_b: Any, map_out: Any, told: _Arguments) -> None:
        config = self.compiled.config
        spec, (m, n, k) = self.compiled.spec.seen_by(config), (told.m, told.n, told.k)
        a, b = self._operand(map_a, told, told.a_step), self._operand(map_b, told, told.b_step)
        a = a.swapaxes(1, 2) if spec.a_major == "mn" else a
        b = b if spec.b_major == "mn" else b.swapaxes(1, 2)
        if config.cp_async_stages:
            assert (told.a, told.b) == (map_a.pointer, map_b.pointer), "copied from elsewhere than loaded"
        if config.cp_async_stages or not config.store_stages:
            map_out = self._rows(told, told.out, told.out_row_stride, told.out_batch_stride)
        out = self.gpu.memory(map_out)
        out = out.swapaxes(-1, -2) if spec.out_transposed else out
        assert (a.shape[1:], b.shape[1:], out.shape[-2:]) == ((m, k), (k, n), (m, n))
        assert map_out.depth == (len(a) if spec.batched else 0)
        added = self._added(told, map_out)
        out[...] = np.nan  # tiles are stored while others are still to be read
        total = self.gpu.accumulate(a, b)
        if spec.epilogue != NONE:
            total = np.float32(told.alpha) * total + added()
            total = activated(Epilogue.parse(spec.epilogue).activation, total, ERF)
        out[...] = total if spec.batched else total[0]
        self.gpu.afterwards(map_out)

    def _operand(self, matrix: Matrix, told: _Arguments, step: int) -> Any:
        """[batch, rows, columns] as TMA loads them: for product z the matrix z · step of a stack."""
        assert (matrix.depth > 0) == self.compiled.spec.batched
        batch = told.raster.tiles // told.matrix_tiles.divisor
        found = self.gpu.memory(matrix)
        return np.stack([found[z * step] for z in range(batch)]) if matrix.depth else found[None]

    def _rows(self, told: _Arguments, pointer: int, row_stride: int, batch_stride: int) -> Matrix:
        """What threads address as the result is addressed: strides in elements of its dtype."""
        spec = self.compiled.spec
        item = numpy_dtype(spec.out_dtype).itemsize
        depth = told.raster.tiles // told.matrix_tiles.divisor if spec.batched else 0
        rows, columns = self.compiled.config.as_computed(told.m, told.n)
        return Matrix(pointer, rows, columns, row_stride * item, spec.out_dtype, depth, batch_stride * item)

    def _added(self, told: _Arguments, map_out: Matrix) -> Any:
        """Gives what the epilogue adds, once all has been stored to that can be."""
        spec = self.compiled.spec.seen_by(self.compiled.config)
        columns = self.compiled.config.as_computed(told.m, told.n)[1]
        pairs = pair_alignment(columns, numpy_dtype(spec.out_dtype).itemsize)
        assert (told.bias or 0) % pairs == (told.residual or 0) % pairs == 0
        epilogue = Epilogue.parse(spec.epilogue)
        residual: Any = None
        if epilogue.residual:
            matrix = self._rows(told, told.residual, told.residual_row_stride, told.residual_batch_stride)
            residual = self.gpu.memory(matrix)
            # A thread that stores where it has read spoils it for no other.
            residual = residual.copy() if matrix == map_out else residual

        def added() -> Any:
            total = np.float32(0)
            if epilogue.bias != NONE:
                length = told.n if epilogue.bias == "n" else told.m
                bias = self.gpu.memory(Matrix(told.bias, 1, length, 0, spec.out_dtype))[0].astype(np.float32)
                total = total + (bias if epilogue.bias == "n" else bias[:, None])
            if residual is not None:
                total = total + np.float32(told.beta) * residual.astype(np.float32)
            return total

        return added


def product(a: Any, b: Any, out: Any) -> None:
    """Right: fp32 products, rounded once."""
    out[...] = a.astype(np.float32) @ b.astype(np.float32)


def do_epilogue(epilogue: Epilogue, wide: str, product: Any, *rest: Any) -> None:
    """What a kernel of `elementwise.epilogue_kernel` does with its arguments."""
    *terms, alpha, beta, out = rest
    total = np.asarray(product, wide) * np.dtype(wide).type(alpha)
    if epilogue.bias != NONE:
        total = total + np.asarray(terms.pop(0), wide)
    if epilogue.residual:
        total = total + np.asarray(terms.pop(0), wide) * np.dtype(wide).type(beta)
    assert terms == []
    assert total.shape == out.shape
    out[...] = activated(epilogue.activation, total, ERF)


def computed(given: Operands, epilogue: str, total: Any = None) -> Any:
    """What a kernel would store: all in float32, rounded once to the dtype of `out`."""
    terms = Epilogue.parse(epilogue)
    if total is None:
        total = given.a.astype(np.float32) @ given.b.astype(np.float32)
    total = np.float32(given.alpha) * total
    if given.bias is not None:
        bias = given.bias.astype(np.float32)
        total = total + (bias if terms.bias == "n" else bias[:, None])
    if given.residual is not None:
        total = total + np.float32(given.beta) * given.residual.astype(np.float32)
    return activated(terms.activation, total.astype(np.float32), ERF).astype(given.out.dtype)
