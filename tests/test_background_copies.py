"""First calls whose operands are copied: two kernels are compiled for them, now or in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError, CompileError
from cupygemm.kernels import compiler
from cupygemm.problem import Problem
from cupygemm.runtime import api, product
from tests.fake_gpu import FakeGpu
from tests.fake_products import SMALL, bundle_of, fresh_gpu, plain, right, stored

ODD = Problem(24, 40, 17)


class Gates:
    """Compiling that waits until it is let through, kernel by kernel.

    Attributes:
        began: what is being compiled: "kernel" or "copies".
        error: what compiling the copies comes to; None for a kernel.
    """

    def __init__(self, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.is_open = {"kernel": threading.Event(), "copies": threading.Event()}
        self.began: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(compiler, "compile_kernel", self._compile)
        monkeypatch.setattr(compiler, "compile_page", self._compile_page)

    def _wait(self, name: str) -> None:
        self.began.append(name)
        assert self.is_open[name].wait(20)

    def _compile(self, spec: Any, config: Any) -> Any:
        if not self.gpu.is_cached(spec, config):
            self._wait("kernel")
        return self.gpu.compile(spec, config)

    def _compile_page(self, page: str, entry: str) -> Any:
        if (page, entry) not in self.gpu.pages:
            self._wait("copies")
            if self.error is not None:
                raise self.error
        return self.gpu.compile_page(page, entry)

    def await_both(self) -> None:
        """Until both have begun."""
        for _ in range(2000):
            if len(self.began) == 2:
                return
            threading.Event().wait(0.01)
        pytest.fail(f"only {self.began} have begun")

    def pass_through(self, *names: str) -> None:
        """Lets compiling end, and waits until it has."""
        for name in names:
            self.is_open[name].set()
        if all(gate.is_set() for gate in self.is_open.values()):
            for thread in threading.enumerate():
                if thread.name == "cupygemm-compile":
                    thread.join(20)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr("cupygemm.kernels.background.num_cores", lambda: 8)  # two threads at least
    gpu = fresh_gpu(monkeypatch)
    monkeypatch.setattr(product, "pays", lambda *told: True)  # products of a test are too small for it
    monkeypatch.setenv("CUPYGEMM_COMPILE", "background")
    cupygemm.use(bundle_of(ODD))
    return gpu


@pytest.fixture
def gates(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    gates = Gates(gpu, monkeypatch)
    yield gates
    gates.pass_through("kernel", "copies")


def draw(gpu: FakeGpu) -> tuple[Any, Any, Any]:
    return stored(gpu, (24, 17)), stored(gpu, (17, 40)), gpu.empty((24, 40), np.float16)


def check(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))


def ended(gates: Gates, name: str) -> None:
    """Waits until one of two has been compiled, while the other goes on."""
    gates.pass_through(name)
    done = {"kernel": lambda: bool(gates.gpu.compiled), "copies": lambda: bool(gates.gpu.pages)}
    for _ in range(2000):
        if done[name]():
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{name} is not compiled")


def test_cublas_runs_until_both_are_there(gpu: FakeGpu, gates: Gates) -> None:
    a, b, _ = draw(gpu)
    for _ in range(3):
        check(a, b)
    gates.await_both()  # side by side
    assert sorted(gates.began) == ["copies", "kernel"]
    assert (len(gpu.fallbacks), gpu.launches, gpu.packed) == (3, [], [])
    gates.pass_through("kernel", "copies")
    for _ in range(3):
        check(a, b)
    assert (len(gpu.fallbacks), len(gpu.launches), len(gpu.packed)) == (3, 3, 3)
    assert sorted(gates.began) == ["copies", "kernel"]


@pytest.mark.parametrize("first", ["kernel", "copies"])
def test_one_of_both_is_there_before_the_other(gpu: FakeGpu, gates: Gates, first: str) -> None:
    a, b, _ = draw(gpu)
    check(a, b)
    gates.await_both()
    ended(gates, first)
    for _ in range(2):
        check(a, b)
    assert (len(gpu.fallbacks), gpu.launches) == (3, [])
    reason = cupygemm.explain(a, b).reason
    name = "the kernel that copies operands for TMA" if first == "kernel" else "its kernel"
    assert f"{name} is being compiled in the background" in reason
    gates.pass_through("kernel", "copies")
    check(a, b)
    assert len(gpu.launches) == 1


def test_what_is_compiled_for_one_serves_all(gpu: FakeGpu, gates: Gates) -> None:
    """A product whose own kernel is there waits for that of the copies alone, which then is everybody's."""
    a, b, _ = draw(gpu)
    gates.pass_through("kernel")
    api.dispatcher().kernels.load(ODD, SMALL, 0)
    check(a, b)
    assert (len(gpu.fallbacks), gpu.launches) == (1, [])
    gates.pass_through("copies")
    check(a, b)
    other = Problem(24, 48, 17)
    with cupygemm.use(bundle_of(other)):
        check(a, stored(gpu, (17, 48)))
    assert (len(gpu.fallbacks), len(gpu.launches)) == (1, 2)
    assert gates.began.count("copies") == 1


