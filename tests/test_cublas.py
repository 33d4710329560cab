"""What can be known of the cuBLAS wrapper without a GPU: how arrays are described, and that its functions exist."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.errors import LaunchError, ProblemError
from cupygemm.measuring import cublas
from cupygemm.measuring.cublas import CublasError, Operand, operand

POINTER = 4096 + 64


def on_device(array: Any) -> Any:
    """An array as CuPy would have it."""
    data = SimpleNamespace(ptr=POINTER)
    names = ("shape", "strides", "dtype", "ndim")
    return SimpleNamespace(data=data, **{name: getattr(array, name) for name in names})


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


@pytest.mark.parametrize("letter", ["n", "t"])
def test_a_stack_is_its_first_matrix_and_a_stride(letter: str) -> None:
    stack = np.zeros((6, 3, 5), np.float16)[::2]
    stack = stack if letter == "n" else stack.swapaxes(1, 2)
    shared = np.broadcast_to(stack[0], stack.shape)
    described = operand("a", on_device(stack))
    assert described[:6] == operand("a", on_device(stack[0]))[:6]
    assert (described.batch, described.batch_stride) == (3, 30)
    assert operand("a", on_device(shared)) == described._replace(batch_stride=0)


def test_an_array_without_a_contiguous_axis_is_refused() -> None:
    with pytest.raises(ProblemError, match="contiguous"):
        operand("b", on_device(np.zeros((8, 8), np.float16)[::2, ::2]))


def test_a_dtype_without_a_baseline_is_refused() -> None:
    with pytest.raises(ProblemError, match="b is int8"):
        operand("b", on_device(np.zeros((8, 8), np.int8)))


def test_an_error_keeps_its_status_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CublasError("cublasGemmEx: CUBLAS_STATUS_NOT_SUPPORTED", cublas.NOT_SUPPORTED)))
    assert error.status == cublas.NOT_SUPPORTED
    assert isinstance(error, LaunchError)


@pytest.fixture
def library() -> None:
    if cublas.version() is None:
        pytest.skip("cuBLAS is not installed")


@pytest.mark.usefixtures("library")
def test_every_function_that_is_called_exists() -> None:
    names = "Create_v2 Destroy_v2 SetStream_v2 SetWorkspace_v2 GemmEx GemmStridedBatchedEx GetProperty"
    for name in names.split():
        assert callable(cublas.function("cublas", f"cublas{name}"))
    with pytest.raises(LaunchError, match="has no"):
        cublas.function("cublas", "cublasNonsense")
