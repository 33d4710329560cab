"""Launches with everything but addresses and stream worked out ahead: `Prepared`, for the sake of the host's time.

A launch that is repeated with arrays of the same shapes and strides differs in three addresses. The driver has a call
that replaces the address in a descriptor, and takes a launch whose parameters lie ready in one call more.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from cupygemm import driver
from cupygemm.config import TMA_ALIGNMENT
from cupygemm.errors import LaunchError, ProblemError
from cupygemm.kernel_plan import Plan
from cupygemm.tensor_map import copied

_INVALID_CONTEXT = 201


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h, without attributes: the kernels carry the size of their clusters."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Prepared:
    """A plan's launch for arrays of certain shapes and strides.

    Safe from several threads: what a launch writes before the driver copies it is under a lock.
    """

    def __init__(self, plan: Plan, a: Any, b: Any, out: Any) -> None:
        """Works out all that does not change; launches nothing.

        Args:
            plan: without an epilogue and without dependent launch.
            a, b, out: as a call of the plan takes them.

        Raises:
            ProblemError: as a call of the plan.
            LaunchError: the driver is older than CUDA 12.
        """
        self._launch, self._replace = _driver_calls()
        map_a, map_b, map_out, arguments = plan.parameters(a, b, out)
        # Of its own: the plan's are shared with other launches.
        self._maps = tuple(copied(each) for each in (map_a, map_b, map_out))
        self._arguments = arguments
        self._places = [a.data.ptr, b.data.ptr, out.data.ptr]
        self._stores_by_tma = plan.kernel.compiled.config.store_stages > 0
        addresses = (*(each.address for each in self._maps), ctypes.addressof(arguments))
        self._parameters = (ctypes.c_void_p * 4)(*addresses)
        grid, block = (plan.grid, 1, 1), (plan.kernel.compiled.config.threads, 1, 1)
        self._config = _LaunchConfig(grid, block, plan.kernel.shared_bytes)
        self._function = plan.kernel.kernel.kernel.ptr
        self._call = (ctypes.addressof(self._config), self._function, ctypes.addressof(self._parameters), None)
        self._lock = threading.Lock()
        self._kept = plan  # and with it the module that the function is of

    def __call__(self, a: int, b: int, out: int, stream: int) -> None:
        """Launches for the matrices at three addresses, on a stream of the current device.

        Raises:
            ProblemError: an address is no multiple of 16.
            LaunchError: the driver refused.
        """
        if (a | b | out) % TMA_ALIGNMENT:
            raise ProblemError(f"data start at {a:#x}, {b:#x} and {out:#x}: multiples of {TMA_ALIGNMENT} are needed")
        with self._lock:
            if self._places != [a, b, out]:
                self._move(a, b, out)
            self._config.stream = stream
            status = self._launch(*self._call)
            if status == _INVALID_CONTEXT:
                # A thread that has not used CUDA yet.
                driver.cupy().cuda.runtime.free(0)
                status = self._launch(*self._call)
        if status:
            raise LaunchError(f"cuLaunchKernelEx returned {status}")

    def _move(self, *places: int) -> None:
        for index, place in enumerate(places):
            if place == self._places[index]:
                continue
            if index < 2 or self._stores_by_tma:
                status = self._replace(self._maps[index].address, place)
                if status:
                    raise LaunchError(f"cuTensorMapReplaceAddress returned {status}")
            self._places[index] = place
        self._arguments.out = places[2]
        if self._arguments.prefetch:
            self._arguments.a, self._arguments.b = places[:2]


@cache
def _driver_calls() -> tuple[Any, Any]:
    """cuLaunchKernelEx and cuTensorMapReplaceAddress, called through ctypes: cuda.bindings takes longer."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        launch, replace = library.cuLaunchKernelEx, library.cuTensorMapReplaceAddress
    except (OSError, AttributeError) as error:
        raise LaunchError("the CUDA driver library (libcuda.so.1, CUDA 12 or newer) is not there") from error
    launch.argtypes = [ctypes.c_void_p] * 4
    replace.argtypes = [ctypes.c_void_p] * 2
    launch.restype = replace.restype = ctypes.c_int
    return launch, replace
