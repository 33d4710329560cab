"""Whether it pays to copy operands for TMA: what a copy, an own kernel and `cupy.matmul` take, estimated in µs.

Where a forecast knows the product, its times of the own kernel and of cuBLAS with rows as they are go before what is
estimated here. Every rate is a model: that of copies is on the low side of what bench/packing.py measured (H200,
2026-11), those of cuBLAS where rows are not aligned are on the high side, so that a product stays with CuPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.problem import Problem
from cupygemm.views.copies import ITEM_BYTES, Copy

LAUNCH_US = 2.0
"""A kernel that does almost nothing, with what it waits for memory once."""
BYTES_PER_US = 3.5e6
"""Read and written by a copy; 4.3e6 is what the best of them reach on an H200."""
CUPY_COPY_BYTES_PER_US = 0.85e6
"""The same of the copies that `cupy.matmul` makes of what is not contiguous (bench/packing.py: 0.75e6 to 0.9e6)."""
SECTOR_BYTES = 32
"""What is read at least where elements lie apart."""
HOST_LAUNCH_US = 4.0
"""Of the host, for a launch after the first (bench/host.py: a prepared one takes 5)."""
MARGIN = 1.1
"""A guess must be so many times better than CuPy's to be acted upon."""

_OWN_FLOPS_PER_US = 700e6
_CUBLAS_FLOPS_PER_US = {2: 300e6, 4: 450e6, 8: 550e6, 16: 800e6}
"""By the alignment of rows in bytes: no large product was measured to reach more."""
_FLOAT32_FLOPS_PER_US = 47e6
"""Of stacks, which CuPy widens (measured: 46.5 TFLOP/s)."""


class Copying(Protocol):
    """What has copies of a and b: a `Packing`, or what one would be."""

    @property
    def copies(self) -> Sequence[Copy | None]:
        """None for an operand that is read where it lies."""
        ...


def pack_us(packing: Copying) -> float:
    """About what the copies of a packing take, µs of the GPU."""
    return LAUNCH_US + sum(_moved_bytes(copy) for copy in packing.copies if copy is not None) / BYTES_PER_US


def _moved_bytes(copy: Copy) -> float:
    """Read and written."""
    elements = copy.matrices * copy.rows * copy.columns
    apart = min(max(abs(copy.element_stride), 1) * ITEM_BYTES, SECTOR_BYTES)
    return elements * apart + copy.bytes


def own_us(problem: Problem) -> float:
    """About what an own kernel takes, where nobody has measured it, µs."""
    return LAUNCH_US + max(problem.flops / _OWN_FLOPS_PER_US, problem.compulsory_bytes / BYTES_PER_US)


def cupy_us(problem: Problem, a: Any, b: Any, cublas_us: float | None = None) -> float:
    """About what `cupy.matmul` takes at least, µs: copies of what is not contiguous, then cuBLAS.

    Args:
        problem: the product.
        a, b: its operands, as of `packing_of`.
        cublas_us: what a forecast expects of cuBLAS with operands without gaps.
    """
    if problem.batch > 1:
        widened = 3 * problem.compulsory_bytes / BYTES_PER_US  # 16 bits read, 32 written and read
        return LAUNCH_US + widened + problem.flops / _FLOAT32_FLOPS_PER_US
    copied = sum(LAUNCH_US + 2 * _bytes(each) / CUPY_COPY_BYTES_PER_US for each in (a, b) if not _is_contiguous(each))
    if cublas_us is not None and not _start(a) and not _start(b):
        return copied + cublas_us
    rate = _CUBLAS_FLOPS_PER_US[min(_alignment(each) for each in (a, b))]
    return copied + LAUNCH_US + max(problem.flops / rate, problem.compulsory_bytes / BYTES_PER_US)


def pays(
    problem: Problem,
    packing: Copying,
    a: Any,
    b: Any,
    own_kernel_us: float | None = None,
    cublas_us: float | None = None,
) -> bool:
    """Whether the copies and an own kernel are expected to be clearly quicker than `cupy.matmul`.

    Args:
        problem, a, b: as of `cupy_us`.
        own_kernel_us: what the own kernel takes, where it is known or forecast.
        cublas_us: as of `cupy_us`.
    """
    if problem.batch > 1 and problem.a_dtype != "float16":
        return True  # cupy.matmul refuses stacks of bfloat16
    own = own_us(problem) if own_kernel_us is None else own_kernel_us
    return MARGIN * (pack_us(packing) + own) < cupy_us(problem, a, b, cublas_us)


def slices_pay(problem: Problem, launches: int, a: Any, b: Any) -> bool:
    """Whether several launches are expected to take the host no longer than the whole takes `cupy.matmul` on the GPU.

    Args:
        problem: of one launch.
        launches: of as many.
        a, b: operands of the first.
    """
    if problem.a_dtype != "float16":
        return True  # cupy.matmul refuses stacks of bfloat16
    whole = replace(problem, batch=max(2, problem.batch * launches))
    return launches * HOST_LAUNCH_US < cupy_us(whole, a, b)


def _bytes(operand: Any) -> int:
    return int(math.prod(operand.shape)) * ITEM_BYTES


def _lies_in(operand: Any, by_columns: bool) -> bool:
    """Whether a matrix lies in memory by rows, or by columns, without gaps; CuPy copies what does neither."""
    (rows, columns), strides = operand.shape[-2:], operand.strides[-2:]
    dense = (ITEM_BYTES, rows * ITEM_BYTES) if by_columns else (columns * ITEM_BYTES, ITEM_BYTES)
    axes = zip((rows, columns), strides, dense, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in axes)


def _is_contiguous(operand: Any) -> bool:
    return _lies_in(operand, False) or _lies_in(operand, True)


def _start(operand: Any) -> int:
    """By how much the address that cuBLAS gets misses a multiple of 16 bytes."""
    # A copy of CuPy's begins where its pool does.
    return int(operand.data.ptr) % TMA_ALIGNMENT if _is_contiguous(operand) else 0


def _alignment(operand: Any) -> int:
    """The largest power of two, up to TMA's, of which the rows that cuBLAS gets are a multiple, bytes."""
    rows, columns = operand.shape[-2:]
    by_columns = _lies_in(operand, True) and not _lies_in(operand, False)
    pitch = (rows if by_columns else columns) * ITEM_BYTES
    return max(math.gcd(pitch, TMA_ALIGNMENT, _start(operand)), ITEM_BYTES)
