"""The baseline: cuBLAS and cublasLt called through the libraries themselves.

CuPy refuses cuBLAS while a stream is being captured, and the baseline has to be timed in the same graph form as a
kernel of ours; so here is a handle of our own, with the settings that cupy.matmul uses and an explicit workspace.
Enum values and struct sizes are those of cublas_api.h, cublasLt.h and library_types.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

from cupygemm.dtypes import DTYPES
from cupygemm.errors import LaunchError, ProblemError, not_installed
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Operands

WORKSPACE_BYTES = 32 * 2**20
"""What cuBLAS itself allocates on Hopper, and so what it has under CuPy."""

_DATA_TYPES = {name: row.cublas_type for name, row in DTYPES.items() if row.cublas_type is not None}
_OP_N, _OP_T = 0, 1  # cublasOperation_t
COMPUTE_32F = 68  # cublasComputeType_t
_GEMM_DEFAULT_TENSOR_OP = 99  # cublasGemmAlgo_t; what CuPy 14.2 passes from compute capability 8.0 on
_STATUS_NAMES = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}
NOT_SUPPORTED = 15


class CublasError(LaunchError):
    """cuBLAS refused a call.

    Attributes:
        status: its cublasStatus_t.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Operand(NamedTuple):
    """An array as cuBLAS, which is column-major, sees it: the stored matrix, and whether it is to be transposed.

    Of a stack, `batch` matrices are `batch_stride` elements apart.
    """

    pointer: int
    data_type: int
    rows: int
    columns: int
    leading_dimension: int
    op: int
    batch: int = 1
    batch_stride: int = 0

    @property
    def alignment(self) -> int:
        """The largest power of two up to 256 that divides the address."""
        return min(256, self.pointer & -self.pointer)


def operand(name: str, array: Any) -> Operand:
    """A row-major [r, c] array is a column-major c × r matrix; a transposed view is r × c and wants op T.

    Args:
        name: for the error.
        array: CuPy array with two axes, one of them contiguous, of a dtype that has a `cublas_type`; or a stack.

    Raises:
        ProblemError: another dtype, or no contiguous axis.
    """
    (rows, columns), (row_stride, column_stride) = array.shape[-2:], array.strides[-2:]
    item = array.dtype.itemsize
    if array.dtype.name not in _DATA_TYPES:
        raise ProblemError(f"{name} is {array.dtype.name}: the baseline takes {', '.join(_DATA_TYPES)}")
    common = (array.data.ptr, _DATA_TYPES[array.dtype.name])
    stack = (array.shape[0], array.strides[0] // item) if array.ndim > 2 else (1, 0)
    if column_stride == item or columns == 1:
        return Operand(*common, columns, rows, max(columns, row_stride // item if rows > 1 else 1), _OP_N, *stack)
    if row_stride == item or rows == 1:
        return Operand(*common, rows, columns, max(rows, column_stride // item), _OP_T, *stack)
    raise ProblemError(f"{name} has strides {array.strides} bytes: one axis must be contiguous")


def column_major(operands: Operands) -> tuple[Operand, Operand, Operand]:
    """The factors and the result of out^T = b^T · a^T, in the order in which cuBLAS takes them."""
    return operand("b", operands.b), operand("a", operands.a), operand("out", operands.out)


def version() -> str | None:
    """ "major.minor.patch" of cuBLAS; None where it is not installed. Needs no GPU."""
    try:
        get_property = function("cublas", "cublasGetProperty", c_int, c_void_p)
        parts = [c_int() for _ in range(3)]  # libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
        for index, part in enumerate(parts):
            get_property(index, byref(part))
    except LaunchError:
        return None
    return ".".join(str(part.value) for part in parts)


@cache
def _library(name: str) -> ctypes.CDLL:
    try:
        # Loaded here: it comes with cuda-bindings, which only the extras for GPUs bring.
        from cuda import pathfinder
    except ImportError as error:
        raise LaunchError(not_installed("cuda-pathfinder", "cu13")) from error
    try:
        # The one that CuPy has loaded already, if it has.
        loaded = pathfinder.load_nvidia_dynamic_lib(name)
    except pathfinder.DynamicLibNotFoundError as error:
        raise LaunchError(f"lib{name} was not found: {error}") from error
    return ctypes.CDLL(loaded.abs_path)


def function(library: str, name: str, *argtypes: Any) -> Callable[..., None]:
    """A library function that raises where it does not return CUBLAS_STATUS_SUCCESS."""
    try:
        function = _library(library)[name]
    except AttributeError as error:
        raise LaunchError(f"lib{library} has no {name}") from error
    function.argtypes = argtypes
    function.restype = c_int

    def call(*arguments: Any) -> None:
        status = function(*arguments)
        if status != 0:
            raise CublasError(f"{name}: CUBLAS_STATUS_{_STATUS_NAMES.get(status, status)}", status)

    return call


def workspace() -> Any:
    # CuPy's pool aligns to 512 bytes; cuBLAS asks for 256.
    return driver.cupy().empty(WORKSPACE_BYTES, dtype="uint8")


def current_stream() -> int:
    return int(driver.cupy().cuda.get_current_stream().ptr)


class Cublas:
    """A cuBLAS handle on the current device, with a workspace of its own: for one stream at a time.

    Raises:
        LaunchError: the library is missing or refuses.
    """

    def __init__(self) -> None:
        handle = c_void_p()
        function("cublas", "cublasCreate_v2", c_void_p)(byref(handle))
        destroy = function("cublas", "cublasDestroy_v2", c_void_p)
        # Not at exit: the driver may be gone by then.
        weakref.finalize(self, destroy, handle).atexit = False
        self._handle = handle
        self._workspace = workspace()
        self._stream: int | None = None
        self._set_stream = function("cublas", "cublasSetStream_v2", c_void_p, c_void_p)
        self._set_workspace = function("cublas", "cublasSetWorkspace_v2", c_void_p, c_void_p, c_size_t)
        self._gemm, self._gemm_batched = _gemm_ex(), _gemm_batched_ex()
        self._zero = c_float(0)

    def gemm(self, operands: Operands) -> None:
        """out = alpha · a · b on the current stream, as cupy.matmul asks for it; may be captured in a graph.

        Raises:
            ProblemError: an array has no contiguous axis.
            CublasError: refused; `NOT_SUPPORTED` for pairs of dtypes that cuBLAS does not have.
        """
        (m, k), n = operands.a.shape[-2:], operands.b.shape[-1]
        first, second, result = column_major(operands)
        self._use(current_stream())
        alpha = c_float(operands.alpha)
        if operands.out.ndim > 2:
            self._gemm_batched(
                self._handle, first.op, second.op, n, m, k,
                byref(alpha), first.pointer, first.data_type, first.leading_dimension, first.batch_stride,
                second.pointer, second.data_type, second.leading_dimension, second.batch_stride,
                byref(self._zero), result.pointer, result.data_type, result.leading_dimension, result.batch_stride,
                result.batch, COMPUTE_32F, _GEMM_DEFAULT_TENSOR_OP,
            )  # fmt: skip
            return
        self._gemm(
            self._handle, first.op, second.op, n, m, k,
            byref(alpha), first.pointer, first.data_type, first.leading_dimension,
            second.pointer, second.data_type, second.leading_dimension,
            byref(self._zero), result.pointer, result.data_type, result.leading_dimension,
            COMPUTE_32F, _GEMM_DEFAULT_TENSOR_OP,
        )  # fmt: skip

    def _use(self, stream: int) -> None:
        if stream != self._stream:
            # In this order: setting the stream resets the workspace.
            self._set_stream(self._handle, stream)
            self._set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)
            self._stream = stream


def _gemm_ex() -> Callable[..., None]:
    matrix = (c_void_p, c_int, c_int)  # address, type, leading dimension
    sizes = (c_int, c_int, c_int, c_int, c_int)  # transa, transb, m, n, k
    types = (c_void_p, *sizes, c_void_p, *matrix, *matrix, c_void_p, *matrix, c_int, c_int)
    return function("cublas", "cublasGemmEx", *types)


def _gemm_batched_ex() -> Callable[..., None]:
    matrix = (c_void_p, c_int, c_int, c_int64)  # address, type, leading dimension, stride
    sizes = (c_int, c_int, c_int, c_int, c_int)  # transa, transb, m, n, k
    types = (c_void_p, *sizes, c_void_p, *matrix, *matrix, c_void_p, *matrix, c_int, c_int, c_int)
    return function("cublas", "cublasGemmStridedBatchedEx", *types)
