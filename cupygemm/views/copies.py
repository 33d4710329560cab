"""Operands that TMA cannot read: which they are, and how copies of them lie that it can read.

Goes by shapes, strides and addresses alone; nothing is launched or allocated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.kernels.pack_kernel import CHUNK_ELEMENTS, MAX_CHUNKS
from cupygemm.kernels.placement import misaligned_reason

ITEM_BYTES = 2
"""Of an element: the kernel copies those of 16 bits."""
LINE_ELEMENTS = 64
"""Of a line of the L2. The rows of a copy begin with one where that adds little to them: a box of TMA is as wide, and
so takes one line of each row and not parts of two."""
SHORT_ROW = 512
"""Elements below which a row ends with its last chunk: up to a line more would be an eighth of it, and more."""


class Copy(NamedTuple):
    """How an operand is copied: the axis whose elements lie closest together becomes contiguous, and is padded.

    Attributes:
        shape: of the operand, [rows, columns] or [batch, rows, columns].
        transposed: whether the rows of the copy are the operand's columns.
        matrices, rows, columns: of the copy; one matrix where all products share it.
        pitch: elements of a row of the copy, padding included.
        matrix_stride, row_stride, element_stride: of the operand along the copy's axes, in elements.
    """

    shape: tuple[int, ...]
    transposed: bool
    matrices: int
    rows: int
    columns: int
    pitch: int
    matrix_stride: int
    row_stride: int
    element_stride: int

    @property
    def chunks(self) -> int:
        """Of 16 bytes, in all."""
        return self.matrices * self.rows * self.pitch // CHUNK_ELEMENTS

    @property
    def bytes(self) -> int:
        """Of the copy."""
        return self.matrices * self.rows * self.pitch * ITEM_BYTES

    @property
    def span(self) -> tuple[int, int]:
        """Where the operand's elements lie: from the first number to before the second; nothing else is read.

        Counted in elements from the one whose index is 0 along all axes, which need not have the lowest address.
        """
        axes = (
            (self.matrices, self.matrix_stride),
            (self.rows, self.row_stride),
            (self.columns, self.element_stride),
        )
        reaches = [(extent - 1) * stride for extent, stride in axes]
        return sum(min(reach, 0) for reach in reaches), sum(max(reach, 0) for reach in reaches) + 1

    @property
    def geometry(self) -> tuple[int, ...]:
        """What decides which elements go where, apart from the address of the first."""
        return self[2:]

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the copy seen as the operand, bytes."""
        row = self.pitch * ITEM_BYTES
        matrix = (ITEM_BYTES, row) if self.transposed else (row, ITEM_BYTES)
        return ((self.rows * row if self.matrices > 1 else 0,) if len(self.shape) > 2 else ()) + matrix


def needs_packing(operand: Any) -> str | None:
    """Why TMA cannot read an operand of a product where it lies, by rows or by columns; None where it can.

    Args:
        operand: a CuPy array or `Stack`, [rows, columns] or [batch, rows, columns].
    """
    by_rows, by_columns = (misaligned_reason(operand, transposed) for transposed in (False, True))
    if by_rows is None or by_columns is None:
        return None
    return by_columns if operand.strides[-2] == operand.dtype.itemsize else by_rows


def copy_of(operand: Any) -> Copy | str:
    """How an operand would be copied, or why it cannot be.

    Args:
        operand: as of `needs_packing`, with elements.
    """
    shape, strides, dtype = operand.shape, operand.strides, operand.dtype
    if dtype.name not in OPERAND_DTYPES:
        return f"it is {dtype.name}: {' and '.join(OPERAND_DTYPES)} are copied"
    if not all(shape):
        return f"it has no elements, its shape is {shape}"
    if operand.data.ptr % ITEM_BYTES or any(stride % ITEM_BYTES for stride in strides):
        return f"it starts at {operand.data.ptr:#x} with strides of {strides} bytes, which is between elements"
    row, column = strides[-2] // ITEM_BYTES, strides[-1] // ITEM_BYTES
    transposed = _goes_before((shape[-2], row), (shape[-1], column))
    axes = (shape[-1], shape[-2], column, row) if transposed else (shape[-2], shape[-1], row, column)
    rows, columns, row_stride, element_stride = axes
    step = strides[0] // ITEM_BYTES if len(shape) > 2 else 0
    matrices = shape[0] if step else 1
    unit = LINE_ELEMENTS if columns >= SHORT_ROW else CHUNK_ELEMENTS
    pitch = -(-columns // unit) * unit
    found = Copy(shape, transposed, matrices, rows, columns, pitch, step, row_stride, element_stride)
    if found.chunks > MAX_CHUNKS:
        most = MAX_CHUNKS * CHUNK_ELEMENTS * ITEM_BYTES / 2**30
        return f"its copy would take {found.bytes / 2**30:.0f} GiB, and at most {most:.0f} GiB are copied"
    return found


def _goes_before(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether the first of two axes, each its extent and stride in elements, is the one to be made contiguous."""

    def rank(extent: int, stride: int) -> tuple[bool, bool, int]:
        # One of one element would make rows of one; 0 lies closer together than 1, but is read element by element.
        return extent == 1, stride != 1, abs(stride)

    return rank(*first) < rank(*second)
