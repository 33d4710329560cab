"""What can be known of the wrapper of cublasLt without a GPU: structs, descriptors, and which epilogues it has."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from cupygemm.epilogue import Epilogue
from cupygemm.measuring import cublas, cublaslt
from cupygemm.measuring.cublas import CublasError, Operand
from cupygemm.measuring.cublaslt import lt_epilogue

POINTER = 4096 + 64


def test_structs_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(cublaslt._Algo) == 64
    assert ctypes.sizeof(cublaslt._HeuristicResult) == 96
    offsets = [getattr(cublaslt._HeuristicResult, name).offset for name in ("workspace_bytes", "state", "waves_count")]
    assert offsets == [64, 72, 76]


@pytest.mark.parametrize(
    ("text", "kind"),
    # CUBLASLT_EPILOGUE_DEFAULT, BIAS, RELU, RELU_BIAS, GELU, GELU_BIAS. Alpha and beta are its own.
    [
        ("none", 1),
        ("scaled", 1),
        ("residual", 1),
        ("bias_n", 4),
        ("bias_n+residual", 4),
        ("relu", 2),
        ("bias_n+relu", 6),
        ("gelu_tanh", 32),
        ("bias_n+residual+gelu_tanh", 36),
        ("gelu", None),
        ("silu", None),
        ("bias_m", None),
        ("bias_m+relu", None),
    ],
)
def test_which_epilogues_it_has(text: str, kind: int | None) -> None:
    assert lt_epilogue(Epilogue.parse(text)) == kind


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
    product = cublaslt._LtProduct(SimpleNamespace(), first, second, result, 36)  # type: ignore[arg-type]
    operation, a, b, c, d = product.descriptors
    assert [read("MatmulDesc", operation, attribute, ctypes.c_int32) for attribute in (0, 1, 3, 4, 7)] == [
        68,
        0,
        1,
        0,
        36,
    ]
    for layout, matrix in ((a, first), (b, second), (c, result), (d, result)):
        kinds = ((0, ctypes.c_uint32), (2, ctypes.c_uint64), (3, ctypes.c_uint64), (4, ctypes.c_int64))
        described = [read("MatrixLayout", layout, attribute, kind) for attribute, kind in kinds]
        assert described == [matrix.data_type, matrix.rows, matrix.columns, matrix.leading_dimension]
    preference = cublaslt._LtPreference((first, second, result, result))
    assert read("MatmulPreference", preference.pointer, 1, ctypes.c_uint64) == cublas.WORKSPACE_BYTES
    assert [read("MatmulPreference", preference.pointer, each, ctypes.c_uint32) for each in (5, 6, 7, 8)] == [64] * 4


def read(kind: str, descriptor: Any, attribute: int, value_type: type[Any]) -> int:
    value, written = value_type(), ctypes.c_size_t()
    pointer = ctypes.c_void_p
    get = cublaslt._lt(f"cublasLt{kind}GetAttribute", pointer, ctypes.c_int, pointer, ctypes.c_size_t, pointer)
    get(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written))
    assert written.value == ctypes.sizeof(value)
    return int(value.value)


@pytest.mark.usefixtures("library")
def test_a_stack_is_described_by_count_and_stride() -> None:
    first = Operand(POINTER, 2, 64, 32, 72, 1, 5, 0)
    second = Operand(POINTER, 2, 32, 48, 32, 0, 5, 32 * 48)
    result = Operand(POINTER, 0, 64, 48, 64, 0, 5, 2 * 64 * 48)
    product = cublaslt._LtProduct(SimpleNamespace(), first, second, result, 1)  # type: ignore[arg-type]
    for layout, matrix in zip(product.descriptors[1:], (first, second, result, result), strict=True):
        # CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, …_STRIDED_BATCH_OFFSET
        described = [read("MatrixLayout", layout, 5, ctypes.c_int32), read("MatrixLayout", layout, 6, ctypes.c_int64)]
        assert described == [matrix.batch, matrix.batch_stride]


@pytest.mark.usefixtures("library")
def test_the_bias_is_pointed_at_anew_for_each_launch() -> None:
    matrix = Operand(POINTER, 2, 32, 32, 32, 0)
    product = cublaslt._LtProduct(SimpleNamespace(), matrix, matrix, matrix, 4)  # type: ignore[arg-type]
    for pointer in (4096, 8192):
        product.point_at(SimpleNamespace(bias=SimpleNamespace(data=SimpleNamespace(ptr=pointer))))  # type: ignore[arg-type]
        assert read("MatmulDesc", product.descriptors[0], 8, ctypes.c_uint64) == pointer


@pytest.mark.usefixtures("library")
def test_every_function_that_is_called_exists() -> None:
    for name in ("Create", "Destroy", "MatmulAlgoGetHeuristic", "Matmul", "MatmulAlgoConfigGetAttribute"):
        assert callable(cublas.function("cublasLt", f"cublasLt{name}"))


@pytest.mark.usefixtures("library")
def test_a_refusal_names_the_status() -> None:
    get = cublaslt._lt("cublasLtMatmulDescGetAttribute", *([ctypes.c_void_p] * 3), ctypes.c_size_t, ctypes.c_void_p)
    with pytest.raises(CublasError, match="CUBLAS_STATUS_INVALID_VALUE") as caught:
        get(None, None, None, 0, None)
    assert caught.value.status == 7
