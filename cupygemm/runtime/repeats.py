"""What `matmul` does when it has done the same before: one look into a dictionary, and the launch.

Two calls are alike where arrays have the same shapes, strides and dtypes on the same devices. All that was decided for
the first then holds for the second, except what depends on addresses, which is looked at anew.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from cupygemm import settings
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.runtime.product import Own
from cupygemm.runtime.repeat import CupysRepeat, repeat_of
from cupygemm.runtime.terms import NO_TERMS, Terms

MOST = 4096
"""Calls that are remembered in a thread; beyond it all are forgotten. One takes about 2 KB of host memory."""


class Repeats:
    """The calls that are known to each thread; as long as the bundles in force stay the same."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._threads = _Threads()

    def __len__(self) -> int:
        """How many the thread at hand knows."""
        known = self._threads.known
        return len(known.calls) + len(known.by_place)

    def answer(self, dispatcher: Dispatcher, a: Any, b: Any, out: Any) -> Any:
        """The product, or None where this call is not like one before, or its arrays lie so that it matters.

        Args:
            dispatcher: that of `learn`: what another one, or other bundles, were asked for is forgotten.
            a, b, out: anything.

        Raises:
            LaunchError: the driver refused the launch.
        """
        known = self._threads.known
        if known.dispatcher is not dispatcher or known.generation != dispatcher.generation:
            known.forget(dispatcher)
        if not known.calls and not known.by_place:
            return None
        key = known.key(a, b, out)
        call = known.calls.get(key)
        result = None if call is None or not known.is_here(a) else call.plain(a, b, out)
        if result is None and known.by_place:
            call = known.by_place.get(key)
            result = None if call is None or not known.is_here(a) else call.plain(a, b, out)
        return result

    def answer_with_terms(self, dispatcher: Dispatcher, a: Any, b: Any, out: Any, terms: Terms) -> Any:
        """The same with an epilogue.

        Raises:
            LaunchError: as `answer`.
        """
        known = self._threads.known
        if known.dispatcher is not dispatcher or known.generation != dispatcher.generation:
            known.forget(dispatcher)
        if not known.calls and not known.by_place:
            return None
        key = known.key_with_terms(a, b, out, terms)
        bias, _, residual, alpha, beta, _ = terms
        call = known.calls.get(key)
        result = (
            None if call is None or not known.is_here(a) else call.with_terms(a, b, out, bias, residual, alpha, beta)
        )
        if result is None and known.by_place:
            call = known.by_place.get(key)
            result = (
                None
                if call is None or not known.is_here(a)
                else call.with_terms(a, b, out, bias, residual, alpha, beta)
            )
        return result

    def learn(self, generation: int, a: Any, b: Any, out: Any, result: Any, own: Own, terms: Terms = NO_TERMS) -> None:
        """Remembers that an own kernel answers calls like this one, where it writes straight into the result.

        Args:
            generation: that of the dispatcher before it decided: what other bundles were asked for is not learnt.
            a, b, out, terms: as of `matmul`, without options.
            result: what it came to.
            own: what was decided for it.
        """
        known = self._threads.known
        if known.dispatcher is None or not generation == known.generation == known.dispatcher.generation:
            return
        known.begin()
        key = known.key_with_terms(a, b, out, terms) if terms.any() else known.key(a, b, out)
        if key is None:
            return
        try:
            call = repeat_of(a, b, result, own, terms)
        except LaunchError:
            # It is copied to `out`, or the driver is without these calls: such calls go the long way each time.
            return
        calls = known.calls if own.packing is None else known.by_place
        if len(calls) >= MOST:
            calls.clear()
        calls[key] = call

    def learn_cupys(self, generation: int, a: Any, b: Any, out: Any) -> None:
        """Remembers that `cupy.matmul` answers calls like this one.

        Not that of stacks of 16-bit matrices, which are posed otherwise for it; and of such matrices nothing that may
        be for as long only as a kernel is compiled.

        Args:
            generation: as of `learn`.
            a, b, out: as of `matmul`, without terms and options.
        """
        known = self._threads.known
        if known.dispatcher is None or not generation == known.generation == known.dispatcher.generation:
            return
        known.begin()
        key = known.key(a, b, out)
        if key is None:
            return
        sixteen_bits = not {a.dtype.name, b.dtype.name}.isdisjoint(OPERAND_DTYPES)
        if sixteen_bits and (a.ndim != 2 or b.ndim != 2 or settings.compiles_in_background()):
            return
        if len(known.by_place) >= MOST:
            known.by_place.clear()
        # Beside what own kernels answer at other addresses.
        known.by_place[key] = CupysRepeat(a, b, out)


class _Threads(threading.local):
    """What each thread knows: one object, since to look into a thread's own takes longer than into any other."""

    def __init__(self) -> None:
        # Called again in each thread that comes.
        self.known = _Known()


class _Known:
    """What a thread knows.

    Attributes:
        dispatcher, generation: what they were decided by.
        calls: by `key` and `key_with_terms`.
        by_place: likewise those that hold for some addresses only: operands are copied first, or CuPy runs.
        ndarray: CuPy's.
    """

    def __init__(self) -> None:
        self.dispatcher: Dispatcher | None = None
        self.generation = 0
        self.calls: dict[Any, Any] = {}
        self.by_place: dict[Any, Any] = {}
        self.ndarray: Any = None
        self._current: Any = None

    def forget(self, dispatcher: Dispatcher) -> None:
        self.dispatcher, self.generation, self.calls, self.by_place = dispatcher, dispatcher.generation, {}, {}

    def begin(self) -> None:
        """Asks CuPy what the first call of a thread needs to know."""
        if self.ndarray is None:
            cupy = driver.cupy()
            self.ndarray = cupy.ndarray
            runtime = cupy.cuda.runtime
            # Where there is one device it is the current one.
            self._current = runtime.getDevice if runtime.getDeviceCount() > 1 else None

    def is_here(self, a: Any) -> bool:
        """Whether the device of the operands is the current one."""
        return self._current is None or self._current() == a.data.device_id

    def key(self, a: Any, b: Any, out: Any) -> Any:
        """What two calls have in common that are alike; None for what is not remembered."""
        ndarray = self.ndarray
        if type(a) is not ndarray or type(b) is not ndarray:
            return None
        key: tuple[Any, ...] = (a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype)
        if out is not None:
            if type(out) is not ndarray:
                return None
            key += (out.shape, out.strides, out.dtype)
        return key if self._current is None else key + _devices(a, b, out)

    def key_with_terms(self, a: Any, b: Any, out: Any, terms: Terms) -> Any:
        """The same with an epilogue."""
        bias, activation, residual, alpha, beta, out_dtype = terms
        key = self.key(a, b, out)
        if key is None or type(alpha) not in _NUMBERS or type(beta) not in _NUMBERS:
            return None
        if type(activation) not in _NAMES or not (out_dtype is None or isinstance(out_dtype, _HASHABLE)):
            return None
        for term in (bias, residual):
            if term is None:
                key += (None,)
            elif type(term) is self.ndarray:
                key += (term.shape, term.strides, term.dtype)
            else:
                return None
        if self._current is not None:
            key += _devices(bias, residual)
        return (*key, activation, out_dtype, alpha == 1.0, residual is None and beta != 1.0)


_NUMBERS = (float, int)
_NAMES = (str, type(None))
_HASHABLE = (str, type, np.dtype)


def _devices(*arrays: Any) -> tuple[int, ...]:
    return tuple(-1 if array is None else array.data.device_id for array in arrays)
