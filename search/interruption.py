"""Ctrl-C where it does no harm: what must not be broken off in the middle is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the end of the block; then whoever handles them is told of the first.

    An exception from a signal handler inside a compiler of JAX's can be swallowed there, or leave it in a state in
    which the process crashes as it ends (6 of 16 interrupted searches, jaxlib 0.10.2, 2026-11). Signals come to the
    main thread only, so elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: held.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if held:
        signal.raise_signal(held[0])
