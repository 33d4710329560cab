"""Launches with everything but addresses and stream worked out ahead: `Prepared`, for the sake of the host's time.

A launch that is repeated with arrays of the same shapes and strides differs in a few addresses. They are written into
the descriptors and arguments of the last one, and the driver is called once.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.kernel_plan import Plan
from cupygemm.kernels.tensor_map import TensorMap, copied

_INVALID_CONTEXT = 201
_HIGH_PLACE = 0x7000_0000_0000
"""Where CUDA's unified addresses lie."""
_ADDRESS_BITS = 57
_MANY = 40
"""Addresses that the driver must have taken for what it did with them to say anything."""


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

    For one launch at a time: it is written down before it is made.
    """

    def __init__(self, plan: Plan, a: Any, b: Any, out: Any, bias: Any = None, residual: Any = None) -> None:
        """Works out all that does not change; launches nothing.

        Args:
            plan: without dependent launch.
            a, b, out, bias, residual: as a call of the plan takes them.

        Raises:
            ProblemError: as a call of the plan.
            LaunchError: the driver is older than CUDA 12.
        """
        *maps, arguments = plan.parameters(a, b, out, bias, residual)
        self._prepare(plan, maps, arguments)

    def of_its_own(self) -> Prepared:
        """The same, to be launched beside this one."""
        other = Prepared.__new__(Prepared)
        plan, maps, arguments, _ = self._kept
        other._prepare(plan, maps, type(arguments).from_buffer_copy(arguments))
        return other

    def _prepare(self, plan: Plan, maps: Sequence[TensorMap], arguments: Any) -> None:
        self._driver_launch = _driver_calls()[0]
        # Of its own: the plan's are shared with other launches.
        own = [copied(each) for each in maps]
        config = plan.kernel.compiled.config
        self._map_a, self._map_b = config.as_computed(_place_in(own[0]), _place_in(own[1]))
        by_tma = config.store_stages > 0 and not config.cp_async_stages
        self._map_out = _place_in(own[2]) if by_tma else _Nowhere()
        self._a, self._b = config.as_computed(_field(arguments, "a"), _field(arguments, "b"))
        self._out = _field(arguments, "out")
        self._bias, self._residual = _field(arguments, "bias"), _field(arguments, "residual")
        self._alpha, self._beta = (_field(arguments, name, ctypes.c_float) for name in ("alpha", "beta"))
        self._reads_addresses = plan.reads_addresses
        parameters = (ctypes.c_void_p * 4)(*(each.address for each in own), ctypes.addressof(arguments))
        grid, block = (plan.grid, 1, 1), (config.threads, 1, 1)
        launch = _LaunchConfig(grid, block, plan.kernel.shared_bytes)
        self._stream = _field(launch, "stream")
        function = ctypes.c_void_p.from_param(plan.kernel.kernel.kernel.ptr)
        self._call = (ctypes.byref(launch), function, ctypes.byref(parameters), None)
        self._kept = plan, maps, arguments, own  # and with the plan the module that the function is of

    def launch(self, a: int, b: int, out: int, stream: int) -> None:
        """Launches for the matrices at three addresses, on a stream of the current device.

        Args:
            a, b, out: multiples of 16: TMA copies from elsewhere than it was told otherwise.

        Raises:
            LaunchError: the driver refused.
        """
        self._map_a.value = a
        self._map_b.value = b
        self._map_out.value = self._out.value = out
        if self._reads_addresses:
            self._a.value, self._b.value = a, b
        self._stream.value = stream
        status = self._driver_launch(*self._call)
        if status:
            self._retry(status)

    def launch_with_terms(
        self, a: int, b: int, out: int, stream: int, bias: int, residual: int, alpha: float, beta: float
    ) -> None:
        """The same with an epilogue.

        Args:
            bias, residual: addresses, aligned as a call of the plan needs them; 0 where there is none.

        Raises:
            LaunchError: the driver refused.
        """
        self._bias.value = bias
        self._residual.value = residual
        self._alpha.value = alpha
        self._beta.value = beta
        self.launch(a, b, out, stream)

    def _retry(self, status: int) -> None:
        if status == _INVALID_CONTEXT:
            # A thread that has not used CUDA yet.
            driver.cupy().cuda.runtime.free(0)
            status = self._driver_launch(*self._call)
        if status:
            raise LaunchError(f"the CUDA driver answered {driver.status_name(status)} to cuLaunchKernelEx")


def _field(structure: Any, name: str, kind: Any = ctypes.c_uint64) -> Any:
    """A field of a structure as an object whose `value` is set, which takes less time than to set the field."""
    return kind.from_address(ctypes.addressof(structure) + getattr(type(structure), name).offset)


class _Nowhere:
    """In place of a descriptor that the kernel does not read."""

    value = 0


class _PlaceByDriver:
    """The address in a descriptor, of which only the driver knows where it stands."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def _put(self, place: int) -> None:
        status = _driver_calls()[1](self._descriptor, place)
        if status:
            raise LaunchError(f"the CUDA driver answered {driver.status_name(status)} to cuTensorMapReplaceAddress")

    value = property(None, _put)


def _place_in(tensor_map: TensorMap) -> Any:
    """The address in a descriptor, as an object whose `value` is set."""
    if _stands_first(tensor_map):
        return ctypes.c_uint64.from_address(tensor_map.address)
    return _PlaceByDriver(tensor_map.address)


def _stands_first(tensor_map: TensorMap) -> bool:
    """Whether the address is the first word of a descriptor, and nothing else in it depends on the address.

    That is nowhere documented, and writing it takes a third of the time of a call of the driver: so the driver is asked
    to put in addresses that have each bit of one, and what comes out is compared.
    """
    return _first_beside(tuple(_words(tensor_map)[1:]))


@lru_cache(maxsize=1024)
def _first_beside(rest: tuple[int, ...]) -> bool:
    """The same for all descriptors that have these words after the first one."""
    probe = TensorMap()
    accepted = 0
    for base, bit in itertools.product((_HIGH_PLACE, 0), range(4, _ADDRESS_BITS)):
        _words(probe)[:] = expected = [_HIGH_PLACE, *rest]
        place = base | 1 << bit
        if _driver_calls()[1](probe.address, place):
            continue  # no array can lie there
        expected[0] = place
        if _words(probe)[:] != expected:
            return False
        accepted += 1
    return accepted >= _MANY


def _words(tensor_map: TensorMap) -> Any:
    return (ctypes.c_uint64 * 16).from_address(tensor_map.address)


@cache
def _driver_calls() -> tuple[Any, Any]:
    """cuLaunchKernelEx and cuTensorMapReplaceAddress, called through ctypes: cuda.bindings takes longer."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        launch, replace = library.cuLaunchKernelEx, library.cuTensorMapReplaceAddress
    except (OSError, AttributeError) as error:
        raise LaunchError("the CUDA driver library (libcuda.so.1, CUDA 12 or newer) is not there") from error
    # Of a launch all arguments are made ready once: to convert them takes a third of what ctypes adds to a call.
    replace.argtypes = [ctypes.c_void_p] * 2
    launch.restype = replace.restype = ctypes.c_int
    return launch, replace
