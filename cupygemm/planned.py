"""`MatmulPlan`: a product that is decided once and called often, at little more than the cost of a bare launch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

from cupygemm import driver
from cupygemm.epilogue import NONE
from cupygemm.errors import LaunchError, ProblemError
from cupygemm.product import Decision
from cupygemm.repeat import Repeat, repeat_of
from cupygemm.terms import Terms


class MatmulPlan:
    """What `plan` gives: `matmul` for arrays of certain shapes, strides and dtypes.

    Safe from several threads. A call never synchronises, and allocates nothing but the result where there is no
    `out`, and copies of operands that TMA cannot read.

    Attributes:
        choice: what runs, and why, as of `explain`. Where it is cuBLAS, a call is one of `matmul`.
    """

    def __init__(
        self, decision: Decision, a: Any, b: Any, out: Any, terms: Terms, multiply: Callable[..., Any]
    ) -> None:
        """For arrays like these; launches nothing.

        Args:
            decision: what `decide` found for them.
            a, b, out, terms: as of `plan`.
            multiply: `matmul`, for calls that cannot be launched as planned.
        """
        cupy, own = driver.cupy(), decision.own
        self.choice = decision.choice
        self._multiply = multiply
        self._ndarray = cupy.ndarray
        self._factors = terms.factors
        out_dtype = out.dtype if terms.any() and out is not None else terms.out_dtype
        self._fixed = {"activation": terms.activation, "out_dtype": out_dtype}
        self._operands = (*_layout(a), *_layout(b))
        self._bias, self._residual = _layout(terms.bias), _layout(terms.residual)
        self._device = a.device
        self._several_devices = cupy.cuda.runtime.getDeviceCount() > 1
        self._scales = terms.any() and (own is None or own.plan.problem.epilogue != NONE)
        result = out
        if out is None and own is not None:
            result = cupy.empty(own.posed.shape, own.dtype)
        self._result = _layout(result)
        # A new array lies as `out` did, and is of its dtype, where a kernel was to write straight into that.
        self._may_be_new = out is None or (own is not None and own.detour is None and out.flags.c_contiguous)
        self._repeats: _PerThread | None = None
        if own is not None and own.detour is None:
            try:
                self._repeats = _PerThread(repeat_of(a, b, result, own, terms))
            except LaunchError:
                # A driver without these calls: all go the long way.
                self._repeats = None
        self._quick = None if terms.any() or self._several_devices else self._repeats
        self._look_a, self._look_b, self._look_out = _look(a), _look(b), _look(result)
        self._kind_a, self._kind_b = self._look_a(a), self._look_b(b)
        self._kind_out = None if result is None else self._look_out(result)

    def __call__(
        self,
        a: Any,
        b: Any,
        /,
        out: Any = None,
        *,
        bias: Any = None,
        residual: Any = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """The product on the current stream of the operands' device.

        Args:
            a, b, out, bias, residual: arrays like those that the plan was made for. Where they lie so that the planned
                launch would be wrong (`out` overlaps an operand, an address is no multiple of 16) it is a call of
                `matmul`. Without `out` a new array, if the plan's was C-contiguous.
            alpha, beta: factors instead of the plan's.

        Returns:
            `out`, or the new array.

        Raises:
            ProblemError: an array has another shape, other strides or another dtype than the plan was made for, or one
                is missing, or is there and was not planned.
            TypeError: something is no CuPy array.
            CaptureError, LaunchError: as `matmul`.
        """
        ndarray, quick = self._ndarray, self._quick
        if (
            quick is not None
            and type(a) is type(b) is ndarray
            and self._look_a(a) == self._kind_a
            and self._look_b(b) == self._kind_b
            and (self._may_be_new if out is None else type(out) is ndarray and self._look_out(out) == self._kind_out)
            and bias is residual is alpha is beta is None
        ):
            result = quick.repeat(a, b, out)
            if result is not None:
                return result
        self._check(a, b, out, bias, residual, alpha, beta)
        return self._call(a, b, out, bias, residual, alpha, beta)

    def __repr__(self) -> str:
        what = "the operands" if self.choice.problem is None else str(self.choice.problem)
        return f"<cupygemm.MatmulPlan: {what}, {'own kernel' if self.choice.kernel == 'own' else 'cupy.matmul'}>"

    def _call(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> Any:
        given = self._factors
        alpha, beta = given[0] if alpha is None else alpha, given[1] if beta is None else beta
        with self._device if self._several_devices else nullcontext():
            numbers = isinstance(alpha, float | int) and isinstance(beta, float | int)
            # A residual times 0 is not read, which is another kernel.
            if self._repeats is not None and numbers and (residual is None or beta != 0):
                repeat = self._repeats.repeat
                if self._plain_now(alpha, beta):
                    result = repeat(a, b, out)
                else:
                    result = repeat.with_terms(a, b, out, Terms(bias, None, residual, alpha, beta))
                if result is not None:
                    return result
            factors = {"alpha": alpha, "beta": beta}
            return self._multiply(a, b, out, bias=bias, residual=residual, **self._fixed, **factors)

    def _plain_now(self, alpha: float, beta: float) -> bool:
        return not self._scales and alpha == beta == 1

    def _check(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> None:
        """Refuses what the plan was not made for."""
        self._check_array("a", a, self._operands[:3])
        self._check_array("b", b, self._operands[3:])
        for name, array, planned in (("bias", bias, self._bias), ("residual", residual, self._residual)):
            if array is not None or planned is not None:
                self._check_array(name, array, planned)
        if out is not None and self._result is not None:
            self._check_array("out", out, self._result)
        elif out is None and not self._may_be_new:
            raise ProblemError(f"the plan was made with an out {_words(self._result)}: give one, or make another plan")
        if self._residual is None and beta not in (None, 1):
            raise ProblemError(f"beta is {beta}, and the plan was made without a residual")
        if not self._scales and not (alpha in (None, 1) and beta in (None, 1)):
            raise ProblemError("the plan was made without factors: give alpha or beta to plan(), then others to it")

    def _check_array(self, name: str, array: Any, planned: Any) -> None:
        if planned is None:
            raise ProblemError(f"{name} is given, and the plan was made without: make another plan")
        if array is None:
            raise ProblemError(f"{name} is missing: the plan was made with one {_words(planned)}")
        if not isinstance(array, self._ndarray):
            raise TypeError(f"{name} is {type(array).__name__}: a plan takes CuPy arrays")
        if _layout(array) != planned:
            raise ProblemError(
                f"{name} is {_words(_layout(array))}: the plan was made for {_words(planned)}; matmul takes any, and "
                "plan() makes one for these"
            )
        if array.device != self._device:
            raise ProblemError(f"{name} is on device {array.device.id}: the plan was made on {self._device.id}")


class _PerThread(threading.local):
    """A launch for each thread: a launch is written down before it is made."""

    def __init__(self, first: Repeat) -> None:
        # Called again in each thread that comes.
        self.repeat = first.of_its_own()


def _look(array: Any) -> Any:
    """What asks an array whether it lies as the one given.

    CuPy keeps two flags, which take a quarter of the time of strides; of an axis of one element those do not matter.
    """
    flags = (name for name in ("_c_contiguous", "_f_contiguous") if getattr(array, name, False))
    return attrgetter("shape", "dtype", next(flags, "strides"))


def _layout(array: Any) -> Any:
    """Shape, strides and dtype; along an axis of one element nothing steps."""
    if array is None:
        return None
    strides = (0 if size == 1 else stride for size, stride in zip(array.shape, array.strides, strict=True))
    return array.shape, tuple(strides), array.dtype


def _words(layout: Any) -> str:
    shape, strides, dtype = layout
    return f"{dtype.name}{list(shape)} with strides of {list(strides)} bytes"
