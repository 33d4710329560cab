"""What can be known of the cuBLAS wrapper without a GPU: how arrays are described, and the layout of its structs."""

from __future__ import annotations

import ctypes
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm import cublas
from cupygemm.cublas import CublasError, Operand, operand
from cupygemm.errors import LaunchError, ProblemError

POINTER = 4096 + 64


def on_device(array: Any) -> Any:
    """An array as CuPy would have it."""
    data = SimpleNamespace(ptr=POINTER)
    return SimpleNamespace(shape=array.shape, strides=array.strides, dtype=array.dtype, data=data)


def column_major(stored: np.ndarray[Any, Any], described: Operand) -> np.ndarray[Any, Any]:
    """The matrix that cuBLAS would read from memory, transposed if it is told to."""
    item = stored.dtype.itemsize
    strides = (item, described.leading_dimension * item)
    matrix = np.lib.stride_tricks.as_strided(stored, (described.rows, described.columns), strides)
    return matrix.T if described.op == 1 else matrix


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (1, 1)])
@pytest.mark.parametrize("order", ["C", "F", "padded C", "padded F"])
def test_an_array_is_described_as_its_column_major_transpose(shape: tuple[int, int], order: str) -> None:
    rows, columns = shape
    extra = 3 if "padded" in order else 0
    if order.endswith("C"):
        array = np.arange(rows * (columns + extra), dtype=np.float16).reshape(rows, -1)[:, :columns]
    else:
        array = np.arange(columns * (rows + extra), dtype=np.float16).reshape(columns, -1)[:, :rows].T
    described = operand("a", on_device(array))
    np.testing.assert_array_equal(column_major(array, described), array.T)
    stored_rows, stored_columns = (columns, rows) if described.op == 0 else (rows, columns)
    assert (described.rows, described.columns) == (stored_rows, stored_columns)
    assert described.leading_dimension >= described.rows
    assert (described.pointer, described.data_type, described.alignment) == (POINTER, 2, 64)


def test_an_array_without_a_contiguous_axis_is_refused() -> None:
    with pytest.raises(ProblemError, match="contiguous"):
        operand("b", on_device(np.zeros((8, 8), np.float16)[::2, ::2]))


def test_a_dtype_without_a_baseline_is_refused() -> None:
    with pytest.raises(ProblemError, match="b is int8"):
        operand("b", on_device(np.zeros((8, 8), np.int8)))


def test_structs_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(cublas._Algo) == 64
    assert ctypes.sizeof(cublas._HeuristicResult) == 96
    offsets = [getattr(cublas._HeuristicResult, name).offset for name in ("workspace_bytes", "state", "waves_count")]
    assert offsets == [64, 72, 76]


def test_an_error_keeps_its_status_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CublasError("cublasGemmEx: CUBLAS_STATUS_NOT_SUPPORTED", cublas.NOT_SUPPORTED)))
    assert error.status == cublas.NOT_SUPPORTED
    assert isinstance(error, LaunchError)


@pytest.fixture
def library() -> None:
    if cublas.version() is None:
        pytest.skip("cuBLAS is not installed")


@pytest.mark.usefixtures("library")
def test_descriptors_hold_what_was_asked() -> None:
    # cublasLt makes descriptors without a GPU, and refuses attributes whose size is not the one it expects.
    first = Operand(POINTER, 2, 64, 32, 72, 1)
    second = Operand(POINTER, 2, 32, 48, 32, 0)
    result = Operand(POINTER, 0, 64, 48, 64, 0)
    product = cublas._LtProduct(SimpleNamespace(), first, second, result)  # type: ignore[arg-type]
    operation, a, b, c, d = product.descriptors
    assert [read("MatmulDesc", operation, attribute, ctypes.c_int32) for attribute in (0, 1, 3, 4)] == [68, 0, 1, 0]
    for layout, matrix in ((a, first), (b, second), (c, result), (d, result)):
        kinds = ((0, ctypes.c_uint32), (2, ctypes.c_uint64), (3, ctypes.c_uint64), (4, ctypes.c_int64))
        described = [read("MatrixLayout", layout, attribute, kind) for attribute, kind in kinds]
        assert described == [matrix.data_type, matrix.rows, matrix.columns, matrix.leading_dimension]
    preference = cublas._LtPreference((first, second, result, result))
    assert read("MatmulPreference", preference.pointer, 1, ctypes.c_uint64) == cublas.WORKSPACE_BYTES
    assert [read("MatmulPreference", preference.pointer, each, ctypes.c_uint32) for each in (5, 6, 7, 8)] == [64] * 4


def read(kind: str, descriptor: Any, attribute: int, value_type: type[Any]) -> int:
    value, written = value_type(), ctypes.c_size_t()
    pointer = ctypes.c_void_p
    get = cublas._lt(f"cublasLt{kind}GetAttribute", pointer, ctypes.c_int, pointer, ctypes.c_size_t, pointer)
    get(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written))
    assert written.value == ctypes.sizeof(value)
    return int(value.value)


@pytest.mark.usefixtures("library")
def test_every_function_that_is_called_exists() -> None:
    names = {"cublas": "Create_v2 Destroy_v2 SetStream_v2 SetWorkspace_v2 GemmEx GetProperty"}
    names["cublasLt"] = "Create Destroy MatmulAlgoGetHeuristic Matmul MatmulAlgoConfigGetAttribute"
    for library, functions in names.items():
        for name in functions.split():
            assert callable(cublas._function(library, f"{library}{name}"))
    with pytest.raises(LaunchError, match="has no"):
        cublas._function("cublas", "cublasNonsense")


@pytest.mark.usefixtures("library")
def test_a_refusal_names_the_status() -> None:
    get = cublas._lt("cublasLtMatmulDescGetAttribute", *([ctypes.c_void_p] * 3), ctypes.c_size_t, ctypes.c_void_p)
    with pytest.raises(CublasError, match="CUBLAS_STATUS_INVALID_VALUE") as caught:
        get(None, None, None, 0, None)
    assert caught.value.status == 7
