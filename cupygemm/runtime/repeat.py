"""One call of `matmul` that is made again with other arrays like those of before: what of it is worked out ahead."""

from __future__ import annotations

from typing import Any

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.capture import is_capturing
from cupygemm.kernels.epilogue_terms import pair_alignment
from cupygemm.runtime.fallback import cupy_matmul
from cupygemm.runtime.prepared import Prepared
from cupygemm.runtime.product import Own
from cupygemm.runtime.terms import NO_TERMS, Terms
from cupygemm.views.copies import ITEM_BYTES
from cupygemm.views.posing import bounds
from cupygemm.views.stacks import PosedStack


class Repeat:
    """An own kernel's launch for all arrays like those that it was made for. Safe from several threads.

    A launch is written down before it is made: who makes one takes it from those that nobody is writing. These are as
    many as were ever made at once, by several threads, or by a signal handler or a finalizer in the middle of another.

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
        self._first = Prepared(own.plan, left, right, target, own.bias, own.residual)
        self._free = [self._first]
        self._a, self._b = _overlapping(a, result), _overlapping(b, result)
        bias, residual = terms.bias, terms.residual
        self._bias = None if bias is None else _overlapping(bias, result)
        self._residual = None if residual is None else _overlapping(residual, result)
        self._residual_is_alike = residual is not None and _layout(residual) == _layout(result)
        self._pair_alignment = pair_alignment(own.posed.product_shape[-1], own.dtype.itemsize)
        cupy = driver.cupy()
        # What cupy.empty calls, without what it does besides: 1.5 in place of 1.9 µs (CuPy 14.2, without a GPU).
        self._empty, self._stream = cupy.ndarray, cupy.cuda.get_current_stream
        self._device = a.device.id

    def _read(self, own: Own) -> tuple[Any, Any]:
        """Operands as the plan takes them."""
        return own.posed.a, own.posed.b

    def plain(self, a: Any, b: Any, out: Any) -> Any:
        """The product, or None where the arrays lie so that it has to be decided anew.

        Args:
            a, b, out: arrays like those of before, on the current device; `out` None for a new array where those were
                as new ones are.

        Raises:
            LaunchError: the driver refused the launch.
        """
        result = self._empty(self.shape, self.dtype) if out is None else out
        a_place, b_place, place = a.data.ptr, b.data.ptr, result.data.ptr
        if (a_place | b_place | place) % TMA_ALIGNMENT:
            return None
        if out is not None and (self._a[0] < place - a_place < self._a[1] or self._b[0] < place - b_place < self._b[1]):
            return None
        launch = self._taken()
        try:
            launch.launch(a_place, b_place, place, self._stream(self._device).ptr)
        finally:
            self._free.append(launch)
        return result

    def with_terms(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: float, beta: float) -> Any:
        """The same with an epilogue.

        Args:
            bias, residual: arrays like those of before; None where there was none.
            alpha, beta: factors, any; but alpha is 1 if the epilogue is "none".

        Raises:
            LaunchError: as `plain`.
        """
        result = self._empty(self.shape, self.dtype) if out is None else out
        a_place, b_place, place = a.data.ptr, b.data.ptr, result.data.ptr
        if (a_place | b_place | place) % TMA_ALIGNMENT:
            return None
        places = self._places_of_terms(a_place, b_place, place, out is not None, bias, residual)
        if places is None:
            return None
        bias_place, residual_place = places
        self._queue(a_place, b_place, place, bias_place, residual_place, alpha, beta)
        return result

    def _queue(self, a: int, b: int, place: int, bias: int, residual: int, alpha: float, beta: float) -> None:
        """Launches for arrays at these addresses."""
        launch = self._taken()
        try:
            launch.launch_with_terms(a, b, place, self._stream(self._device).ptr, bias, residual, alpha, beta)
        finally:
            self._free.append(launch)

    def _taken(self) -> Prepared:
        """One that nobody is writing, to be put back."""
        try:
            return self._free.pop()
        except IndexError:
            return self._first.of_its_own()

    def _places_of_terms(
        self, a: int, b: int, place: int, is_given: bool, bias: Any, residual: Any
    ) -> tuple[int, int] | None:
        """Addresses of bias and residual, 0 for what there is not; None where something lies so that it matters."""
        bias_place = 0 if bias is None else bias.data.ptr
        residual_place = 0 if residual is None else residual.data.ptr
        if (bias_place | residual_place) % self._pair_alignment:
            return None
        if not is_given:
            return bias_place, residual_place
        if self._a[0] < place - a < self._a[1] or self._b[0] < place - b < self._b[1]:
            return None
        if self._bias is not None and self._bias[0] < place - bias_place < self._bias[1]:
            return None
        if self._residual is not None and self._residual[0] < place - residual_place < self._residual[1]:
            # Each thread reads the residual where it then stores, so the two may be one.
            return (bias_place, place) if residual_place == place and self._residual_is_alike else None
        return bias_place, residual_place


class PackedRepeat(Repeat):
    """The same where operands are copied for the kernel first; also while a CUDA graph is being captured."""

    def _read(self, own: Own) -> tuple[Any, Any]:
        assert own.packing is not None
        self._packing = own.packing
        # What is not copied is read by TMA.
        self._a_alignment, self._b_alignment = (
            TMA_ALIGNMENT if each is None else ITEM_BYTES for each in own.packing.copies
        )
        return own.packing.copied(own.posed.a, own.posed.b)

    def plain(self, a: Any, b: Any, out: Any) -> Any:
        return self.with_terms(a, b, out, None, None, 1.0, 1.0)

    def with_terms(self, a: Any, b: Any, out: Any, bias: Any, residual: Any, alpha: float, beta: float) -> Any:
        a_place, b_place = a.data.ptr, b.data.ptr
        if a_place % self._a_alignment or b_place % self._b_alignment:
            return None
        if self._packing.by_addresses_alone and not (a_place | b_place) % TMA_ALIGNMENT:
            return None
        try:
            result = self._empty(self.shape, self.dtype) if out is None else out
            memory = self._packing.memory()
        except MemoryError:
            # Perhaps there is enough for `cupy.matmul`.
            return None
        place = result.data.ptr
        places = self._places_of_terms(a_place, b_place, place, out is not None, bias, residual)
        if places is None or place % TMA_ALIGNMENT:
            return None
        bias_place, residual_place = places
        with memory as buffer:
            left, right = self._packing.queue(a_place, b_place, buffer.data.ptr)
            self._queue(left, right, place, bias_place, residual_place, alpha, beta)
        return result


class SlicedRepeat(Repeat):
    """The same in several launches, for stacks that are no single axis of equal steps."""

    def __init__(self, a: Any, b: Any, result: Any, own: Own, terms: Terms = NO_TERMS) -> None:
        super().__init__(a, b, result, own, terms)
        assert isinstance(own.posed, PosedStack)
        assert own.posed.outer is not None
        self._offsets = own.posed.outer.offsets(result, result if terms.residual is None else terms.residual)

    def plain(self, a: Any, b: Any, out: Any) -> Any:
        return self.with_terms(a, b, out, None, None, 1.0, 1.0)

    def _queue(self, a: int, b: int, place: int, bias: int, residual: int, alpha: float, beta: float) -> None:
        stream, launch = self._stream(self._device).ptr, self._taken()
        try:
            for of_a, of_b, of_out, of_residual in self._offsets:
                beside = residual + of_residual if residual else 0
                launch.launch_with_terms(a + of_a, b + of_b, place + of_out, stream, bias, beside, alpha, beta)
        finally:
            self._free.append(launch)


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

    def plain(self, a: Any, b: Any, out: Any) -> Any:
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
