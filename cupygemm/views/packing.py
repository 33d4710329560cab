"""Operands that TMA cannot read where they lie, copied to where it can: both in one launch.

What is copied, and how, follows from shapes, strides and addresses alone; a `Packing` is worked out once and then
called with any arrays of the same shapes and strides. Whether a copy and an own kernel are quicker than what
`cupy.matmul` does with such operands is for `packing_cost` to estimate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from cupygemm.errors import CaptureError, ProblemError
from cupygemm.kernels import driver
from cupygemm.kernels.capture import graph_memory, is_capturing
from cupygemm.kernels.pack_kernel import (
    CHUNK_ELEMENTS,
    MAX_THREAD_CHUNKS,
    THREADS,
    PackedOperand,
    is_loaded,
    pack_kernel,
)
from cupygemm.kernels.placement import misaligned_reason
from cupygemm.kernels.raster import Divisor
from cupygemm.views.copies import ITEM_BYTES, Copy, copy_of, needs_packing
from cupygemm.views.stacks import Stack

BUFFER_ALIGNMENT = 256
"""Of each copy: a multiple of a line, and what every allocation has."""
BLOCKS_PER_SM = 4
"""That run at once for certain, as up to 64 registers a thread allow: threads take several chunks only where all SMs
have as many blocks."""


class _Place(NamedTuple):
    """An address inside a buffer, which lives as long as this; what CuPy's arrays have as `data`."""

    ptr: int
    buffer: Any