def test_a_plan_waits_for_both(gpu: FakeGpu, gates: Gates) -> None:
    a, b, out = draw(gpu)
    check(a, b)
    gates.await_both()
    plans: list[Any] = []
    waiting = threading.Thread(target=lambda: plans.append(cupygemm.plan(a, b, out)))
    waiting.start()
    ended(gates, "kernel")
    assert plans == []
    gates.pass_through("copies")
    waiting.join(20)
    assert plans[0].choice.kernel == "own"
    np.testing.assert_array_equal(plain(plans[0](a, b, out)), right(a, b))
    assert len(gates.began) == 2


def test_a_capture_says_what_is_not_there(gpu: FakeGpu, gates: Gates) -> None:
    a, b, out = draw(gpu)
    gates.pass_through("kernel")
    api.dispatcher().kernels.load(ODD, SMALL, 0)

    def refuse(words: str) -> None:
        gpu.stream.begin_capture()
        with pytest.raises(CaptureError, match=words):
            cupygemm.matmul(a, b, out)
        assert gpu.stream.end_capture().launches == []

    refuse("the kernel that copies operands for TMA is not loaded, .* call matmul once with such operands")
    assert "copies" not in gates.began
    check(a, b)
    refuse("the kernel that copies operands for TMA is still being compiled in the background, .* cupygemm.warmup")
    gates.pass_through("copies")
    refuse("not loaded")
    check(a, b)
    gpu.stream.begin_capture()
    cupygemm.matmul(a, b, out)
    assert len(gpu.stream.end_capture().launches) == 4


@pytest.mark.parametrize("error", [CompileError("NVRTC refused the page: no", "log"), MemoryError("none left")])
def test_what_cannot_be_compiled_is_said_and_tried_once(
    gpu: FakeGpu, gates: Gates, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    a, b, _ = draw(gpu)
    gates.error = error
    check(a, b)
    gates.await_both()
    gates.pass_through("kernel", "copies")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cupygemm.kernels.compiling", logging.WARNING)
    assert "the kernel that copies operands for TMA" in record.getMessage()
    assert (record.exc_info is None) == isinstance(error, CompileError)
    for _ in range(3):
        check(a, b)
        assert str(error) in cupygemm.explain(a, b).reason
    assert (gates.began.count("copies"), gpu.launches, len(gpu.fallbacks)) == (1, [], 4)
    # What TMA reads where it lies has nothing to do with it.
    with cupygemm.use(bundle_of(Problem(24, 40, 16))):
        check(stored(gpu, (24, 16)), stored(gpu, (16, 40)))
        gates.pass_through("kernel")
        check(stored(gpu, (24, 16)), stored(gpu, (16, 40)))
    assert gpu.launches


def test_a_call_that_is_told_to_wait_waits(gpu: FakeGpu, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_COMPILE", "now")
    gates.pass_through("kernel", "copies")
    a, b, _ = draw(gpu)
    check(a, b)
    assert (len(gpu.launches), gpu.fallbacks, gates.began) == (1, [], ["kernel", "copies"])
