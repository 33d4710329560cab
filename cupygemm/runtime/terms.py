"""What `matmul` is asked to add to a product: `Terms`, whether they are legal, and how a kernel reads them."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from cupygemm.epilogue import ACTIVATIONS, NONE
from cupygemm.errors import ProblemError
from cupygemm.kernels.placement import unstorable_reason
from cupygemm.runtime.fallback import are_arrays, dtype_name
from cupygemm.text import type_name
from cupygemm.views.posing import Posed
from cupygemm.views.stacks import PosedStack


class Terms(NamedTuple):
    """What `matmul` was asked to add to a product.

    Attributes:
        bias, residual: CuPy arrays that broadcast to the result, or None.
        activation: one of `ACTIVATIONS`, or None.
        alpha, beta: factors of the product and of the residual.
        out_dtype: of the result; None for that of `out`, or of the operands.
    """

    bias: Any = None
    activation: str | None = None
    residual: Any = None
    alpha: float = 1.0
    beta: float = 1.0
    out_dtype: Any = None

    def any(self) -> bool:
        """Whether anything was asked for beside the product."""
        # One by one: what is no number may compare element by element.
        return (
            any(term is not None for term in (self.bias, self.activation, self.residual, self.out_dtype))
            or not is_one(self.alpha)
            or not is_one(self.beta)
        )

    @property
    def factors(self) -> tuple[float, float]:
        """alpha and beta."""
        return float(self.alpha), float(self.beta)


NO_TERMS = Terms()


def read_terms(bias: Any, activation: Any, residual: Any, alpha: Any, beta: Any, out_dtype: Any) -> Terms:
    """The terms of a call: a residual times 0 is none, as in BLAS, whatever it holds."""
    if residual is not None and _is_number(beta) and beta == 0:
        return Terms(bias, activation, None, alpha, 1.0, residual.dtype if out_dtype is None else out_dtype)
    return Terms(bias, activation, residual, alpha, beta, out_dtype)


def check(a: Any, b: Any, out: Any, terms: Terms) -> None:
    """Refuses what makes no product with an epilogue, whoever computes it.

    Raises:
        TypeError: something is no CuPy array, is not floating-point, or is no number.
        ProblemError: arrays are on several devices, beta has nothing to multiply, or there is no such activation.
    """
    arrays = {"a": a, "b": b, "out": out, "bias": terms.bias, "residual": terms.residual}
    for name, array in arrays.items():
        if array is None and name not in ("a", "b"):
            continue
        if not are_arrays(array):
            raise TypeError(f"matmul: {name} is {type_name(array)}: with an epilogue it must be a CuPy array")
        if not _is_floating(array.dtype):
            raise TypeError(f"matmul: {name} is {array.dtype.name}: epilogues are built for floating-point arrays")
        if array.device != a.device:
            raise ProblemError(f"matmul: {name} is on device {array.device.id}, a on {a.device.id}")
    factors: dict[str, Any] = {"alpha": terms.alpha, "beta": terms.beta}
    for name, factor in factors.items():
        if not _is_number(factor):
            raise TypeError(f"matmul: {name} is {type_name(factor)}: it must be a number of Python's or NumPy's")
    if terms.residual is None and not is_one(terms.beta):
        raise ProblemError(f"beta is {terms.beta}, and there is no residual: residual=out adds to what out holds")
    if terms.activation is not None and terms.activation not in ACTIVATIONS:
        raise ProblemError(f"activation is {terms.activation!r}: legal are None, {', '.join(ACTIVATIONS)}")


def check_shapes(out: Any, terms: Terms, shape: tuple[int, ...]) -> None:
    """Refuses an `out`, and terms, that do not go with a product of this shape.

    Raises:
        ProblemError: as said.
    """
    if out is not None and out.shape != shape:
        raise ProblemError(f"out has shape {out.shape}, the product {shape}")
    for name, term in (("bias", terms.bias), ("residual", terms.residual)):
        if term is not None and not _broadcasts(term.shape, shape):
            raise ProblemError(f"{name} has shape {term.shape}, which does not broadcast to the product's {shape}")


def result_dtype(a: Any, b: Any, out: Any, wanted: Any) -> np.dtype[Any]:
    """The dtype of a product with an epilogue.

    Raises:
        TypeError: the one wanted is not floating-point.
        ProblemError: it is not that of `out`.
    """
    if wanted is None:
        dtype: np.dtype[Any] = np.promote_types(a.dtype, b.dtype) if out is None else out.dtype
        return dtype
    dtype = np.dtype(wanted)
    if not _is_floating(dtype):
        raise TypeError(f"matmul: out_dtype is {dtype.name}: epilogues are built for floating-point results")
    if out is not None and out.dtype != dtype:
        raise ProblemError(f"out_dtype is {dtype.name}, and out {out.dtype.name}: leave one away")
    return dtype


def placed_bias(bias: Any, posed: Posed | PosedStack, dtype: np.dtype[Any], alignment: int) -> tuple[Any, str]:
    """The bias as a vector and the axis that it goes along; None where there is none, or no kernel reads it so."""
    if bias is None or bias.dtype != dtype:
        return None, NONE
    rows, columns = posed.product_shape[-2:]
    shape = bias.shape if posed.has_column_axis else (*bias.shape, 1)
    if bias.size == columns > 1 and shape[-1] == columns:
        vector, kind = bias.reshape(columns), "n"
    # A stack that is posed as one tall matrix has more rows than a bias can have that broadcasts.
    elif bias.size == rows and shape[-2:] == (rows, 1):
        vector, kind = bias.reshape(rows), "m"
    else:
        return None, NONE
    in_place = vector.data.ptr == bias.data.ptr and vector.flags.c_contiguous
    return (vector, kind) if in_place and vector.data.ptr % alignment == 0 else (None, NONE)


def placed_residual(residual: Any, posed: Posed | PosedStack, dtype: np.dtype[Any], alignment: int) -> Any:
    """The residual as [m, n] or [batch, m, n]; None where there is none, or no kernel reads it so."""
    if residual is None or residual.dtype != dtype or residual.shape != posed.shape:
        return None
    matrix = posed.matrix_of(residual)
    if matrix is None or unstorable_reason(matrix) is not None:
        return None
    return None if any(place % alignment for place in (matrix.data.ptr, *matrix.strides[:-1])) else matrix


def is_same(x: Any, y: Any) -> bool:
    """Whether two arrays are one and the same memory, element by element."""
    return bool(x.data.ptr == y.data.ptr and x.shape == y.shape and x.strides == y.strides and x.dtype == y.dtype)


def is_one(factor: Any) -> bool:
    """Whether it is a number that changes nothing as a factor."""
    return _is_number(factor) and factor == 1.0


def _is_number(value: Any) -> bool:
    # Whether it is Real alone takes 0.4 us more.
    return type(value) is float or type(value) is int or isinstance(value, Real)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype_name(dtype) == "bfloat16"


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    ends = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, whole) for size, whole in ends)
