"""A stand-in for CuPy over NumPy, with a clock that only launches move: enough of it for `measure` and `graphs`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Launch = Callable[[Any, Any, Any], None]


class CudaError(RuntimeError):
    """In place of CuPy's exceptions."""


class FakeGraph:
    """A list of captured launches."""

    def __init__(self, gpu: FakeGpu, launches: list[Callable[[], None]]) -> None:
        self.gpu = gpu
        self.launches = launches

    def launch(self) -> None:
        """Runs them all."""
        for run in self.launches:
            run()
        self.gpu.replayed.append(self)


class FakeStream:
    """The one stream."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_capture(self) -> None:
        """Launches are kept from here on."""
        assert self.gpu.captured is None, "a capture is under way"
        self.gpu.captured = []

    def end_capture(self) -> FakeGraph:
        """The launches since."""
        assert self.gpu.captured is not None, "no capture is under way"
        graph, self.gpu.captured = FakeGraph(self.gpu, self.gpu.captured), None
        return graph

    def synchronize(self) -> None:
        """Fails where a kernel has faulted."""
        if self.gpu.faulted:
            raise CudaError("an illegal memory access was encountered")


class FakeGpu:
    """Attributes:
    clock_us: how long all launches so far took.
    captured: launches of the capture under way.
    replayed: graphs, as launched.
    faulted: a kernel has faulted: every synchronisation fails.
    """

    def __init__(self) -> None:
        self.clock_us = 0.0
        self.captured: list[Callable[[], None]] | None = None
        self.replayed: list[FakeGraph] = []
        self.faulted = False
        self.stream = FakeStream(self)

    def kernel(self, compute: Launch, cost_us: float) -> Launch:
        """A launch that computes with `compute` and takes `cost_us`."""

        def launch(a: Any, b: Any, out: Any) -> None:
            def run() -> None:
                compute(a, b, out)
                self.clock_us += cost_us

            if self.captured is None:
                run()
            else:
                self.captured.append(run)

        return launch

    @property
    def cupy(self) -> Any:
        """The module."""
        gpu = self

        class Event:
            def record(self) -> None:
                self.at_us = gpu.clock_us

        class Device:
            def __init__(self, index: int) -> None:
                assert index == 0

            def __enter__(self) -> None:
                pass

            def __exit__(self, *_: object) -> None:
                pass

            def synchronize(self) -> None:
                gpu.stream.synchronize()

        cuda = SimpleNamespace(
            Device=Device,
            Event=Event,
            Stream=lambda non_blocking: gpu.stream,
            get_current_stream=lambda: gpu.stream,
            get_elapsed_time=lambda start, end: (end.at_us - start.at_us) / 1000,
            runtime=SimpleNamespace(CUDARuntimeError=CudaError),
            driver=SimpleNamespace(CUDADriverError=CudaError),
        )
        return SimpleNamespace(cuda=cuda, random=np.random, empty=np.empty)


def product(a: Any, b: Any, out: Any) -> None:
    """Right: fp32 products, rounded once."""
    out[...] = a.astype(np.float32) @ b.astype(np.float32)
