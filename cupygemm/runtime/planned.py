"""`MatmulPlan`: a product that is decided once and called often, at little more than the cost of a bare launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

from cupygemm.epilogue import NONE
from cupygemm.errors import LaunchError, ProblemError
from cupygemm.kernels import driver
from cupygemm.runtime.product import Decision
from cupygemm.runtime.repeat import Repeat, repeat_of
from cupygemm.runtime.terms import Terms
from cupygemm.text import type_name


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
        self._device, runtime = a.device, cupy.cuda.runtime
        self._several_devices, self._current_device = runtime.getDeviceCount() > 1, runtime.getDevice
        self._scales = terms.any() and (own is None or own.plan.problem.epilogue != NONE)
        result = out
        if out is None and own is not None:
            result = cupy.empty(own.posed.shape, own.dtype)
        # A new array lies as `out` did, and is of its dtype, where a kernel was to write straight into that.
        self._may_be_new = out is None or (own is not None and own.detour is None and out.flags.c_contiguous)
        self._a, self._b, self._out, self._bias, self._residual = (
            _Kind(array, cupy.ndarray) for array in (a, b, result, terms.bias, terms.residual)
        )
        self._repeat: Repeat | None = None
        if own is not None and own.detour is None:
            try:
                self._repeat = repeat_of(a, b, result, own, terms)
            except LaunchError:
                # A driver without these calls: all go the long way.
                self._repeat = None

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
        repeat, ndarray, of_a, of_b, of_out = self._repeat, self._ndarray, self._a, self._b, self._out
        if (
            # `_Kind.has` of each array, spelt out, since every call passes here.
            repeat is not None
            and type(a) is ndarray
            and a.dtype is of_a.dtype
            and a.shape == of_a.shape
            and (a._c_contiguous if of_a.is_contiguous else of_a.look(a) == of_a.seen)
            and type(b) is ndarray
            and b.dtype is of_b.dtype
            and b.shape == of_b.shape
            and (b._c_contiguous if of_b.is_contiguous else of_b.look(b) == of_b.seen)
            and (
                self._may_be_new
                if out is None
                else type(out) is ndarray
                and out.dtype is of_out.dtype
                and out.shape == of_out.shape
                and (out._c_contiguous if of_out.is_contiguous else of_out.look(out) == of_out.seen)
            )
            and (not self._several_devices or self._are_here(a, b, out))
        ):
            result = None
            if self._scales:
                result = self._with_terms(a, b, out, bias, residual, alpha, beta)
            elif bias is None and residual is None and alpha is None and beta is None:
                result = repeat.plain(a, b, out)
            if result is not None:
                return result
        self._check(a, b, out, bias, residual, alpha, beta)
        return self._call(a, b, out, bias, residual, alpha, beta)

    def __repr__(self) -> str:
        what = "the operands" if self.choice.problem is None else str(self.choice.problem)
        return f"<cupygemm.MatmulPlan: {what}, {'own kernel' if self.choice.kernel == 'own' else 'cupy.matmul'}>"

    def _with_terms(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> Any:
        """The product of operands and `out` like the plan's; None where the rest has to be looked at more closely."""
        if not self._bias.has(bias) or not self._residual.has(residual):
            return None
        if self._several_devices and not self._are_here(bias, residual):
            return None
        alpha = self._factors[0] if alpha is None else alpha
        beta = self._factors[1] if beta is None else beta
        return self._launched(a, b, out, bias, residual, alpha, beta)

    def _launched(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> Any:
        """The product of arrays like the plan's, by its kernel; None where that does not compute it."""
        repeat = self._repeat
        if repeat is None or not isinstance(alpha, _NUMBERS) or not isinstance(beta, _NUMBERS):
            return None
        if not self._scales:
            return repeat.plain(a, b, out)  # factors are 1, or refused
        # Without a residual there is no beta; one times 0 is not read, which is another kernel.
        if (beta != 1) if residual is None else (beta == 0):
            return None
        return repeat.with_terms(a, b, out, bias, residual, alpha, beta)

    def _are_here(self, *arrays: Any) -> bool:
        """Whether arrays lie on the plan's device, and that is the current one."""
        index = self._device.id
        return self._current_device() == index and all(
            array is None or array.data.device_id == index for array in arrays
        )

    def _call(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> Any:
        """The product of arrays like the plan's, wherever they lie."""
        alpha = self._factors[0] if alpha is None else alpha
        beta = self._factors[1] if beta is None else beta
        with self._device if self._several_devices else nullcontext():
            result = self._launched(a, b, out, bias, residual, alpha, beta)
            if result is not None:
                return result
            factors = {"alpha": alpha, "beta": beta}
            return self._multiply(a, b, out, bias=bias, residual=residual, **self._fixed, **factors)

    def _check(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: Any, beta: Any) -> None:
        """Refuses what the plan was not made for."""
        self._check_array("a", a, self._a.layout)
        self._check_array("b", b, self._b.layout)
        for name, array, planned in (("bias", bias, self._bias.layout), ("residual", residual, self._residual.layout)):
            if array is not None or planned is not None:
                self._check_array(name, array, planned)
        planned = self._out.layout
        if out is not None and planned is not None:
            self._check_array("out", out, planned)
        elif out is None and not self._may_be_new:
            raise ProblemError(f"the plan was made with an out {_words(planned)}: give one, or make another plan")
        if residual is None and beta not in (None, 1):
            raise ProblemError(f"beta is {beta}, and the plan was made without a residual")
        if not self._scales and not (alpha in (None, 1) and beta in (None, 1)):
            raise ProblemError("the plan was made without factors: give alpha or beta to plan(), then others to it")

    def _check_array(self, name: str, array: Any, planned: Any) -> None:
        if planned is None:
            raise ProblemError(f"{name} is given, and the plan was made without: make another plan")
        if array is None:
            raise ProblemError(f"{name} is missing: the plan was made with one {_words(planned)}")
        if not isinstance(array, self._ndarray):
            raise TypeError(f"{name} is {type_name(array)}: a plan takes CuPy arrays")
        if _layout(array) != planned:
            raise ProblemError(
                f"{name} is {_words(_layout(array))}: the plan was made for {_words(planned)}; matmul takes any, and "
                "plan() makes one for these"
            )
        if array.device != self._device:
            raise ProblemError(f"{name} is on device {array.device.id}: the plan was made on {self._device.id}")


_NUMBERS = (float, int)


class _Kind:
    """What arrays have in common that lie as one that a plan was made with; or that there is none.

    CuPy keeps as flags whether an array is contiguous, which takes a quarter of the time to ask of that of its strides;
    of an axis of one element those do not matter.

    Attributes:
        layout: of the array, for a person and for all those whose strides differ where it does not matter.
        shape, dtype: of the array.
        is_contiguous: whether rows lie one after the other.
        look: what tells where elements lie of an array that is not.
        seen: what it told.
    """

    __slots__ = ("dtype", "is_contiguous", "layout", "look", "seen", "shape", "type")

    def __init__(self, array: Any, ndarray: type) -> None:
        """For arrays like this one.

        Args:
            array: one of CuPy's, or None.
            ndarray: their type.
        """
        self.layout = _layout(array)
        self.type: Any = ndarray
        self.dtype = None  # no array's
        if array is not None:
            self.shape, self.dtype, self.is_contiguous = array.shape, array.dtype, array._c_contiguous
            self.look = attrgetter("_f_contiguous" if array._f_contiguous else "strides")
            self.seen = self.look(array)

    def has(self, array: Any) -> bool:
        """Whether an array is certainly of this kind; it may be where this says no."""
        if array is None or type(array) is not self.type:
            return array is None and self.layout is None
        return bool(
            array.dtype is self.dtype
            and array.shape == self.shape
            and (array._c_contiguous if self.is_contiguous else self.look(array) == self.seen)
        )


def _layout(array: Any) -> Any:
    """Shape, strides and dtype; along an axis of one element nothing steps."""
    if array is None:
        return None
    strides = (0 if size == 1 else stride for size, stride in zip(array.shape, array.strides, strict=True))
    return array.shape, tuple(strides), array.dtype


def _words(layout: Any) -> str:
    shape, strides, dtype = layout
    return f"{dtype.name}{list(shape)} with strides of {list(strides)} bytes"
