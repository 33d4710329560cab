"""The baseline: cuBLAS and cublasLt called through the libraries themselves.

CuPy refuses cuBLAS while a stream is being captured, and the baseline has to be timed in the same graph form as a
kernel of ours; so here is a handle of our own, with the settings that cupy.matmul uses and an explicit workspace.
Enum values and struct sizes are those of cublas_api.h, cublasLt.h and library_types.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

from cupygemm import driver
from cupygemm.dtypes import DTYPES
from cupygemm.errors import LaunchError, ProblemError, not_installed
from cupygemm.operands import Operands

WORKSPACE_BYTES = 32 * 2**20
"""What cuBLAS itself allocates on Hopper, and so what it has under CuPy."""

_DATA_TYPES = {name: row.cublas_type for name, row in DTYPES.items() if row.cublas_type is not None}
_OP_N, _OP_T = 0, 1  # cublasOperation_t
_COMPUTE_32F = 68  # cublasComputeType_t
_GEMM_DEFAULT_TENSOR_OP = 99  # cublasGemmAlgo_t; what CuPy 14.2 passes from compute capability 8.0 on
_DESC_TRANSA, _DESC_TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t
_PREF_MAX_WORKSPACE_BYTES, _PREF_MIN_ALIGNMENT_A_BYTES = 1, 5  # …PreferenceAttributes_t; B, C and D follow A
_ALGO_CONFIG: dict[str, tuple[int, type[Any]]] = {  # cublasLtMatmulAlgoConfigAttributes_t
    "id": (0, c_int32),
    "tile_id": (1, c_uint32),
    "splitk": (2, c_int32),
    "reduction_scheme": (3, c_uint32),
    "stages_id": (6, c_uint32),
    "cluster_shape_id": (8, c_uint16),
}
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


class _Algo(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", _Algo),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    )


class Operand(NamedTuple):
    """An array as cuBLAS, which is column-major, sees it: the stored matrix, and whether it is to be transposed."""

    pointer: int
    data_type: int
    rows: int
    columns: int
    leading_dimension: int
    op: int

    @property
    def alignment(self) -> int:
        """The largest power of two up to 256 that divides the address."""
        return min(256, self.pointer & -self.pointer)


def operand(name: str, array: Any) -> Operand:
    """A row-major [r, c] array is a column-major c × r matrix; a transposed view is r × c and wants op T.

    Args:
        name: for the error.
        array: CuPy array with two axes, one of them contiguous, of a dtype that has a `cublas_type`.

    Raises:
        ProblemError: another dtype, or no contiguous axis.
    """
    (rows, columns), (row_stride, column_stride) = array.shape, array.strides
    item = array.dtype.itemsize
    if array.dtype.name not in _DATA_TYPES:
        raise ProblemError(f"{name} is {array.dtype.name}: the baseline takes {', '.join(_DATA_TYPES)}")
    common = (array.data.ptr, _DATA_TYPES[array.dtype.name])
    if column_stride == item or columns == 1:
        return Operand(*common, columns, rows, max(columns, row_stride // item if rows > 1 else 1), _OP_N)
    if row_stride == item or rows == 1:
        return Operand(*common, rows, columns, max(rows, column_stride // item), _OP_T)
    raise ProblemError(f"{name} has strides {array.strides} bytes: one axis must be contiguous")


def _column_major(operands: Operands) -> tuple[Operand, Operand, Operand]:
    """The factors and the result of out^T = b^T · a^T, in the order in which cuBLAS takes them."""
    return operand("b", operands.b), operand("a", operands.a), operand("out", operands.out)


def version() -> str | None:
    """ "major.minor.patch" of cuBLAS; None where it is not installed. Needs no GPU."""
    try:
        get_property = _function("cublas", "cublasGetProperty", c_int, c_void_p)
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


def _function(library: str, name: str, *argtypes: Any) -> Callable[..., None]:
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


def _workspace() -> Any:
    # CuPy's pool aligns to 512 bytes; cuBLAS asks for 256.
    return driver.cupy().empty(WORKSPACE_BYTES, dtype="uint8")


def _current_stream() -> int:
    return int(driver.cupy().cuda.get_current_stream().ptr)


class Cublas:
    """A cuBLAS handle on the current device, with a workspace of its own: for one stream at a time.

    Raises:
        LaunchError: the library is missing or refuses.
    """

    def __init__(self) -> None:
        handle = c_void_p()
        _function("cublas", "cublasCreate_v2", c_void_p)(byref(handle))
        destroy = _function("cublas", "cublasDestroy_v2", c_void_p)
        # Not at exit: the driver may be gone by then.
        weakref.finalize(self, destroy, handle).atexit = False
        self._handle = handle
        self._workspace = _workspace()
        self._stream: int | None = None
        self._set_stream = _function("cublas", "cublasSetStream_v2", c_void_p, c_void_p)
        self._set_workspace = _function("cublas", "cublasSetWorkspace_v2", c_void_p, c_void_p, c_size_t)
        self._gemm = _gemm_ex()
        self._one, self._zero = c_float(1), c_float(0)

    def gemm(self, operands: Operands) -> None:
        """out = a · b on the current stream, as cupy.matmul asks for it; may be captured in a graph.

        Raises:
            ProblemError: an array has no contiguous axis.
            CublasError: refused; `NOT_SUPPORTED` for pairs of dtypes that cuBLAS does not have.
        """
        (m, k), n = operands.a.shape, operands.b.shape[1]
        first, second, result = _column_major(operands)
        self._use(_current_stream())
        self._gemm(
            self._handle, first.op, second.op, n, m, k,
            byref(self._one), first.pointer, first.data_type, first.leading_dimension,
            second.pointer, second.data_type, second.leading_dimension,
            byref(self._zero), result.pointer, result.data_type, result.leading_dimension,
            _COMPUTE_32F, _GEMM_DEFAULT_TENSOR_OP,
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
    return _function("cublas", "cublasGemmEx", *types)


class CublasLt:
    """A cublasLt handle on the current device, with a workspace of its own: for one stream at a time.

    Raises:
        LaunchError: the library is missing or refuses.
    """

    def __init__(self) -> None:
        handle = c_void_p()
        _lt("cublasLtCreate", c_void_p)(byref(handle))
        weakref.finalize(self, _lt("cublasLtDestroy", c_void_p), handle).atexit = False
        self.handle = handle
        self.workspace = _workspace()

    def algorithms(self, operands: Operands, count: int = 16) -> list[LtAlgorithm]:
        """What cublasLt proposes for a product, by its own estimate the fastest first.

        Args:
            operands: the algorithms serve any of the same shapes, strides and dtypes.
            count: at most so many.

        Raises:
            ProblemError: an array has no contiguous axis.
            CublasError: refused.
        """
        first, second, result = _column_major(operands)
        product = _LtProduct(self, first, second, result)
        found = (_HeuristicResult * count)()
        num_found = c_int()
        preference = _LtPreference((first, second, result, result))
        _lt("cublasLtMatmulAlgoGetHeuristic", *([c_void_p] * 7), c_int, c_void_p, c_void_p)(
            self.handle, *product.descriptors, preference.pointer, count, found, byref(num_found)
        )
        usable = (found[index] for index in range(num_found.value) if found[index].state == 0)
        return [LtAlgorithm(product, result.algo) for result in usable]


class LtAlgorithm:
    """One way in which cublasLt can compute a product."""

    def __init__(self, product: _LtProduct, algo: _Algo) -> None:
        self._product = product
        self._algo = _Algo.from_buffer_copy(algo)

    def run(self, operands: Operands) -> None:
        """out = a · b on the current stream; may be captured in a graph.

        Raises:
            CublasError: refused.
        """
        self._product.run(self._algo, operands)

    def describe(self) -> dict[str, int]:
        """Its numbers in cublasLt's own terms; without those that this version does not tell."""
        get = _lt("cublasLtMatmulAlgoConfigGetAttribute", c_void_p, c_int, c_void_p, c_size_t, c_void_p)
        described = {}
        for name, (attribute, kind) in _ALGO_CONFIG.items():
            value, written = kind(), c_size_t()
            try:
                get(byref(self._algo), attribute, byref(value), ctypes.sizeof(value), byref(written))
            except CublasError:
                continue
            described[name] = int(value.value)
        return described


