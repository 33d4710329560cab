"""`patch`: CuPy's names lead to `cupygemm.matmul` and back, on a fake GPU and on CuPy's own classes without one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.runtime import api, fallback
from cupygemm.runtime.patching import _state
from tests.fake_gpu import DeviceArray, FakeGpu
from tests.fake_products import PROBLEM, bundle_of, fresh_gpu, operands, plain, right


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.setattr(fallback, "_kept", [])
    yield fresh_gpu(monkeypatch)
    assert _state.depth == 0
    assert "__matmul__" not in vars(DeviceArray)


def test_names_lead_to_ours_and_back(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    cupy = driver.cupy()
    a, b = operands(gpu)
    with cupygemm.patch() as patch:
        assert cupy.matmul is cupy.linalg.matmul is api.matmul
        assert patch.operator
        for result in (cupy.matmul(a, b), cupy.linalg.matmul(a, b), a @ b):
            np.testing.assert_array_equal(plain(result), right(a, b))
        assert (len(gpu.launches), gpu.fallbacks) == (3, [])
        assert repr(patch) == "<cupygemm.patch: cupy.matmul and @, in force>"
    assert repr(patch) == "<cupygemm.patch: cupy.matmul and @, no longer in force>"
    assert cupy.matmul == cupy.linalg.matmul == gpu.matmul
    assert len(gpu.launches) == 3


def test_falling_back_does_not_come_back(gpu: FakeGpu) -> None:
    cupy = driver.cupy()
    a, b = operands(gpu)
    with cupygemm.patch():
        for result in (cupy.matmul(a, b), a @ b, cupygemm.matmul(a, b)):
            np.testing.assert_array_equal(plain(result), right(a, b))
        assert len(gpu.fallbacks) == 3
        assert fallback.cupy_matmul() == gpu.matmul
        with pytest.raises(TypeError, match="incorrect type"):
            cupy.matmul([[1.0]], b)


def test_what_is_no_array_is_cupys_to_decide(gpu: FakeGpu) -> None:
    class Reflected:
        __array_ufunc__ = None

        def __rmatmul__(self, other: Any) -> str:
            return "reflected"

    a, b = operands(gpu)
    with cupygemm.patch():
        assert a @ Reflected() == "reflected"
        np.testing.assert_array_equal(plain(a @ np.asarray(b)), right(a, b))
    assert (gpu.launches, gpu.fallbacks) == ([], [])


def test_patches_nest_in_any_order(gpu: FakeGpu) -> None:
    cupy = driver.cupy()
    first, second = cupygemm.patch(), cupygemm.patch()
    first.undo()
    first.undo()
    assert cupy.matmul is api.matmul
    assert "__matmul__" in vars(DeviceArray)
    second.undo()
    assert cupy.matmul == gpu.matmul
    with pytest.raises(ZeroDivisionError), cupygemm.patch():
        raise ZeroDivisionError
    assert cupy.matmul == gpu.matmul


def test_what_came_between_is_left_alone_and_ends_in_cupy(gpu: FakeGpu) -> None:
    cupy = driver.cupy()
    a, b = operands(gpu)
    patch = cupygemm.patch()

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return api.matmul(*args, **options)

    calls: list[Any] = []
    cupy.matmul = counted
    patch.undo()
    assert cupy.matmul is counted
    assert cupy.linalg.matmul == gpu.matmul
    np.testing.assert_array_equal(plain(cupy.matmul(a, b)), right(a, b))
    with cupygemm.patch():
        cupy.matmul(a, b)
    cupy.matmul(a, b)
    assert (len(calls), len(gpu.fallbacks)) == (2, 3)


def test_a_class_that_takes_no_operator_keeps_its_own(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cupy = driver.cupy()
    monkeypatch.setattr(cupy, "ndarray", np.ndarray)  # as immutable as a class of C can be
    with cupygemm.patch() as patch:
        assert not patch.operator
        assert cupy.matmul is api.matmul
        assert repr(patch) == "<cupygemm.patch: cupy.matmul, in force>"
    assert cupy.matmul == gpu.matmul
    (record,) = caplog.records
    assert (record.name, "@ stays CuPy's" in record.getMessage()) == ("cupygemm.runtime.patching", True)


def test_threads_may_patch_at_once(gpu: FakeGpu) -> None:
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(50):
            with cupygemm.patch():
                assert driver.cupy().matmul is api.matmul

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.cupy().matmul == gpu.matmul


ON_CUPY = """
import cupy, numpy, cupygemm
from cupygemm.runtime import api

memory = numpy.zeros(4096, numpy.uint8)
owned = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, 0)
a = cupy.ndarray((4, 4), numpy.float16, cupy.cuda.MemoryPointer(owned, 0))
theirs, operator = cupy.matmul, cupy.ndarray.__matmul__
api.matmul = lambda *given, **options: ("ours", given, options)

class Reflected:
    __array_ufunc__ = None
    def __rmatmul__(self, other):
        return "reflected"

class Derived(cupy.ndarray):
    pass

with cupygemm.patch() as patch:
    assert patch.operator
    assert (a @ a)[0] == cupy.matmul(a, a)[0] == cupy.linalg.matmul(a, a)[0] == "ours"
    assert (a.view(Derived) @ a)[0] == "ours"
    assert numpy.matmul(a, a)[0] == "ours"
    assert numpy.matmul(a, a, axes=[(0, 1)] * 3)[2] == {"axes": [(0, 1)] * 3}
    assert a @ Reflected() == "reflected"
    b = a
    b @= a
    assert b[0] == "ours"
    # NumPy hands the product on, for CuPy to refuse one of its arrays.
    assert (numpy.ones((4, 4)) @ a)[0] == "ours"
assert cupy.matmul is cupy.linalg.matmul is theirs
assert cupy.ndarray.__matmul__ is operator
assert "__matmul__" not in vars(cupy.ndarray)
"""


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupys_own_classes_take_it(tmp_path: Any) -> None:
    done = subprocess.run([sys.executable, "-c", ON_CUPY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
