"""What becomes of a call of `matmul`: the product that is posed, what runs it, and where that writes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cupygemm.choosing.choice import Choice
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import NONE, Epilogue
from cupygemm.errors import CaptureError, CompileError, LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.capture import is_capturing
from cupygemm.kernels.compiling import StillCompiling
from cupygemm.kernels.epilogue_terms import pair_alignment
from cupygemm.kernels.kernel_plan import Plan
from cupygemm.problem import Problem
from cupygemm.runtime.fallback import are_arrays, dtype_name, fall_back, needs_cublas, wants_float32
from cupygemm.runtime.fallback_terms import fall_back_with_terms
from cupygemm.runtime.terms import (
    NO_TERMS,
    Terms,
    check,
    check_shapes,
    is_same,
    placed_bias,
    placed_residual,
    result_dtype,
)
from cupygemm.views.packing import Packing, packing_of
from cupygemm.views.packing_cost import pays, slices_pay
from cupygemm.views.posing import Posed, overlap, pose
from cupygemm.views.reading import problem_of, unfit_reason
from cupygemm.views.stacks import PosedStack, pose_slices, pose_stack, shifted

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "axes": (None,),
    "axis": (None,),
    "casting": ("same_kind",),
    "dtype": (None,),
    "keepdims": (False,),
    "order": ("K", "C"),
    "signature": (None,),
}
"""Options of `cupy.matmul`, and what leaves them without effect."""


class Own(NamedTuple):
    """An own kernel for a call.

    Attributes:
        posed: the product as matrices, or as stacks of them.
        plan: what launches the kernel.
        dtype: of what it writes.
        packing: what copies operands for it that TMA cannot read; None where it reads both.
        bias, residual: as the plan takes them, or None.
        target: `out` as [m, n] or [batch, m, n], for it to write into; None for a new array.
        detour: why `out`, which is then copied to, is not written into; None where there is none or it is.
    """

    posed: Posed | PosedStack
    plan: Plan
    dtype: np.dtype[Any]
    packing: Packing | None = None
    bias: Any = None
    residual: Any = None
    target: Any = None
    detour: str | None = None


class Decision(NamedTuple):
    """What runs a call.

    Attributes:
        choice: which kernel, and why.
        matrices: the product as two matrices; None where it cannot be.
        own: the own kernel; None where CuPy runs.
        dtype: of the result of a product with an epilogue.
    """

    choice: Choice
    matrices: Posed | None = None
    own: Own | None = None
    dtype: np.dtype[Any] | None = None


def without_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options that change anything."""
    # Only of these types is == a truth: an array would compare element by element.
    plain = (str, bool, type(None))
    return {
        name: value
        for name, value in options.items()
        if not (isinstance(value, plain) and value in _DEFAULTS.get(name, ()))
    }


def decide(
    dispatcher: Dispatcher, a: Any, b: Any, out: Any, options: dict[str, Any], terms: Terms = NO_TERMS
) -> Decision:
    """What runs matmul(a, b, out, **options) with an epilogue or without; an own kernel is compiled and loaded for it.

    Args:
        options: without those at their defaults; none go with an epilogue.

    Raises:
        ValueError, TypeError: what is asked for is no product with an epilogue. Without one they are left to CuPy.
        CaptureError: a CUDA graph is being captured, and the kernel is not loaded.
        BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
    """
    if terms.any():
        if options:
            raise TypeError(f"matmul: {', '.join(sorted(options))}: options of cupy.matmul do not go with an epilogue")
        return _decide_fused(dispatcher, a, b, out, terms)
    return _decide_plain(dispatcher, a, b, out, options)


def _decide_plain(dispatcher: Dispatcher, a: Any, b: Any, out: Any, options: dict[str, Any]) -> Decision:
    others = sorted(options.keys() - {"dtype"}) if options else ()
    if others:
        return Decision(Choice("cublas", f"{', '.join(others)}: options of cupy.matmul"))
    matrices = pose(a, b) if are_arrays(a, b) else None
    posed = matrices or (_posed_stack(a, b) if are_arrays(a, b) else None)
    if posed is None:
        return Decision(dispatcher.choose(a, b)[0])
    dtype, wanted = a.dtype, None
    if "dtype" in options and dtype_name(options["dtype"]) != dtype.name:
        if not wants_float32(a, b, options["dtype"]):
            return Decision(Choice("cublas", "dtype: own kernels give the operands', or float32 for 16 bits"), matrices)
        wanted = "float32"
        dtype = np.dtype(wanted)
    choice, plan, packing = _chosen(dispatcher, posed, wanted, NONE)
    if plan is None:
        return Decision(choice, matrices)
    if out is not None:
        reason = _foreign_reason(out, a, posed, dtype) or _widened_reason(out, a, b, dtype)
        if reason is not None:
            return Decision(Choice("cublas", reason, choice.problem), matrices)
    return _aimed(choice, matrices, Own(posed, plan, dtype, packing), a, b, out, NO_TERMS)


