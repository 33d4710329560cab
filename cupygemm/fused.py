"""`matmul` with an epilogue: one launch where an own kernel runs, else cuBLAS and an elementwise kernel of CuPy's."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from cupygemm import driver
from cupygemm.choice import Choice
from cupygemm.dispatch import Dispatcher, is_capturing
from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.elementwise import epilogue_kernel
from cupygemm.epilogue import ACTIVATIONS, NONE, Epilogue
from cupygemm.epilogue_terms import pair_alignment
from cupygemm.errors import CaptureError, ProblemError
from cupygemm.fallback import are_arrays, dtype_name, fall_back, wants_float32
from cupygemm.kernel_plan import Plan
from cupygemm.placement import unstorable_reason
from cupygemm.posing import Posed, overlap, pose
from cupygemm.product import target_of
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
        """Whether anything was asked for beside the product."""
        # One by one: what is no number may compare element by element.
        return (
            any(term is not None for term in (self.bias, self.activation, self.residual, self.out_dtype))
            or not _is_one(self.alpha)
            or not _is_one(self.beta)
        )

    @property
    def factors(self) -> tuple[float, float]:
        """alpha and beta."""
        return float(self.alpha), float(self.beta)


class Fitted(NamedTuple):
    """An own kernel for a call, and what it is launched with.

    Attributes:
        posed: the product as matrices, or as stacks of them.
        plan: what launches the kernel.
        bias, residual: as the plan takes them, or None.
        target: `out` as it takes it; None for a new array, which is copied to `out` if there is one.
        detour: why `out` is not written into; None where there is none or it is.
    """

    posed: Posed | PosedStack
    plan: Plan
    bias: Any
    residual: Any
    target: Any = None
    detour: str | None = None


def multiply(dispatcher: Dispatcher, a: Any, b: Any, out: Any, terms: Terms) -> Any:
    """activation(alpha · a · b + bias + beta · residual), into `out` or a new array.

    Raises:
        ValueError, TypeError, CaptureError, BundleError: as `matmul`.
    """
    choice, dtype, fitted = decide(dispatcher, a, b, out, terms)
    if fitted is None:
        if is_capturing():
            raise CaptureError(f"a CUDA graph is being captured, and no own kernel runs: {choice.reason}")
        return _unfused(a, b, out, terms, dtype)
    result = fitted.target
    if result is None:
        if out is not None and is_capturing():
            # The new array would be free for others after this call, and be written to at every replay.
            raise CaptureError(f"a CUDA graph is being captured, and out needs an array beside it: {fitted.detour}")
        result = driver.cupy().empty(fitted.posed.product_shape, dtype=dtype)
    fitted.plan(fitted.posed.a, fitted.posed.b, result, fitted.bias, fitted.residual, *terms.factors)
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
    dtype = _result_dtype(a, b, out, terms.out_dtype)

    def left(reason: str) -> tuple[Choice, np.dtype[Any], None]:
        return Choice("cublas", reason), dtype, None

    posed = pose(a, b) or pose_stack(a, b)
    if posed is None:
        return left("the operands are no two matrices or stacks of equal steps")
    _check_shapes(out, terms, posed.shape)
    if a.dtype.name not in OPERAND_DTYPES or dtype.name not in RESULT_DTYPES:
        return left(f"operands are {a.dtype.name}, the result {dtype.name}: no own kernel has these")
    alignment = pair_alignment(posed.product_shape[-1], dtype.itemsize)
    bias, kind = _placed_bias(terms.bias, posed, dtype, alignment)
    residual = _placed_residual(terms.residual, posed, dtype, alignment)
    if (bias is None) != (terms.bias is None) or (residual is None) != (terms.residual is None):
        return left("bias or residual is broadcast, of another dtype, or lies so that no own kernel reads it")
    epilogue = Epilogue.of(
        bias=kind, residual=residual is not None, activation=terms.activation or NONE, alpha=terms.alpha
    )
    choice, plan = dispatcher.choose(posed.a, posed.b, None, dtype.name, str(epilogue))
    if plan is None:
        return choice, dtype, None
    target, detour = (None, None) if out is None else _target(out, a, b, terms, posed, dtype)
    if detour is not None:
        choice = replace(choice, reason=f"{choice.reason}; into a new array, then copied to out: {detour}")
    return choice, dtype, Fitted(posed, plan, bias, residual, target, detour)


def _is_one(factor: Any) -> bool:
    return isinstance(factor, Real) and factor == 1.0


def _check(a: Any, b: Any, out: Any, terms: Terms) -> None:
    arrays = {"a": a, "b": b, "out": out, "bias": terms.bias, "residual": terms.residual}
    for name, array in arrays.items():
        if array is None and name not in ("a", "b"):
            continue
        if not are_arrays(array):
            raise TypeError(f"matmul: {name} is {type(array).__name__}: with an epilogue it must be a CuPy array")
        if not _is_floating(array.dtype):
            raise TypeError(f"matmul: {name} is {array.dtype.name}: epilogues are built for floating-point arrays")
        if array.device != a.device:
            raise ProblemError(f"matmul: {name} is on device {array.device.id}, a on {a.device.id}")
    factors: dict[str, Any] = {"alpha": terms.alpha, "beta": terms.beta}
    for name, factor in factors.items():
        if not isinstance(factor, Real):
            raise TypeError(f"matmul: {name} is {type(factor).__name__}: it must be a number of Python's or NumPy's")
    if terms.residual is None and not _is_one(terms.beta):
        raise ProblemError(f"beta is {terms.beta}, and there is no residual: residual=out adds to what out holds")
    if terms.activation is not None and terms.activation not in ACTIVATIONS:
        raise ProblemError(f"activation is {terms.activation!r}: legal are None, {', '.join(ACTIVATIONS)}")


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype_name(dtype) == "bfloat16"


def _result_dtype(a: Any, b: Any, out: Any, wanted: Any) -> np.dtype[Any]:
    if wanted is None:
        dtype: np.dtype[Any] = np.promote_types(a.dtype, b.dtype) if out is None else out.dtype
        return dtype
    dtype = np.dtype(wanted)
    if not _is_floating(dtype):
        raise TypeError(f"matmul: out_dtype is {dtype.name}: epilogues are built for floating-point results")
    if out is not None and out.dtype != dtype:
        raise ProblemError(f"out_dtype is {dtype.name}, and out {out.dtype.name}: leave one away")
    return dtype


def _placed_bias(bias: Any, posed: Posed | PosedStack, dtype: np.dtype[Any], alignment: int) -> tuple[Any, str]:
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


def _placed_residual(residual: Any, posed: Posed | PosedStack, dtype: np.dtype[Any], alignment: int) -> Any:
    """The residual as [m, n] or [batch, m, n]; None where there is none, or no kernel reads it so."""
    if residual is None or residual.dtype != dtype or residual.shape != posed.shape:
        return None
    matrix = posed.matrix_of(residual)
    if matrix is None or unstorable_reason(matrix) is not None:
        return None
    return None if any(place % alignment for place in (matrix.data.ptr, *matrix.strides[:-1])) else matrix


def _target(
    out: Any, a: Any, b: Any, terms: Terms, posed: Posed | PosedStack, dtype: np.dtype[Any]
) -> tuple[Any, str | None]:
    """`out` as a kernel is to write into it, or None and why it cannot."""
    # Each thread reads the residual where it then stores, so the two may be one.
    residual = None if terms.residual is None or _same(out, terms.residual) else terms.residual
    for name, term in (("bias", terms.bias), ("residual", residual)):
        if term is not None and overlap(out, term):
            return None, f"it overlaps the {name}"
    return target_of(out, a, b, posed, dtype)


def _same(x: Any, y: Any) -> bool:
    """Whether two arrays are one and the same memory, element by element."""
    return bool(x.data.ptr == y.data.ptr and x.shape == y.shape and x.strides == y.strides and x.dtype == y.dtype)


def _unfused(a: Any, b: Any, out: Any, terms: Terms, dtype: np.dtype[Any]) -> Any:
    """The same by CuPy: the product, and one kernel for all the rest.

    The product is rounded to the operands' dtype, but not to 16 bits where the result is float32.
    """
    options = {"dtype": dtype} if wants_float32(a, b, dtype) else {}
    product = fall_back(a, b, None, options, pose(a, b))
    target = driver.cupy().empty(product.shape, dtype=dtype) if out is None else out
    _check_shapes(out, terms, product.shape)
    added = [term for term in (terms.bias, terms.residual) if term is not None]
    added = [term.copy() if overlap(target, term) and not _same(target, term) else term for term in added]
    wide = "float64" if "float64" in (product.dtype.name, dtype.name) else "float32"
    # Along which axis a bias goes, its shape says.
    kind = NONE if terms.bias is None else "n"
    epilogue = Epilogue(kind, terms.residual is not None, terms.activation or NONE)
    epilogue_kernel(epilogue, wide)(product, *added, *terms.factors, target)
    return target


def _check_shapes(out: Any, terms: Terms, shape: tuple[int, ...]) -> None:
    """Whether `out` and what is added go with a product of this shape."""
    if out is not None and out.shape != shape:
        raise ProblemError(f"out has shape {out.shape}, the product {shape}")
    for name, term in (("bias", terms.bias), ("residual", terms.residual)):
        if term is not None and not _broadcasts(term.shape, shape):
            raise ProblemError(f"{name} has shape {term.shape}, which does not broadcast to the product's {shape}")


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    ends = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, whole) for size, whole in ends)
