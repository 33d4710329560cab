"""Operands, bundles and right results for the tests of `matmul` on a fake GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupygemm import settings
from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelConfig
from cupygemm.device import H200, DeviceSpec
from cupygemm.kernels import compiler
from cupygemm.measuring.verify import numpy_dtype
from cupygemm.problem import Problem
from cupygemm.runtime import api
from cupygemm.runtime.repeats import Repeats
from tests.fake_gpu import FakeDevice, FakeGpu

SMALL = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, False, 1, 40, 1, 1)
LARGE = KernelConfig(128, 128, 64, 4, 2, False, 2, 1, False, 8, 40, 1, 1)
PROBLEM = Problem(24, 40, 16)


def fresh_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU for `matmul`, with no bundle in force, the shipped one neither, and nothing loaded."""
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    monkeypatch.setattr(api, "_dispatcher", Dispatcher(in_background=True))
    monkeypatch.setattr(api, "_repeats", Repeats())  # which has counted the devices
    monkeypatch.setenv("CUPYGEMM_BUNDLE", settings.NO_BUNDLE)
    return gpu


def bundle_of(
    *problems: Problem, config: KernelConfig = SMALL, device: DeviceSpec = H200, digest: str | None = None
) -> Bundle:
    """The same config for each problem, by default measured here and now."""
    search = SearchInfo(strategy="test", evaluations=1)
    entries = [Entry(problem=problem, config=config, measured=Measured(us=1.0), search=search) for problem in problems]
    return new_bundle(BundleDevice.of(device, {}), digest or compiler.source_digest(), entries)


def stored(
    gpu: FakeGpu, shape: tuple[int, int], letter: str = "n", dtype: str = "float16", padding: int = 0, seed: int = 0
) -> Any:
    """Small integers, stored by rows ("n") or by columns ("t"), each followed by `padding` elements of NaN."""
    rows, columns = shape if letter == "n" else shape[::-1]
    view = gpu.empty((rows, columns + padding), numpy_dtype(dtype))[:, :columns]
    view = view if letter == "n" else view.T
    view[...] = np.random.default_rng(seed).integers(-2, 3, shape)
    return view


def operands(gpu: FakeGpu, problem: Problem = PROBLEM, padding: int = 0) -> tuple[Any, Any]:
    """a and b of a problem, laid out as it says."""
    a = stored(gpu, (problem.m, problem.k), problem.layout[0], problem.a_dtype, padding, seed=1)
    b = stored(gpu, (problem.k, problem.n), problem.layout[1], problem.b_dtype, padding, seed=2)
    return a, b


def on_another_device(gpu: FakeGpu, rows: int) -> Any:
    """[rows, 40] of float16 that lie on device 1."""
    with FakeDevice(gpu, 1):
        return gpu.empty((rows, 40), np.float16)


def spread(array: Any, shape: tuple[int, int], strides: tuple[int, int]) -> Any:
    """A view with these strides, in bytes."""
    return np.lib.stride_tricks.as_strided(array, shape, strides, subok=True)


def plain(array: Any) -> np.ndarray[Any, Any]:
    """As float64, which holds every value of the tests."""
    return np.asarray(array, np.float64)


def right(a: Any, b: Any) -> np.ndarray[Any, Any]:
    """The exact product."""
    return plain(a) @ plain(b)