def _decide_fused(dispatcher: Dispatcher, a: Any, b: Any, out: Any, terms: Terms) -> Decision:
    check(a, b, out, terms)
    dtype = result_dtype(a, b, out, terms.out_dtype)
    matrices = pose(a, b)
    posed = matrices or _posed_stack(a, b)

    def left(reason: str) -> Decision:
        return Decision(Choice("cublas", reason), matrices, dtype=dtype)

    if posed is None:
        return left("the operands are no two matrices or stacks of equal steps")
    check_shapes(out, terms, posed.shape)
    if a.dtype.name not in OPERAND_DTYPES or dtype.name not in RESULT_DTYPES:
        return left(f"operands are {a.dtype.name}, the result {dtype.name}: no own kernel has these")
    alignment = pair_alignment(posed.product_shape[-1], dtype.itemsize)
    bias, kind = placed_bias(terms.bias, posed, dtype, alignment)
    residual = placed_residual(terms.residual, posed, dtype, alignment)
    if (bias is None) != (terms.bias is None) or (residual is None) != (terms.residual is None):
        return left("bias or residual is broadcast, of another dtype, or lies so that no own kernel reads it")
    epilogue = Epilogue.of(
        bias=kind, residual=residual is not None, activation=terms.activation or NONE, alpha=terms.alpha
    )
    choice, plan, packing = _chosen(dispatcher, posed, dtype.name, str(epilogue))
    if plan is None:
        return Decision(choice, matrices, dtype=dtype)
    return _aimed(choice, matrices, Own(posed, plan, dtype, packing, bias, residual), a, b, out, terms)


def _weighed(choice: Choice, plan: Plan | None, posed: Posed | PosedStack) -> tuple[Choice, Plan | None]:
    """The same, and cuBLAS where several launches take longer than it would."""
    if plan is None or not isinstance(posed, PosedStack) or posed.outer is None:
        return choice, plan
    launches = math.prod(posed.outer.extents)
    why = f"in {launches} launches, since the stacks step unequally"
    if slices_pay(plan.problem, launches, posed.a, posed.b):
        return replace(choice, reason=f"{choice.reason}; {why}"), plan
    return Choice("cublas", f"{why}, it is not expected to pay", choice.problem), None


def _posed_stack(a: Any, b: Any) -> PosedStack | None:
    """The product as one of stacks, or as few of them; None where it is neither."""
    one = pose_stack(a, b)
    if one is not None:
        return one
    several = pose_slices(a, b)
    if several is None or several.outer is None:
        return None
    steps = (*several.outer.a_steps, *several.outer.b_steps)
    return None if any(step % TMA_ALIGNMENT for step in steps) else several


def _chosen(
    dispatcher: Dispatcher, posed: Posed | PosedStack, out_dtype: str | None, epilogue: str
) -> tuple[Choice, Plan | None, Packing | None]:
    """What runs a posed product, with copies of operands that TMA cannot read if it is expected to pay."""
    a, b = posed.a, posed.b
    choice, plan = dispatcher.choose(a, b, None, out_dtype, epilogue)
    if choice.problem is not None or isinstance(problem_of(a, b, None, out_dtype, epilogue, "nn"), str):
        return *_weighed(choice, plan, posed), None
    if isinstance(posed, PosedStack) and posed.outer is not None:
        return choice, None, None
    packing = packing_of(a, b)
    if not isinstance(packing, Packing):
        return replace(choice, reason=packing or choice.reason), None, None
    problem = problem_of(a, b, None, out_dtype, epilogue, packing.layout)
    assert isinstance(problem, Problem)  # as with another layout
    prediction = dispatcher.predict(problem, driver.device_spec(a.device.id))
    own_us, cublas_us = (None, None) if prediction is None else (prediction.own_us, prediction.cublas_us)
    if not pays(problem, packing, a, b, own_us, cublas_us):
        return Choice("cublas", f"{choice.reason}, and copying it is not expected to pay", problem), None, None
    unread = choice.reason
    choice, plan = dispatcher.choose_for(problem, a.device.id, copied=True)
    if plan is None:
        return replace(choice, reason=f"{unread}; with a copy: {choice.reason}"), None, None
    try:
        dispatcher.load_packing(problem, a.device.id)
    except (CompileError, LaunchError) as error:
        return Choice("cublas", f"{packing.reason}, but {error}", problem), None, None
    except StillCompiling as state:
        return Choice("cublas", f"{packing.reason}, but {state}", problem), None, None
    return replace(choice, reason=f"{choice.reason}; {packing.reason}"), plan, packing


