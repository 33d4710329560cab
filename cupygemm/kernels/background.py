"""Work done in the background by threads that end when there is no more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from cupygemm.cores import num_cores

MOST_THREADS = 4
"""Compiling at once: a program that has just started has other work for its cores."""


class Background:
    """Runs jobs in the order given. Safe from any thread.

    The threads are no daemons: NVRTC must not be at work while the process unloads it. So the end of a process waits
    for the jobs under way, a second or two, and those behind them are dropped. A forked child has none of the threads,
    and none of the jobs are run in it: CUDA, for which they are, does not survive a fork either.
    """

    def __init__(self) -> None:
        """No thread runs yet."""
        # Signal handlers and finalizers may multiply too: a lock that its own thread may take again.
        self._lock = threading.RLock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = 0
        self._most = max(1, min(MOST_THREADS, num_cores() // 2))

    def submit(self, job: Callable[[], None]) -> bool:
        """Has a job done, which must raise nothing; False, and nothing else, where no thread can be had for it."""
        if not threading.main_thread().is_alive():
            return False
        with self._lock:
            self._jobs.append(job)
            if self._running < self._most and not self._start() and self._running == 0:
                self._jobs.clear()
                return False
        return True

    def _start(self) -> bool:
        """Whether there is one thread more; not where there are too many, or the interpreter is shutting down."""
        thread = threading.Thread(target=self._work, name="cupygemm-compile", daemon=False)
        self._running += 1
        try:
            thread.start()
        except RuntimeError:
            self._running -= 1
            return False
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not threading.main_thread().is_alive():
                    self._jobs.clear()
                if not self._jobs:
                    self._running -= 1
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:
                with self._lock:
                    self._running -= 1
                raise