class Packing:
    """Copies those operands of a product that TMA cannot read.

    Safe from several threads.

    Attributes:
        copies: of a and b; None for one that is read where it lies.
        reasons: why, likewise.
        layout: of the product as its kernel will see it, as `Problem.layout`.
        buffer_bytes: of device memory for the copies.
        by_addresses_alone: whether nothing but where they start keeps TMA from reading them.
    """

    def __init__(self, a: Any, b: Any) -> None:
        """Works out what is copied, and launches nothing.

        Args:
            a, b: as `packing_of`, of which at least one needs a copy and all that do can be copied.

        Raises:
            ProblemError: one cannot be copied; `packing_of` says so without an error.
        """
        self.reasons = (needs_packing(a), needs_packing(b))
        self.copies = tuple(
            None if reason is None else _copy(name, each)
            for name, each, reason in zip("ab", (a, b), self.reasons, strict=True)
        )
        self.layout = "".join(
            _stored(each) if copy is None else "nt"[copy.transposed]
            for each, copy in zip((a, b), self.copies, strict=True)
        )
        self._device = a.device.id
        self._kinds = _kinds(a, b)
        sm_count = driver.device_spec(self._device).sm_count
        self._sources = tuple(None if copy is None else _source(copy, sm_count) for copy in self.copies)
        first, second = (
            0 if copy is None else -(-copy.bytes // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT for copy in self.copies
        )
        self._second = first
        self.buffer_bytes = first + second
        # At other addresses TMA could read both.
        self.by_addresses_alone = all(
            needs_packing(Stack(each.shape, each.strides, each.dtype, _Place(0, None), each.device)) is None
            for each in (a, b)
        )
        left, right = self.copies
        # A matrix times its own transpose is one copy, read by rows and by columns.
        self._may_share = left is not None and right is not None and left.geometry == right.geometry

    @property
    def reason(self) -> str:
        """What is copied and why, for a person."""
        copied = ((name, why) for name, why in zip("ab", self.reasons, strict=True) if why is not None)
        return "; ".join(f"{name} is copied for TMA: {why}" for name, why in copied)

    def load(self) -> None:
        """Compiles and loads the kernel where it is not there yet; a call does it too.

        Raises:
            CaptureError: a CUDA graph is being captured, and the kernel is not loaded.
            CompileError, LaunchError: it cannot be had.
        """
        if not is_loaded(self._device) and is_capturing():
            raise CaptureError(
                "the kernel that copies operands for TMA is not loaded, and a CUDA graph is being captured: call "
                "matmul once with such operands before the capture"
            )
        pack_kernel(self._device)

    def __call__(self, a: Any, b: Any, buffer: Any = None) -> tuple[Any, Any]:
        """Queues the copies on the current stream of the operands' device, which is the current one.

        They may be read by what is queued on that stream later, as long as the results live; after that CuPy's pool
        gives their memory to what is queued there next.

        Args:
            a, b: of the shapes, strides and dtypes that this was made for, at any addresses at which the one that is
                not copied can be read by TMA.
            buffer: for the copies to lie in: uint8, `buffer_bytes` or more, at a multiple of `BUFFER_ALIGNMENT`. None
                allocates it.

        Returns:
            a and b for a `Plan`: each as it came, or a `Stack` of its shape whose memory is the copy.

        Raises:
            ProblemError: operands of another kind, or a buffer that does not do.
            CaptureError: a CUDA graph is being captured, and no buffer is given, or the kernel is not loaded.
            CompileError, LaunchError: the kernel cannot be had.
        """
        kinds = _kinds(a, b)
        if kinds != self._kinds or (a.data.ptr | b.data.ptr) % ITEM_BYTES:
            raise ProblemError(
                f"made for operands with shapes, strides and dtypes of {self._kinds} at even addresses; these have "
                f"{kinds} and start at {a.data.ptr:#x} and {b.data.ptr:#x}"
            )
        self.load()
        if buffer is None:
            if is_capturing():
                # It would be free for others after this call, and be written to at every replay.
                raise CaptureError(
                    f"a CUDA graph is being captured, and copies would need memory that lives as long as it does "
                    f"({self.reason}): give a buffer, such as that of memory()"
                )
            buffer = driver.cupy().empty(self.buffer_bytes, dtype="uint8")
        start = buffer.data.ptr
        if buffer.nbytes < self.buffer_bytes or start % BUFFER_ALIGNMENT:
            raise ProblemError(
                f"the buffer has {buffer.nbytes} bytes at {start:#x}: {self.buffer_bytes} at a multiple of "
                f"{BUFFER_ALIGNMENT} are needed"
            )
        self.queue(a.data.ptr, b.data.ptr, start)
        return self.copied(a, b, buffer)

    def memory(self) -> AbstractContextManager[Any]:
        """A buffer on the current device, inside of which the copies are queued, and what reads them.

        It is of CuPy's pool, or where the current stream is being captured into a CUDA graph, of that graph.

        Raises:
            MemoryError: the pool has none.
            CaptureError: the graph has none.
        """
        if is_capturing():
            return graph_memory(self.buffer_bytes)
        return nullcontext(driver.cupy().empty(self.buffer_bytes, dtype="uint8"))

    def queue(self, a: int, b: int, start: int) -> tuple[int, int]:
        """Queues the copies alone, with nothing looked at: for operands like those of before.

        Args:
            a, b: addresses at which operands start.
            start: that of the buffer.

        Returns:
            the addresses from which the product reads them.
        """
        places = self._places(a, b, start)
        launched: list[PackedOperand] = []
        for each, source, place in zip((a, b), self._sources, places, strict=True):
            if source is not None and not (launched and place == places[0]):
                told = PackedOperand.from_buffer_copy(source)
                told.source, told.copy = each, place
                launched.append(told)
        pack_kernel(self._device)(launched)
        return places

    def copied(self, a: Any, b: Any, buffer: Any = None) -> tuple[Any, Any]:
        """a and b as a `Plan` takes them once they are in the buffer; nothing is queued.

        Args:
            buffer: None for one that is still to come, where only how they lie matters.
        """
        start = BUFFER_ALIGNMENT if buffer is None else buffer.data.ptr
        places = self._places(a.data.ptr, b.data.ptr, start)
        left, right = (
            each if copy is None else Stack(copy.shape, copy.strides, each.dtype, _Place(place, buffer), each.device)
            for each, copy, place in zip((a, b), self.copies, places, strict=True)
        )
        return left, right

    def _places(self, a: int, b: int, start: int) -> tuple[int, int]:
        left, right = self.copies
        first = a if left is None else start
        if left is not None and self._may_share and a == b:
            return first, first
        return first, b if right is None else start + self._second


def packing_of(a: Any, b: Any) -> Packing | str | None:
    """What copies the operands of a product that TMA cannot read; None where it reads both, or why that cannot be.

    Args:
        a: [m, k] or [batch, m, k], a CuPy array or a `Stack`, with elements.
        b: [k, n] or [batch, k, n], likewise, on the same device.
    """
    for name, each in (("a", a), ("b", b)):
        if needs_packing(each) is not None:
            copy = copy_of(each)
            if isinstance(copy, str):
                return f"{name} cannot be copied for TMA: {copy}"
    return None if needs_packing(a) is None and needs_packing(b) is None else Packing(a, b)


def _kinds(a: Any, b: Any) -> tuple[Any, ...]:
    return tuple((each.shape, each.strides, each.dtype.name) for each in (a, b))


def _copy(name: str, operand: Any) -> Copy:
    copy = copy_of(operand)
    if isinstance(copy, str):
        raise ProblemError(f"{name} cannot be copied for TMA: {copy}")
    return copy


def _stored(operand: Any) -> str:
    return "n" if misaligned_reason(operand, False) is None else "t"


def _source(copy: Copy, sm_count: int) -> PackedOperand:
    """All that the kernel is told of an operand but its place and its copy's."""
    at_once = BLOCKS_PER_SM * sm_count * THREADS
    thread_chunks = next((n for n in (MAX_THREAD_CHUNKS, 2) if copy.chunks >= n * at_once), 1)
    span_begin, span_end = copy.span
    return PackedOperand(
        matrix_stride=copy.matrix_stride,
        row_stride=copy.row_stride,
        element_stride=copy.element_stride,
        span_begin=span_begin,
        span_end=span_end,
        columns=copy.columns,
        chunks=copy.chunks,
        thread_chunks=thread_chunks,
        row_chunks=Divisor.of(copy.pitch // CHUNK_ELEMENTS),
        matrix_rows=Divisor.of(copy.rows),
    )