def _aimed(choice: Choice, matrices: Posed | None, own: Own, a: Any, b: Any, out: Any, terms: Terms) -> Decision:
    """The decision for an own kernel, once it is settled whether it writes into `out`."""
    if out is not None:
        target, detour = _target_of(out, a, b, own.posed, own.dtype, terms)
        own = own._replace(target=target, detour=detour)
        if detour is not None:
            choice = replace(choice, reason=f"{choice.reason}; into a new array, then copied to out: {detour}")
    return Decision(choice, matrices, own, own.dtype)


def _foreign_reason(out: Any, a: Any, posed: Posed | PosedStack, dtype: np.dtype[Any]) -> str | None:
    """Why the result cannot be put into `out`: CuPy says so, or knows a way."""
    if not are_arrays(out):
        return "out is not a CuPy array"
    if out.shape != posed.shape:
        return f"out has shape {out.shape}, the product {posed.shape}"
    if out.device != a.device:
        return f"out is on device {out.device.id}, the operands on {a.device.id}"
    if out.dtype != dtype and not np.can_cast(dtype, out.dtype, "same_kind"):
        return f"out is {out.dtype.name}, which {dtype.name} is not cast to"
    return None


def _widened_reason(out: Any, a: Any, b: Any, dtype: np.dtype[Any]) -> str | None:
    """Why `out` keeps more of the sums than the operands' dtype would."""
    # CuPy multiplies stacks in float32, and casts from there; of two matrices it rounds to their dtype first, as NumPy
    # does of all.
    if dtype == a.dtype != out.dtype and max(a.ndim, b.ndim) > 2:
        return f"out is {out.dtype.name}, to which cupy.matmul casts stacks of {dtype.name} from float32"
    return None


def _target_of(
    out: Any, a: Any, b: Any, posed: Posed | PosedStack, dtype: np.dtype[Any], terms: Terms
) -> tuple[Any, str | None]:
    """`out` as a kernel is to write into it, or None and why it cannot."""
    if overlap(out, a) or overlap(out, b):
        return None, "it overlaps an operand"
    # Each thread reads the residual where it then stores, so the two may be one.
    residual = None if terms.residual is None or is_same(out, terms.residual) else terms.residual
    for name, term in (("bias", terms.bias), ("residual", residual)):
        if term is not None and overlap(out, term):
            return None, f"it overlaps the {name}"
    target = posed.matrix_of(out)
    if target is None:
        return None, "its rows are not equally far apart"
    reason = unfit_reason(target, posed.a, posed.product_shape, dtype.name)
    return (target, None) if reason is None else (None, reason)


def run(decision: Decision, a: Any, b: Any, out: Any, options: dict[str, Any], terms: Terms = NO_TERMS) -> Any:
    """Computes what was decided, on the current stream of the current device, that of the operands.

    Args:
        decision: what `decide` found for all the rest.

    Returns:
        `out`, or a new array where that is None.

    Raises:
        CaptureError: a CUDA graph is being captured, and CuPy would call cuBLAS or the product be copied to `out`.
        LaunchError: the driver refused the launch.
    """
    reason = decision.choice.reason
    if decision.own is not None:
        try:
            return _launch(decision.own, out, terms)
        except MemoryError as error:
            if decision.own.packing is None:
                raise
            # CuPy reads what lies without gaps where it lies, however slowly.
            reason = f"no memory for copies: {error}"
    if not terms.any():
        if needs_cublas(a, b) and is_capturing():
            raise CaptureError(f"cupy.matmul cannot be captured in a CUDA graph, and no own kernel runs: {reason}")
        return fall_back(a, b, out, options, decision.matrices)
    if is_capturing():
        raise CaptureError(f"a CUDA graph is being captured, and no own kernel runs: {reason}")
    return fall_back_with_terms(a, b, out, terms, decision.matrices, decision.dtype)


def _launch(own: Own, out: Any, terms: Terms) -> Any:
    posed = own.posed
    if own.target is None and own.detour is not None and is_capturing():
        # The new array would be free for others after this call, and be written to at every replay.
        raise CaptureError(f"a CUDA graph is being captured, and out needs an array beside it: {own.detour}")
    result = out if own.target is not None else driver.cupy().empty(posed.shape, dtype=own.dtype)
    target = own.target if own.target is not None else posed.matrix_of(result)
    if isinstance(posed, PosedStack) and posed.outer is not None:
        residual = terms.residual if own.residual is not None else result
        for of_a, of_b, of_out, of_residual in posed.outer.offsets(result, residual):
            places = shifted(posed.a, of_a), shifted(posed.b, of_b), shifted(target, of_out)
            own.plan(*places, own.bias, shifted(own.residual, of_residual), *terms.factors)
    elif own.packing is None:
        own.plan(posed.a, posed.b, target, own.bias, own.residual, *terms.factors)
    else:
        with own.packing.memory() as buffer:
            copied = own.packing(posed.a, posed.b, buffer)
            own.plan(*copied, target, own.bias, own.residual, *terms.factors)
    if out is not None and result is not out:
        out[...] = result
        return out
    return result