class _LtProduct:
    """The descriptors of one product: out^T = b^T · a^T, column-major."""

    def __init__(self, lt: CublasLt, first: Operand, second: Operand, result: Operand) -> None:
        self._lt = lt
        operation = _created(
            "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", self, c_int, _COMPUTE_32F, c_int, 0
        )
        set_attribute = _lt("cublasLtMatmulDescSetAttribute", c_void_p, c_int, c_void_p, c_size_t)
        for attribute, op in ((_DESC_TRANSA, first.op), (_DESC_TRANSB, second.op)):
            value = c_int32(op)
            set_attribute(operation, attribute, byref(value), ctypes.sizeof(value))
        layouts = [self._layout(matrix) for matrix in (first, second, result)]
        self.descriptors = (operation, *layouts, layouts[-1])  # D, the result, lies as C does
        self._matmul = _lt("cublasLtMatmul", *([c_void_p] * 14), c_size_t, c_void_p)
        self._one, self._zero = c_float(1), c_float(0)

    def _layout(self, matrix: Operand) -> c_void_p:
        return _created(
            "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", self,
            c_int, matrix.data_type, c_uint64, matrix.rows, c_uint64, matrix.columns, c_int64, matrix.leading_dimension,
        )  # fmt: skip

    def run(self, algo: _Algo, operands: Operands) -> None:
        a, b, out = operands.a.data.ptr, operands.b.data.ptr, operands.out.data.ptr
        operation, first, second, result, _ = self.descriptors
        self._matmul(
            self._lt.handle, operation, byref(self._one), b, first, a, second, byref(self._zero), out, result,
            out, result, byref(algo), self._lt.workspace.data.ptr, WORKSPACE_BYTES, _current_stream(),
        )  # fmt: skip


class _LtPreference:
    """What the heuristic may use: our workspace, and pointers as aligned as these four matrices are."""

    def __init__(self, matrices: tuple[Operand, Operand, Operand, Operand]) -> None:
        self.pointer = _created("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", self)
        self._set(_PREF_MAX_WORKSPACE_BYTES, c_uint64(WORKSPACE_BYTES))
        for index, matrix in enumerate(matrices):
            self._set(_PREF_MIN_ALIGNMENT_A_BYTES + index, c_uint32(matrix.alignment))

    def _set(self, attribute: int, value: Any) -> None:
        set_attribute = _lt("cublasLtMatmulPreferenceSetAttribute", c_void_p, c_int, c_void_p, c_size_t)
        set_attribute(self.pointer, attribute, byref(value), ctypes.sizeof(value))


def _lt(name: str, *argtypes: Any) -> Callable[..., None]:
    return _function("cublasLt", name, *argtypes)


def _created(create: str, destroy: str, owner: object, *typed: Any) -> c_void_p:
    """A descriptor that lives as long as its owner; `typed` alternates the types and values of its arguments."""
    descriptor = c_void_p()
    _lt(create, c_void_p, *typed[::2])(byref(descriptor), *typed[1::2])
    weakref.finalize(owner, _lt(destroy, c_void_p), descriptor).atexit = False
    return descriptor
