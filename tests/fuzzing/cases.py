"""A case of the fuzz of `matmul`: what is called, with arrays of which shapes, dtypes and places; plain values only.

A case is written as one line of JSON, from which it can be run again. Values of operands follow from its seed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from cupygemm.measuring.verify import ZERO_MEAN, numpy_dtype
from tests.fuzzing.storage import Storage

REGIONS = ("a", "b", "bias", "residual")
"""Arrays that `out` may lie on."""


@dataclass(frozen=True)
class Array:
    """An array of a call."""

    shape: tuple[int, ...]
    dtype: str
    storage: Storage

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """From what `asdict` gives."""
        storage = dict(fields["storage"])
        for name in ("order", "steps"):
            storage[name] = tuple(storage[name])
        return cls(tuple(fields["shape"]), fields["dtype"], Storage(**storage))


@dataclass(frozen=True)
class Call:
    """How a call differs from the first drawn: shapes, strides and dtypes are those of the case.

    Attributes:
        a_shift, b_shift: elements by which the operand starts later.
        out_shift: elements by which `out` starts later.
        out_on: one of `REGIONS`, at whose start `out` lies; "" for memory of its own.
    """

    a_shift: int = 0
    b_shift: int = 0
    out_shift: int = 0
    out_on: str = ""


@dataclass(frozen=True)
class Case:
    """One or several calls of `matmul` that differ in values and places only.

    Attributes:
        b: None for `a` with its last axes exchanged.
        out: None for a new array.
        bias, residual: None where there is none.
        dtype: the option of `cupy.matmul`; None where it is not given.
        kind: of values, one of `verify.DATA_KINDS`.
        seed: of values.
        calls: one after the other; the first call of a key and those that repeat it.
    """

    a: Array
    b: Array | None
    out: Array | None = None
    bias: Array | None = None
    residual: Array | None = None
    activation: str | None = None
    alpha: float = 1.0
    beta: float = 1.0
    out_dtype: str | None = None
    dtype: str | None = None
    kind: str = ZERO_MEAN
    seed: int = 0
    calls: tuple[Call, ...] = (Call(), Call())

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """The inverse of `str`.

        Raises:
            ValueError, TypeError, KeyError: it is no case.
        """
        fields = json.loads(text)
        for name in ("a", "b", "out", "bias", "residual"):
            fields[name] = None if fields[name] is None else Array.read(fields[name])
        fields["calls"] = tuple(Call(**call) for call in fields["calls"])
        return cls(**fields)

    @property
    def right(self) -> Array:
        """`b`, or what stands for it."""
        if self.b is not None:
            return self.b
        shape = (*self.a.shape[:-2], self.a.shape[-1], self.a.shape[-2])
        return replace(self.a, shape=shape)

    @property
    def k(self) -> int:
        """Products that an element is the sum of."""
        return self.a.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, as NumPy has it."""
        a, b = self.a.shape, self.right.shape
        return (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))

    @property
    def is_fused(self) -> bool:
        """Whether anything is asked for beside the product."""
        terms = (self.bias, self.residual, self.activation, self.out_dtype)
        return any(term is not None for term in terms) or (self.alpha, self.beta) != (1.0, 1.0)

    @property
    def natural_dtype(self) -> str:
        """Of the product before it is cast to `out`; with an epilogue of the result."""
        if self.is_fused:
            named = self.out_dtype or (self.out.dtype if self.out is not None else None)
            return named or self.promoted_dtype
        return self.dtype or self.promoted_dtype

    @property
    def promoted_dtype(self) -> str:
        """What NumPy makes of the operands' dtypes."""
        return np.promote_types(numpy_dtype_of(self.a.dtype), numpy_dtype_of(self.right.dtype)).name

    @property
    def result_dtype(self) -> str:
        """Of what is returned."""
        return self.natural_dtype if self.out is None else self.out.dtype


def numpy_dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name, bfloat16 among them."""
    return numpy_dtype(name) if name == "bfloat16" else np.dtype(name)
