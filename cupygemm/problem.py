"""What is to be computed: `Problem`, one matrix product."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Self

from cupygemm.dtypes import DTYPES, OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import Epilogue
from cupygemm.errors import ProblemError

LAYOUTS = ("nn", "nt", "tn", "tt")
"""First letter A[M,K], second B[K,N]: `n` = stored row-major, `t` = stored transposed."""

_SHAPE = re.compile(r"(\d+)[x×](\d+)[x×](\d+)")


@dataclass(frozen=True, order=True)
class Problem:
    """One product C[m,n] = A[m,k] · B[k,n], with everything that decides which kernel may run it.

    The fields together are the key under which configs are stored: two products that differ in any of them are
    two problems. Strides and addresses are no part of it.

    Attributes:
        m, n, k: sizes, in elements, each at least 1.
        batch: number of independent products, all of this size.
        a_dtype, b_dtype, out_dtype: names in `DTYPES`.
        layout: one of `LAYOUTS`.
        epilogue: what is applied to the accumulator before the store, as `Epilogue` writes it: "none", "bias_n+gelu".
        scales: scaling of the operands; "none".
        accumulate: dtype of the accumulator; "float32".

    Raises:
        ProblemError: a size below 1, or an unknown dtype, layout, epilogue, scales or accumulator.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: str = "float16"
    b_dtype: str = "float16"
    out_dtype: str = "float16"
    layout: str = "nn"
    epilogue: str = "none"
    scales: str = "none"
    accumulate: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ProblemError(f"{name} is {size!r}: sizes are integers of at least 1")
        for name in ("a_dtype", "b_dtype", "out_dtype"):
            dtype = getattr(self, name)
            if dtype not in DTYPES:
                raise ProblemError(
                    f"{name} is {dtype!r}: legal values are {', '.join(DTYPES)}; kernels are built for operands of "
                    f"{' and '.join(OPERAND_DTYPES)} and for results of {', '.join(RESULT_DTYPES)}"
                )
        _check_choice("layout", self.layout, LAYOUTS)
        Epilogue.parse(self.epilogue)
        _check_choice("scales", self.scales, ("none",))
        _check_choice("accumulate", self.accumulate, ("float32",))

    @classmethod
    def parse(cls, shape: str, dtype: str = "float16", out_dtype: str | None = None, layout: str = "nn") -> Self:
        """Reads "MxNxK", as the command line writes it, or "M×N×K", as reports do.

        Raises:
            ProblemError: `shape` is not of that form, or a size, dtype or layout is not legal.
        """
        match = _SHAPE.fullmatch(shape.strip().lower())
        if match is None:
            raise ProblemError(f"problem {shape!r}: write it as MxNxK, for example 2048x2048x4096")
        m, n, k = map(int, match.groups())
        return cls(m, n, k, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype or dtype, layout=layout)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            ProblemError: a field is missing, unknown or has an illegal value.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise ProblemError(f"problem {fields}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in declaration order: plain ints and strings."""
        return asdict(self)

    def matrix(self, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of an array of such matrices, one a product: with an axis before it where there is a batch."""
        return (rows, columns) if self.batch == 1 else (self.batch, rows, columns)

    @property
    def shape(self) -> str:
        """ "MxNxK"."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add for each of m·n·k·batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must move through device memory: each operand and residual read once, the result written once."""
        a = self.m * self.k * DTYPES[self.a_dtype].bytes
        b = self.k * self.n * DTYPES[self.b_dtype].bytes
        out = self.m * self.n * DTYPES[self.out_dtype].bytes
        residual = out if Epilogue.parse(self.epilogue).residual else 0
        return self.batch * (a + b + out + residual)

    def __str__(self) -> str:
        out = "" if self.out_dtype == self.a_dtype else f"→{self.out_dtype}"
        batch = "" if self.batch == 1 else f"{self.batch}×"
        epilogue = "" if self.epilogue == "none" else f" {self.epilogue}"
        return f"{batch}{self.shape} {self.a_dtype}{out} {self.layout}{epilogue}"


def _check_choice(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ProblemError(f"{name} is {value!r}: legal values are {', '.join(legal)}")
