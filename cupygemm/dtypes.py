"""The dtypes: `DTYPES`, one row for each, with everything that Python has to know of it.

What the kernel knows is in cuda_src: `DType` in config.cuh, `pack()` in epilogue.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

_MMA_K_BYTES = 32
"""Depth of one WGMMA, whatever its operands (PTX ISA, wgmma.mma_async shapes)."""


@dataclass(frozen=True)
class DType:
    """A dtype of operands or results.

    Attributes:
        name: NumPy's or ml_dtypes' name, and that of the enumerator in cuda_src/config.cuh.
        bytes: of an element.
        in_numpy: whether NumPy has it; ml_dtypes has the others.
        unit_roundoff: largest relative error of rounding to it, in its normal range.
        tiny: largest absolute error below that range: half the smallest number, or all of the range where results may
            be flushed to zero.
        tensor_map_type: CUtensorMapDataType of cuda.h.
        cublas_type: cudaDataType of library_types.h; None where the baseline is not called with it.
        mma_type: operand type in wgmma's mnemonic; None where no kernel of ours reads it.
        is_result: whether our kernels write it.
    """

    name: str
    bytes: int
    in_numpy: bool
    unit_roundoff: float
    tiny: float
    tensor_map_type: int
    cublas_type: int | None = None
    mma_type: str | None = None
    is_result: bool = False

    @property
    def is_operand(self) -> bool:
        """Whether our kernels read it."""
        return self.mma_type is not None

    @property
    def mma_k(self) -> int:
        """Depth of one WGMMA on operands of this dtype: the products added to an accumulator at once."""
        return _MMA_K_BYTES // self.bytes


_ROWS = (
    DType("float16", 2, True, 2.0**-11, 2.0**-25, 6, cublas_type=2, mma_type="f16", is_result=True),
    DType("bfloat16", 2, False, 2.0**-8, 2.0**-126, 9, cublas_type=14, mma_type="bf16", is_result=True),
    DType("float32", 4, True, 2.0**-24, 2.0**-126, 7, cublas_type=0, is_result=True),
    DType("float8_e4m3fn", 1, False, 2.0**-4, 2.0**-10, 0),
    DType("float8_e5m2", 1, False, 2.0**-3, 2.0**-17, 0),
)

DTYPES = {row.name: row for row in _ROWS}
"""Every dtype that a `Problem` may name."""
OPERAND_DTYPES = tuple(row.name for row in _ROWS if row.is_operand)
RESULT_DTYPES = tuple(row.name for row in _ROWS if row.is_result)
