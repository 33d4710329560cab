"""The other baseline: cublasLt, any of whose algorithms can be asked for; it has some epilogues of its own.

Enum values and struct sizes are those of cublasLt.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from cupygemm.epilogue import NONE, Epilogue
from cupygemm.kernels.operands import Operands
from cupygemm.measuring.cublas import (
    COMPUTE_32F,
    WORKSPACE_BYTES,
    CublasError,
    Operand,
    column_major,
    current_stream,
    function,
    workspace,
)

_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_LAYOUT_BATCH_COUNT, _LAYOUT_STRIDED_BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t
_LT_EPILOGUES = {NONE: 1, "relu": 2, "gelu_tanh": 32}  # cublasLtEpilogue_t; its GELU is the approximation
_LT_BIAS = 4  # added to these
_PREF_MAX_WORKSPACE_BYTES, _PREF_MIN_ALIGNMENT_A_BYTES = 1, 5  # …PreferenceAttributes_t; B, C and D follow A
_ALGO_CONFIG: dict[str, tuple[int, type[Any]]] = {  # cublasLtMatmulAlgoConfigAttributes_t
    "id": (0, c_int32),
    "tile_id": (1, c_uint32),
    "splitk": (2, c_int32),
    "reduction_scheme": (3, c_uint32),
    "stages_id": (6, c_uint32),
    "cluster_shape_id": (8, c_uint16),
}


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


def lt_epilogue(epilogue: Epilogue) -> int | None:
    """The cublasLtEpilogue_t that does the same, beside alpha and beta; None where it has none."""
    kind = _LT_EPILOGUES.get(epilogue.activation)
    if kind is None or epilogue.bias == "m":
        return None
    if epilogue.bias == NONE:
        return kind
    return _LT_BIAS if kind == _LT_EPILOGUES[NONE] else kind + _LT_BIAS


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
        self.workspace = workspace()

    def algorithms(self, operands: Operands, count: int = 16, epilogue: Epilogue | None = None) -> list[LtAlgorithm]:
        """What cublasLt proposes for a product, by its own estimate the fastest first.

        Args:
            operands: the algorithms serve any of the same shapes, strides and dtypes.
            count: at most so many.
            epilogue: done in the same launch, by default none; nothing is proposed for one that cublasLt does not have.

        Raises:
            ProblemError: an array has no contiguous axis.
            CublasError: refused.
        """
        kind = lt_epilogue(epilogue or Epilogue())
        if kind is None:
            return []
        first, second, result = column_major(operands)
        product = _LtProduct(self, first, second, result, kind)
        product.point_at(operands)
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

    def __init__(self, lt: CublasLt, first: Operand, second: Operand, result: Operand, epilogue: int) -> None:
        self._lt = lt
        self._operation = _created(
            "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", self, c_int, COMPUTE_32F, c_int, 0
        )
        for attribute, number in ((_DESC_TRANSA, first.op), (_DESC_TRANSB, second.op), (_DESC_EPILOGUE, epilogue)):
            self._set(attribute, c_int32(number))
        layouts = [self._layout(matrix) for matrix in (first, second, result)]
        self.descriptors = (self._operation, *layouts, layouts[-1])  # D, the result, lies as C does
        self._matmul = _lt("cublasLtMatmul", *([c_void_p] * 14), c_size_t, c_void_p)

    def _set(self, attribute: int, value: Any) -> None:
        set_attribute = _lt("cublasLtMatmulDescSetAttribute", c_void_p, c_int, c_void_p, c_size_t)
        set_attribute(self._operation, attribute, byref(value), ctypes.sizeof(value))

    def _layout(self, matrix: Operand) -> c_void_p:
        layout = _created(
            "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", self,
            c_int, matrix.data_type, c_uint64, matrix.rows, c_uint64, matrix.columns, c_int64, matrix.leading_dimension,
        )  # fmt: skip
        if matrix.batch > 1:
            set_attribute = _lt("cublasLtMatrixLayoutSetAttribute", c_void_p, c_int, c_void_p, c_size_t)
            for attribute, value in (
                (_LAYOUT_BATCH_COUNT, c_int32(matrix.batch)),
                (_LAYOUT_STRIDED_BATCH_OFFSET, c_int64(matrix.batch_stride)),
            ):
                set_attribute(layout, attribute, byref(value), ctypes.sizeof(value))
        return layout

    def point_at(self, operands: Operands) -> None:
        """Tells the description where the bias lies, if there is one."""
        if operands.bias is not None:
            self._set(_DESC_BIAS_POINTER, c_void_p(operands.bias.data.ptr))

    def run(self, algo: _Algo, operands: Operands) -> None:
        a, b, out = operands.a.data.ptr, operands.b.data.ptr, operands.out.data.ptr
        added = out if operands.residual is None else operands.residual.data.ptr
        alpha, beta = c_float(operands.alpha), c_float(0.0 if operands.residual is None else operands.beta)
        operation, first, second, result, _ = self.descriptors
        self.point_at(operands)
        self._matmul(
            self._lt.handle, operation, byref(alpha), b, first, a, second, byref(beta), added, result,
            out, result, byref(algo), self._lt.workspace.data.ptr, WORKSPACE_BYTES, current_stream(),
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
    return function("cublasLt", name, *argtypes)


def _created(create: str, destroy: str, owner: object, *typed: Any) -> c_void_p:
    """A descriptor that lives as long as its owner; `typed` alternates the types and values of its arguments."""
    descriptor = c_void_p()
    _lt(create, c_void_p, *typed[::2])(byref(descriptor), *typed[1::2])
    weakref.finalize(owner, _lt(destroy, c_void_p), descriptor).atexit = False
    return descriptor
