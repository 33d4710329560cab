"""Compiling that a test lets through when it likes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cupygemm.kernels import compiler
from tests.fake_gpu import FakeGpu


class Gate:
    """Compiling that waits until it is let through.

    Attributes:
        only: the config that waits; None for all.
    """

    def __init__(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.is_open = threading.Event()
        self.began = threading.Event()
        self.tried: list[Any] = []
        self.only: Any = None
        monkeypatch.setattr(compiler, "compile_kernel", self._compile)

    def _compile(self, spec: Any, config: Any) -> Any:
        if not self.gpu.is_cached(spec, config):
            self.tried.append((spec, config))
            if self.only in (None, config):
                self.began.set()
                assert self.is_open.wait(20)
        return self.gpu.compile(spec, config)

    def pass_through(self) -> None:
        """Lets all compiling end, and waits until it has."""
        self.is_open.set()
        for thread in compiling_threads():
            thread.join(20)


def compiling_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cupygemm-compile"]


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread
