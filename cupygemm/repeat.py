"""One call of `matmul` that is made again with other arrays like those of before: what of it is worked out ahead."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

from cupygemm import driver
from cupygemm.capture import is_capturing
from cupygemm.config import TMA_ALIGNMENT
from cupygemm.copies import ITEM_BYTES
from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.epilogue_terms import pair_alignment
from cupygemm.errors import LaunchError
from cupygemm.fallback import cupy_matmul
from cupygemm.posing import bounds
from cupygemm.prepared import Prepared
from cupygemm.product import Own
from cupygemm.stacks import PosedStack
from cupygemm.terms import NO_TERMS, Terms


class Repeat:
    """An own kernel's launch for all arrays like those that it was made for. For one thread.

    Attributes:
        shape, dtype: of the result.
    """

    def __init__(self, a: Any, b: Any, result: Any, own: Own, terms: Terms = NO_TERMS) -> None:
        """Works out all that does not change; launches nothing.

        Args:
            a, b, terms: as of `matmul`.
            result: what it came to, or is to come to.
            own: what was decided for it, without a detour.

        Raises:
            LaunchError: the driver is older than CUDA 12, or the result is not written to where it lies.
        """
        target = own.posed.matrix_of(result)
        if own.detour is not None or target is None:
            raise LaunchError("the result is copied to out")
        self.shape, self.dtype = own.posed.shape, own.dtype
        left, right = self._read(own)
        self._launch = Prepared(own.plan, left, right, target, own.bias, own.residual)
        self._a, self._b = _overlapping(a, result), _overlapping(b, result)
        bias, residual = terms.bias, terms.residual
        self._bias = None if bias is None else _overlapping(bias, result)
        self._residual = None if residual is None else _overlapping(residual, result)
        self._residual_is_alike = residual is not None and _layout(residual) == _layout(result)
        self._pair_alignment = pair_alignment(own.posed.product_shape[-1], own.dtype.itemsize)
        cupy = driver.cupy()
        self._empty, self._stream = cupy.empty, cupy.cuda.get_current_stream

    def _read(self, own: Own) -> tuple[Any, Any]:
        """Operands as the plan takes them."""
        return own.posed.a, own.posed.b

    def of_its_own(self) -> Self:
        """The same for another thread."""
        other = copy(self)
        other._launch = self._launch.of_its_own()
        return other

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        """The product, or None where the arrays lie so that it has to be decided anew.

        Args:
            a, b, out: arrays like those of before; `out` None for a new array where those were as new ones are.

        Raises:
            LaunchError: the driver refused the launch.
        """
        result = self._empty(self.shape, self.dtype) if out is None else out
        a_place, b_place, place = a.data.ptr, b.data.ptr, result.data.ptr
        if (a_place | b_place | place) % TMA_ALIGNMENT or self._launch.is_busy:
            return None
        if out is not None and (self._a[0] < place - a_place < self._a[1] or self._b[0] < place - b_place < self._b[1]):
            return None
        self._launch(a_place, b_place, place, self._stream().ptr)
        return result

    def with_terms(self, a: Any, b: Any, out: Any, terms: Terms) -> Any:
        """The same with an epilogue.

        Args:
            terms: those of before with other arrays like them, or other factors; alpha is 1 if and only if it was.

        Raises:
            LaunchError: as a call.
        """
        result = self._empty(self.shape, self.dtype) if out is None else out
        a_place, b_place, place = a.data.ptr, b.data.ptr, result.data.ptr
        if (a_place | b_place | place) % TMA_ALIGNMENT or self._launch.is_busy:
            return None
        places = self._places_of_terms(a_place, b_place, place, out is not None, terms)
        if places is None:
            return None
        self._queue(a_place, b_place, place, *places, terms)
        return result

    def _queue(self, a: int, b: int, place: int, bias: int, residual: int, terms: Terms) -> None:
        """Launches for arrays at these addresses."""
        self._launch.with_terms(a, b, place, self._stream().ptr, bias, residual, *terms.factors)

    def _places_of_terms(self, a: int, b: int, place: int, is_given: bool, terms: Terms) -> tuple[int, int] | None:
        """Addresses of bias and residual, 0 for what there is not; None where something lies so that it matters."""
        bias = 0 if self._bias is None else terms.bias.data.ptr
        residual = 0 if self._residual is None else terms.residual.data.ptr
        if (bias | residual) % self._pair_alignment:
            return None
        if not is_given:
            return bias, residual
        if self._a[0] < place - a < self._a[1] or self._b[0] < place - b < self._b[1]:
            return None
        if self._bias is not None and self._bias[0] < place - bias < self._bias[1]:
            return None
        # Each thread reads the residual where it then stores, so the two may be one.
        one = residual == place and self._residual_is_alike
        if self._residual is not None and not one and self._residual[0] < place - residual < self._residual[1]:
            return None
        return bias, residual


class PackedRepeat(Repeat):
    """The same where operands are copied for the kernel first."""

    def _read(self, own: Own) -> tuple[Any, Any]:
        assert own.packing is not None
        self._packing = own.packing
        # What is not copied is read by TMA.
        self._a_alignment, self._b_alignment = (
            TMA_ALIGNMENT if each is None else ITEM_BYTES for each in own.packing.copies
        )
        return own.packing.copied(own.posed.a, own.posed.b)

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        return self.with_terms(a, b, out, NO_TERMS)

    def with_terms(self, a: Any, b: Any, out: Any, terms: Terms) -> Any:
        a_place, b_place = a.data.ptr, b.data.ptr
        if a_place % self._a_alignment or b_place % self._b_alignment or is_capturing():
            return None
        if self._packing.by_addresses_alone and not (a_place | b_place) % TMA_ALIGNMENT:
            return None
        try:
            result = self._empty(self.shape, self.dtype) if out is None else out
            buffer = self._empty(self._packing.buffer_bytes, "uint8")
        except MemoryError:
            # Perhaps there is enough for `cupy.matmul`.
            return None
        place = result.data.ptr
        places = self._places_of_terms(a_place, b_place, place, out is not None, terms)
        if places is None or place % TMA_ALIGNMENT or self._launch.is_busy:
            return None
        left, right = self._packing.queue(a_place, b_place, buffer.data.ptr)
        self._queue(left, right, place, *places, terms)
        return result


class SlicedRepeat(Repeat):
    """The same in several launches, for stacks that are no single axis of equal steps."""

    def __init__(self, a: Any, b: Any, result: Any, own: Own, terms: Terms = NO_TERMS) -> None:
        super().__init__(a, b, result, own, terms)
        assert isinstance(own.posed, PosedStack)
        assert own.posed.outer is not None
        self._offsets = own.posed.outer.offsets(result, result if terms.residual is None else terms.residual)

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        return self.with_terms(a, b, out, NO_TERMS)

    def _queue(self, a: int, b: int, place: int, bias: int, residual: int, terms: Terms) -> None:
        stream = self._stream().ptr
        for of_a, of_b, of_out, of_residual in self._offsets:
            beside = residual + of_residual if residual else 0
            self._launch.with_terms(a + of_a, b + of_b, place + of_out, stream, bias, beside, *terms.factors)


class CupysRepeat:
    """A call that is `cupy.matmul`'s, for all arrays like those that it was decided for."""

    def __init__(self, a: Any, b: Any, out: Any) -> None:
        """Looks at how these lie.

        Args:
            a, b, out: as of `matmul`, which has left them to CuPy.
        """
        by_place = a.dtype.name in OPERAND_DTYPES
        # What TMA could read from elsewhere, an own kernel might have been chosen for.
        self._starts = (a.data.ptr % TMA_ALIGNMENT, b.data.ptr % TMA_ALIGNMENT) if by_place else None
        self._a = None if out is None else _overlapping(a, out)
        self._b = None if out is None else _overlapping(b, out)

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        """The product, or None where it has to be decided anew, as it is while a CUDA graph is captured."""
        a_place, b_place = a.data.ptr, b.data.ptr
        if self._starts not in (None, (a_place % TMA_ALIGNMENT, b_place % TMA_ALIGNMENT)) or is_capturing():
            return None
        if self._a is None or self._b is None:
            return cupy_matmul()(a, b)
        place = out.data.ptr
        if self._a[0] < place - a_place < self._a[1] or self._b[0] < place - b_place < self._b[1]:
            return None
        return cupy_matmul()(a, b, out=out)


def repeat_of(a: Any, b: Any, result: Any, own: Own, terms: Terms = NO_TERMS) -> Repeat:
    """The launch of an own kernel for arrays like these.

    Args:
        a, b, result, own, terms: as of `Repeat`.

    Raises:
        LaunchError: as `Repeat`.
    """
    if own.packing is not None:
        return PackedRepeat(a, b, result, own, terms)
    sliced = isinstance(own.posed, PosedStack) and own.posed.outer is not None
    return (SlicedRepeat if sliced else Repeat)(a, b, result, own, terms)


def _layout(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype


def _overlapping(operand: Any, result: Any) -> tuple[int, int]:
    """Between which distances, address of the result less that of an operand, the two share memory: open interval."""
    (first, end), place = bounds(operand), operand.data.ptr
    (result_first, result_end), result_place = bounds(result), result.data.ptr
    return (first - place) - (result_end - result_place), (end - place) - (result_first - result_place)
