"""`matmul` with an epilogue: one launch where an own kernel runs, else cuBLAS and an elementwise kernel of CuPy's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cupygemm import driver
from cupygemm.choice import Choice
from cupygemm.dispatch import Dispatcher
from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import ACTIVATIONS, NONE, Epilogue, activation_code
from cupygemm.errors import ProblemError
from cupygemm.fallback import are_arrays, dtype_name, fall_back
from cupygemm.placement import unstorable_reason
from cupygemm.plan import Plan
from cupygemm.posing import Posed, overlap, pose
from cupygemm.product import refuse_capture, target_of
from cupygemm.stacks import PosedStack, pose_stack


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
        """Whether there is anything beside the product."""
        arrays = self.bias is not None or self.residual is not None
        return arrays or (self.activation, self.alpha, self.out_dtype) != (None, 1.0, None)


class Fitted(NamedTuple):
    """An own kernel for a call, and what it is launched with.

    Attributes:
        target: what it writes into; None for a new array, which is then copied to `out` if there is one.
    """

    posed: Posed | PosedStack
    plan: Plan
    bias: Any
    residual: Any
    target: Any


def multiply(dispatcher: Dispatcher, a: Any, b: Any, out: Any, terms: Terms) -> Any:
    """activation(alpha · a · b + bias + beta · residual), into `out` or a new array.

    Raises:
        ValueError, TypeError, CaptureError, BundleError: as `matmul`.
    """
    choice, dtype, fitted = decide(dispatcher, a, b, out, terms)
    if fitted is None:
        refuse_capture(a, b, choice.reason)
        return _unfused(a, b, out, terms, dtype)
    result = fitted.target
    if result is None:
        result = driver.cupy().empty(fitted.posed.product_shape, dtype=dtype)
    fitted.plan(fitted.posed.a, fitted.posed.b, result, fitted.bias, fitted.residual, terms.alpha, terms.beta)
    if out is None:
        return result.reshape(fitted.posed.shape)
    if fitted.target is None:
        out[...] = result.reshape(fitted.posed.shape)
    return out


def decide(
    dispatcher: Dispatcher, a: Any, b: Any, out: Any, terms: Terms
) -> tuple[Choice, np.dtype[Any], Fitted | None]:
    """What runs a product with an epilogue: the choice, the result's dtype, and the own kernel if it is one.

    Raises:
        ValueError, TypeError, CaptureError, BundleError: as `matmul`.
    """
    _check(a, b, out, terms)
    dtype = np.dtype(terms.out_dtype or (a.dtype if out is None else out.dtype))

    def left(reason: str) -> tuple[Choice, np.dtype[Any], None]:
        return Choice("cublas", reason), dtype, None

    posed = pose(a, b) or (pose_stack(a, b) if a.ndim and b.ndim else None)
    if posed is None:
        return left("the operands are no two matrices or stacks of equal steps")
    if a.dtype.name not in OPERAND_DTYPES or dtype.name not in RESULT_DTYPES:
        return left(f"operands are {a.dtype.name}, the result {dtype.name}: no own kernel has these")
    bias, kind = _placed_bias(terms.bias, posed, dtype)
    residual = None if terms.residual is None else _placed_residual(terms.residual, posed, dtype)
    if (bias is None) != (terms.bias is None) or (residual is None) != (terms.residual is None):
        return left("bias or residual is broadcast, of another dtype, or lies so that no own kernel reads it")
    epilogue = Epilogue.of(
        bias=kind, residual=residual is not None, activation=terms.activation or NONE, alpha=terms.alpha
    )
    choice, plan = dispatcher.choose(posed.a, posed.b, None, dtype.name, str(epilogue))
    if plan is None:
        return choice, dtype, None
    target = None
    if out is not None:
        if out.shape != posed.shape:
            raise ValueError(f"out has shape {out.shape}, the product {posed.shape}")
        target, _ = target_of(out, a, b, posed, dtype)
        in_place = terms.residual is not None and _same(out, terms.residual)
        read = (terms.bias, None if in_place else terms.residual)
        if any(term is not None and overlap(out, term) for term in read):
            target = None
    return choice, dtype, Fitted(posed, plan, bias, residual, target)


def _check(a: Any, b: Any, out: Any, terms: Terms) -> None:
    arrays = {"a": a, "b": b, "out": out, "bias": terms.bias, "residual": terms.residual}
    for name, array in arrays.items():
        if array is None and name not in ("a", "b"):
            continue
        if not are_arrays(array):
            raise TypeError(f"matmul: {name} is {type(array).__name__}: with an epilogue it must be a CuPy array")
        if array.dtype.kind != "f" and dtype_name(array.dtype) != "bfloat16":
            raise TypeError(f"matmul: {name} is {array.dtype.name}: epilogues are built for floating-point arrays")
        if array.device != a.device:
            raise ValueError(f"matmul: {name} is on device {array.device.id}, a on {a.device.id}")
    if terms.activation is not None and terms.activation not in ACTIVATIONS:
        raise ProblemError(f"activation is {terms.activation!r}: legal are None, {', '.join(ACTIVATIONS)}")


def _placed_bias(bias: Any, posed: Posed | PosedStack, dtype: np.dtype[Any]) -> tuple[Any, str]:
    """The bias as a vector and the axis that it goes along, or None where no kernel reads it so."""
    if bias is None or bias.dtype != dtype:
        return None, NONE
    rows, columns = posed.product_shape[-2:]
    shape = bias.shape if posed.has_column_axis else (*bias.shape, 1)
    if bias.size == columns and shape and shape[-1] == columns and columns > 1:
        vector, kind = bias.reshape(columns), "n"
    elif bias.size == rows and len(shape) > 1 and shape[-2:] == (rows, 1):
        vector, kind = bias.reshape(rows), "m"
    else:
        return None, NONE
    if rows != _rows_of_one(posed) and kind == "m":
        return None, NONE
    fits = vector.data.ptr == bias.data.ptr and vector.data.ptr % 8 == 0 and vector.flags.c_contiguous
    return (vector, kind) if fits else (None, NONE)


def _rows_of_one(posed: Posed | PosedStack) -> int:
    """Rows of one matrix as the caller sees it: a stack times one matrix has more when posed."""
    axis = -2 if posed.has_column_axis else -1
    return posed.shape[axis] if len(posed.shape) >= -axis else 1


def _placed_residual(residual: Any, posed: Posed | PosedStack, dtype: np.dtype[Any]) -> Any:
    """The residual as [m, n] or [batch, m, n], or None where no kernel reads it so."""
    if residual.dtype != dtype or residual.shape != posed.shape:
        return None
    matrix = posed.matrix_of(residual)
    if matrix is None or unstorable_reason(matrix) is not None or matrix.data.ptr % 8:
        return None
    return None if any(stride % 8 for stride in matrix.strides[:-1]) else matrix


def _same(x: Any, y: Any) -> bool:
    """Whether two arrays are one and the same memory, element by element."""
    return bool(x.data.ptr == y.data.ptr and x.shape == y.shape and x.strides == y.strides and x.dtype == y.dtype)


def _unfused(a: Any, b: Any, out: Any, terms: Terms, dtype: np.dtype[Any]) -> Any:
    """The same by CuPy: the product, rounded to the operands' dtype, and one kernel for all the rest."""
    product = fall_back(a, b, None, {}, pose(a, b))
    cupy = driver.cupy()
    zero = cupy.zeros((), dtype=product.dtype)
    bias = zero if terms.bias is None else terms.bias
    residual = zero if terms.residual is None else terms.residual
    wide = "float64" if "float64" in (product.dtype.name, dtype.name) else "float32"
    if out is not None and any(term is not None and overlap(out, term) for term in (terms.bias, terms.residual)):
        bias, residual = bias.copy(), residual.copy()
    target = cupy.empty(product.shape, dtype=dtype) if out is None else out
    if product.shape != target.shape:
        raise ValueError(f"out has shape {target.shape}, the product {product.shape}")
    rest = _elementwise(terms.activation or NONE, wide)
    rest(product, bias, residual, float(terms.alpha), float(terms.beta), target)
    return target


@cache
def _elementwise(activation: str, wide: str) -> Any:
    real = "double" if wide == "float64" else "float"
    code = f"{real} x = alpha * {real}(product) + {real}(bias) + beta * {real}(residual);"
    code += f" out = O({activation_code(activation, real)});"
    inputs = f"T product, B bias, R residual, {wide} alpha, {wide} beta"
    return driver.cupy().ElementwiseKernel(inputs, "O out", code, "cupygemm_epilogue")
