"""What becomes of a call of `matmul`: the product that is posed, the kernel that runs it, and where it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cupygemm import driver
from cupygemm.choice import Choice
from cupygemm.dispatch import Dispatcher, is_capturing, unfit_reason
from cupygemm.errors import CaptureError
from cupygemm.fallback import are_arrays, dtype_name, needs_cublas, wants_float32
from cupygemm.kernel_plan import Plan
from cupygemm.posing import Posed, overlap, pose
from cupygemm.stacks import PosedStack, pose_stack

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
        target: `out` as [m, n] or [batch, m, n], for it to write into; None for a new array.
        detour: why `out`, which is then copied to, is not written into; None where there is none or it is.
    """

    posed: Posed | PosedStack
    plan: Plan
    dtype: np.dtype[Any]
    target: Any = None
    detour: str | None = None


class Decision(NamedTuple):
    """What runs a call.

    Attributes:
        choice: which kernel, and why.
        posed: the product as two matrices; None where it cannot be.
        own: the own kernel; None where CuPy runs.
    """

    choice: Choice
    posed: Posed | None = None
    own: Own | None = None


def without_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options that change anything."""
    # Only of these types is == a truth: an array would compare element by element.
    plain = (str, bool, type(None))
    return {
        name: value
        for name, value in options.items()
        if not (isinstance(value, plain) and value in _DEFAULTS.get(name, ()))
    }


def decide(dispatcher: Dispatcher, a: Any, b: Any, out: Any, options: dict[str, Any]) -> Decision:
    """What runs matmul(a, b, out, **options); an own kernel is compiled and loaded for it.

    Args:
        options: without those at their defaults.

    Raises:
        CaptureError: a CUDA graph is being captured, and the kernel is not loaded.
        BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
    """
    others = sorted(options.keys() - {"dtype"}) if options else ()
    if others:
        return Decision(Choice("cublas", f"{', '.join(others)}: options of cupy.matmul"))
    matrices = pose(a, b) if are_arrays(a, b) else None
    posed = pose_stack(a, b) if matrices is None and are_arrays(a, b) else matrices
    if posed is None:
        return Decision(dispatcher.choose(a, b)[0])
    dtype, wanted = a.dtype, None
    if "dtype" in options and dtype_name(options["dtype"]) != dtype.name:
        if not wants_float32(a, b, options["dtype"]):
            return Decision(Choice("cublas", "dtype: own kernels give the operands', or float32 for 16 bits"), matrices)
        wanted = "float32"
        dtype = np.dtype(wanted)
    choice, plan = dispatcher.choose(posed.a, posed.b, None, wanted)
    if plan is None:
        return Decision(choice, matrices)
    if out is None:
        return Decision(choice, matrices, Own(posed, plan, dtype))
    reason = _foreign_reason(out, a, posed, dtype) or _widened_reason(out, a, b, dtype)
    if reason is not None:
        return Decision(Choice("cublas", reason, choice.problem), matrices)
    target, detour = target_of(out, a, b, posed, dtype)
    if detour is not None:
        choice = replace(choice, reason=f"{choice.reason}; into a new array, then copied to out: {detour}")
    return Decision(choice, matrices, Own(posed, plan, dtype, target, detour))


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


def target_of(out: Any, a: Any, b: Any, posed: Posed | PosedStack, dtype: np.dtype[Any]) -> tuple[Any, str | None]:
    """`out` as a kernel is to write into it, or None and why it cannot."""
    if overlap(out, a) or overlap(out, b):
        return None, "it overlaps an operand"
    target = posed.matrix_of(out)
    if target is None:
        return None, "its rows are not equally far apart"
    reason = unfit_reason(target, posed.a, posed.product_shape, dtype.name)
    return (target, None) if reason is None else (None, reason)


def launch(own: Own, out: Any) -> Any:
    """Runs an own kernel on the current stream of the current device, that of the operands.

    Args:
        own: what `decide` found.
        out: what it found it for.

    Returns:
        `out`, or a new array where that is None.

    Raises:
        CaptureError: a CUDA graph is being captured, and the product would be copied to `out`.
        LaunchError: the driver refused the launch.
    """
    posed, result = own.posed, own.target
    if result is None:
        if own.detour is not None and is_capturing():
            # The new array would be free for others after this call, and be written to at every replay.
            raise CaptureError(f"a CUDA graph is being captured, and out needs an array beside it: {own.detour}")
        result = driver.cupy().empty(posed.product_shape, dtype=own.dtype)
    own.plan(posed.a, posed.b, result)
    if out is None:
        return result if result.shape == posed.shape else result.reshape(posed.shape)
    if own.target is None:
        out[...] = result.reshape(posed.shape)
    return out


def refuse_capture(a: Any, b: Any, reason: str) -> None:
    """Raises where a CUDA graph is being captured and CuPy would call cuBLAS.

    Raises:
        CaptureError: as said.
    """
    if needs_cublas(a, b) and is_capturing():
        raise CaptureError(f"cupy.matmul cannot be captured in a CUDA graph, and no own kernel runs: {reason}")
