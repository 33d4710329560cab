"""TMA descriptors: what of a matrix is copied, in which boxes, and how it lies in shared memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from cupygemm.config import (
    L2_PROMOTIONS,
    MAX_TILE,
    MMA_M,
    SWIZZLE_BYTES,
    TMA_ALIGNMENT,
    KernelConfig,
    KernelSpec,
    loaded_rows,
    store_columns,
)
from cupygemm.dtypes import DTYPES
from cupygemm.errors import LaunchError

# CUtensorMapSwizzle of cuda.h (CUDA 12 and 13).
_SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}
_MAP_BYTES = 128
_MAP_ALIGNMENT = 128  # the header of CUDA 13; CUDA 12 asks for 64


@dataclass(frozen=True)
class Matrix:
    """Where a two-dimensional operand lies, or a stack of them: rows of contiguous elements.

    Attributes:
        pointer: device address of its first element, a multiple of 16.
        rows, columns: extents in elements; `columns` is the contiguous axis.
        row_stride: bytes from row to row, a multiple of 16.
        dtype: name in `DTYPES`.
        depth: matrices of a stack; 0 for a single one, whose descriptor has two dimensions.
        depth_stride: bytes from matrix to matrix, a multiple of 16.
    """

    pointer: int
    rows: int
    columns: int
    row_stride: int
    dtype: str
    depth: int = 0
    depth_stride: int = 0


@dataclass(frozen=True)
class Box:
    """What one TMA instruction copies, in elements; its rows are swizzled over their own width in bytes.

    Attributes:
        l2_promotion: bytes that a miss fetches into the L2 at least.
    """

    rows: int
    columns: int
    l2_promotion: int = 0


def operand_box(config: KernelConfig, tile_rows: int, major: str, dtype: str, peers: int) -> Box:
    """The box with which each of `peers` CTAs loads its slice of a tile: OperandTile in cuda_src/operand.cuh."""
    span = SWIZZLE_BYTES // DTYPES[dtype].bytes
    slab_rows = tile_rows if major == "k" else config.block_k
    by_slab = major == "mn" and -(-tile_rows // span) % peers == 0
    return Box(slab_rows if by_slab else slab_rows // peers, span, config.l2_promotion)


def a_box(config: KernelConfig, spec: KernelSpec, m: int) -> Box:
    """The box of what the kernel takes for A, which has `m` rows; the CTAs of a cluster row share its tiles."""
    spec = spec.seen_by(config)
    return operand_box(config, loaded_rows(config, spec, m, MAX_TILE)[0], spec.a_major, spec.a_dtype, config.cluster_n)


def b_box(config: KernelConfig, spec: KernelSpec, n: int) -> Box:
    """The box of what the kernel takes for B, which has `n` columns; the CTAs of a cluster column share its tiles."""
    spec = spec.seen_by(config)
    return operand_box(config, loaded_rows(config, spec, MAX_TILE, n)[1], spec.b_major, spec.b_dtype, config.cluster_m)


def out_box(config: KernelConfig, spec: KernelSpec) -> Box:
    """The sub-tile that one TMA store writes: TmaStore in cuda_src/epilogue.cuh."""
    rows, columns = config.as_computed(MMA_M, store_columns(config, spec))
    return Box(rows, columns)


class TensorMap:
    """An encoded descriptor in host memory, aligned as the driver asks.

    A descriptor stays valid as long as address, extents and strides do; it is passed to a kernel by value.

    Attributes:
        address: of its 128 bytes.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        start = ctypes.addressof(self._buffer)
        self.address = -(-start // _MAP_ALIGNMENT) * _MAP_ALIGNMENT


def copied(tensor_map: TensorMap) -> TensorMap:
    """The same in memory of its own."""
    found = TensorMap()
    ctypes.memmove(found.address, tensor_map.address, _MAP_BYTES)
    return found


@lru_cache(maxsize=1024)
def encode(matrix: Matrix, box: Box) -> TensorMap:
    """The descriptor for copying `box`es of `matrix`; reads beyond its edge give zeros, writes there are dropped.

    Raises:
        LaunchError: the driver refused the geometry.
    """
    tensor_map = TensorMap()
    element = DTYPES[matrix.dtype].bytes
    # A single row and a single matrix have no stride; the driver still wants a legal one.
    row_stride = matrix.row_stride if matrix.rows > 1 else -(-matrix.columns * element // TMA_ALIGNMENT) * TMA_ALIGNMENT
    depth_stride = matrix.depth_stride if matrix.depth > 1 else row_stride
    rank = 3 if matrix.depth else 2
    status = _encode_tiled()(
        tensor_map.address,
        DTYPES[matrix.dtype].tensor_map_type,
        rank,
        matrix.pointer,
        (ctypes.c_uint64 * 3)(matrix.columns, matrix.rows, matrix.depth),
        (ctypes.c_uint64 * 2)(row_stride, depth_stride),
        (ctypes.c_uint32 * 3)(box.columns, box.rows, 1),
        (ctypes.c_uint32 * 3)(1, 1, 1),
        0,  # CU_TENSOR_MAP_INTERLEAVE_NONE
        _SWIZZLES[box.columns * element],
        L2_PROMOTIONS.index(box.l2_promotion),
        0,  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros
    )
    if status != 0:
        raise LaunchError(f"cuTensorMapEncodeTiled refused {matrix} in {box} with error {status}")
    return tensor_map


@cache
def _encode_tiled() -> Any:
    # Through ctypes: cuda.bindings (13.3) returns an object whose storage is not aligned as the call asks.
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise LaunchError("the CUDA driver library (libcuda.so.1, CUDA 12 or newer) is not there") from error
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ]
    function.restype = ctypes.c_int
    return function
