"""The values of an epilogue's terms, on their way to a kernel."""

from __future__ import annotations

from typing import Any

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import DTYPES
from cupygemm.epilogue import NONE, Epilogue
from cupygemm.errors import ProblemError
from cupygemm.kernels.placement import check_array, check_rows
from cupygemm.problem import Problem


def pair_alignment(columns: int, itemsize: int) -> int:
    """To how many bytes bias and residual are aligned: where rows of the result are, a kernel reads pairs.

    Args:
        columns: of the result.
        itemsize: of its elements.
    """
    return itemsize * (1 if columns * itemsize % TMA_ALIGNMENT else 2)


class EpilogueTerms:
    """Checks the values of a problem's epilogue and puts them where a kernel finds them."""

    def __init__(self, problem: Problem) -> None:
        self._epilogue = Epilogue.parse(problem.epilogue)
        self._dtype = problem.out_dtype
        self._bias_length = {NONE: 0, "n": problem.n, "m": problem.m}[self._epilogue.bias]
        self._shape = problem.matrix(problem.m, problem.n)
        self._alignment = pair_alignment(problem.n, DTYPES[problem.out_dtype].bytes)

    def fill(self, arguments: Any, bias: Any, residual: Any, alpha: float, beta: float) -> None:
        """Writes what the epilogue reads into the arguments of a launch.

        Raises:
            ProblemError: a term is missing, is there though the epilogue has none, or is not as it must be.
        """
        for name, array, expected in (
            ("bias", bias, self._epilogue.bias != NONE),
            ("residual", residual, self._epilogue.residual),
        ):
            if (array is not None) != expected:
                what = "is missing" if expected else "is there"
                raise ProblemError(f"{name} {what}, and the plan was made for the epilogue {self._epilogue}")
        if bias is not None:
            check_array("bias", bias, (self._bias_length,), self._dtype)
            if bias.size > 1 and bias.strides[0] != bias.dtype.itemsize:
                raise ProblemError(f"bias has a stride of {bias.strides[0]} bytes: it must be contiguous")
            self._check_address("bias", bias)
            arguments.bias = bias.data.ptr
        if residual is not None:
            check_rows("residual", residual, self._shape, self._dtype)
            self._check_address("residual", residual)
            if any(stride % self._alignment for stride in residual.strides[:-1]):
                raise ProblemError(f"residual has strides {residual.strides}: multiples of {self._alignment} bytes")
            itemsize = residual.dtype.itemsize
            arguments.residual = residual.data.ptr
            arguments.residual_row_stride = residual.strides[-2] // itemsize
            arguments.residual_batch_stride = residual.strides[0] // itemsize if residual.ndim > 2 else 0
        arguments.alpha, arguments.beta = alpha, beta

    def _check_address(self, name: str, array: Any) -> None:
        if array.data.ptr % self._alignment:
            raise ProblemError(f"{name} starts at an address that is no multiple of {self._alignment}")
