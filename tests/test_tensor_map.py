"""TMA descriptors without a GPU: exactly what the driver is told."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cupygemm.errors import LaunchError
from cupygemm.kernels import tensor_map
from cupygemm.kernels.tensor_map import Box, Matrix, TensorMap, encode


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The calls of cuTensorMapEncodeTiled, with as much of its arrays as it reads; it refuses boxes of 7 rows."""
    calls: list[tuple[Any, ...]] = []

    def encode_tiled(*arguments: Any) -> int:
        rank = arguments[2]
        read = {4: rank, 5: rank - 1, 6: rank, 7: rank}
        calls.append(tuple(tuple(each)[: read[i]] if i in read else each for i, each in enumerate(arguments)))
        return int(calls[-1][6][1] == 7)

    monkeypatch.setattr(tensor_map, "_encode_tiled", lambda: encode_tiled)
    encode.cache_clear()
    yield calls
    encode.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "columns", "data_type", "swizzle"),
    [("float16", 64, 6, 3), ("bfloat16", 32, 9, 2), ("float32", 8, 7, 1), ("float16", 8, 6, 0)],
)
def test_the_driver_is_told_the_contiguous_axis_first(
    encoded: list[tuple[Any, ...]], dtype: str, columns: int, data_type: int, swizzle: int
) -> None:
    found = encode(Matrix(4096, 24, 40, 96, dtype), Box(16, columns, l2_promotion=256))
    assert encoded == [
        (found.address, data_type, 2, 4096, (40, 24), (96,), (columns, 16), (1, 1), 0, swizzle, 3, 0),
    ]
    assert found.address % 128 == 0


@pytest.mark.parametrize("row_stride", [-14, 0, 2, 2**41])
def test_a_single_row_is_given_a_legal_stride(encoded: list[tuple[Any, ...]], row_stride: int) -> None:
    encode(Matrix(4096, 1, 40, row_stride, "float16"), Box(64, 64))
    encode(Matrix(4096, 1, 41, row_stride, "float16"), Box(64, 64))
    assert [call[5] for call in encoded] == [(80,), (96,)]


def test_descriptors_are_kept_and_refusals_are_not(encoded: list[tuple[Any, ...]]) -> None:
    matrix = Matrix(4096, 24, 40, 96, "float16")
    assert encode(matrix, Box(64, 64)) is encode(replace(matrix), Box(64, 64))
    assert encode(replace(matrix, pointer=8192), Box(64, 64)) is not encode(matrix, Box(64, 64))
    assert len(encoded) == 2
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"refused Matrix\(.*\) in Box\(rows=7, .*\) with error 1"):
            encode(matrix, Box(7, 64))
    assert len(encoded) == 4


def test_descriptors_are_aligned_and_lie_inside_their_buffer() -> None:
    for _ in range(20):
        one = TensorMap()
        start, size = ctypes.addressof(one._buffer), ctypes.sizeof(one._buffer)
        assert one.address % 128 == 0
        assert start <= one.address <= start + size - 128


@pytest.mark.parametrize(("promotion", "value"), [(0, 0), (64, 1), (128, 2), (256, 3)])
def test_the_driver_is_told_what_a_miss_fetches(encoded: list[tuple[Any, ...]], promotion: int, value: int) -> None:
    encode(Matrix(4096, 24, 40, 96, "float16"), Box(16, 64, promotion))
    assert encoded[0][-2] == value


def test_the_driver_is_told_three_dimensions(encoded: list[tuple[Any, ...]]) -> None:
    encode(Matrix(4096, 24, 40, 96, "float16", 5, 4800), Box(16, 64, 256))
    encode(Matrix(4096, 24, 40, 96, "float16", 1, 0), Box(16, 64, 256))
    encode(Matrix(4096, 1, 40, 0, "float16", 5, 96), Box(16, 64, 256))
    assert [call[2:8] for call in encoded] == [
        (3, 4096, (40, 24, 5), (96, 4800), (64, 16, 1), (1, 1, 1)),
        # A stack of one has no stride; the driver still wants a legal one.
        (3, 4096, (40, 24, 1), (96, 96), (64, 16, 1), (1, 1, 1)),
        (3, 4096, (40, 1, 5), (80, 96), (64, 16, 1), (1, 1, 1)),
    ]
