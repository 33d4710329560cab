"""A stand-in for CuPy over NumPy, with a clock that only launches move: enough of it for what runs on a GPU.

Device memory is host memory, and a loaded kernel computes with what its TMA descriptors and arguments say lies there.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.epilogue import Epilogue
from cupygemm.kernels import compiler, driver, pack_kernel, tensor_map
from cupygemm.kernels.compiler import CompiledKernel, CompiledPage
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.kernels.tensor_map import Box, Matrix, TensorMap
from cupygemm.measuring import unfused, verify
from cupygemm.runtime import fallback_terms, prepared
from tests.fake_kernel import CudaError, FakeKernel, Launched, do_epilogue
from tests.fake_packing import FakePackKernel, Packed

REGISTERS_AT_LAUNCH = {1: 248, 2: 168, 3: 128}
"""What ptxas gives a thread by the number of consumers: 65536 over the CTA's threads, in eights, at most 248."""

NO_MAP = Matrix(0, 1, 1, 16, "float16"), Box(1, 8)
"""In place of the descriptor of a result that TMA does not store."""

Compute = Callable[[Any, Any, Any], None]
"""`compute(a, b, out)`."""


def _address(argument: Any) -> int:
    """Of what is handed to the driver: as an integer, or made ready for ctypes."""
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


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
    """The one stream; with a `ptr` of 0 it is the legacy default stream."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.ptr = 1

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
        assert self.gpu.graph_memory == {}, "the graph could be launched once only"
        graph, self.gpu.captured = FakeGraph(self.gpu, self.gpu.captured), None
        return graph

    def is_capturing(self) -> bool:
        """An error on the legacy default stream while another captures, as with CUDA."""
        if self.ptr == 0 and self.gpu.captured is not None:
            raise CudaError("operation would make the legacy stream depend on a capturing blocking stream")
        return self.gpu.captured is not None

    def synchronize(self) -> None:
        """Fails where a kernel has faulted."""
        if self.gpu.faulted:
            raise CudaError("an illegal memory access was encountered")


@dataclass(frozen=True)
class FakeDevice:
    """A device, current inside a `with` block."""

    gpu: FakeGpu
    id: int

    def __enter__(self) -> None:
        self.gpu.current.append(self.id)

    def __exit__(self, *_: object) -> None:
        self.gpu.current.pop()

    def synchronize(self) -> None:
        """Fails where a kernel has faulted."""
        self.gpu.stream.synchronize()


class DeviceArray(np.ndarray):
    """A NumPy array with what CuPy's have besides: `device`, and an address that is `data.ptr`."""

    home: FakeDevice
    made_by: Any = None

    def __new__(cls, shape: Any, dtype: Any = np.float64) -> DeviceArray:
        """A new one, of the GPU that a test has: views and copies are not made here."""
        return cls.made_by(shape, dtype)

    def __array_finalize__(self, parent: Any) -> None:
        self.home = getattr(parent, "home", None)

    @property
    def _c_contiguous(self) -> bool:
        return bool(self.flags.c_contiguous)

    @property
    def _f_contiguous(self) -> bool:
        return bool(self.flags.f_contiguous)

    @property
    def device(self) -> FakeDevice:
        """Where it lies; views lie where their base does."""
        return self.home

    @property
    def data(self) -> Any:
        """Its memory."""
        return SimpleNamespace(ptr=self.ctypes.data, device_id=self.home.id)


class FakeGpu:
    """Attributes:
    clock_us: how long all launches so far took.
    captured: launches of the capture under way.
    replayed: graphs, as launched.
    graph_memory: what the graph that is being captured has allocated and not freed yet, by address.
    faulted: a kernel has faulted: every synchronisation fails.
    current: devices, the current one last.
    specs: their properties, by index.
    active_clusters: how many clusters a device holds; None for as many as its SMs allow.
    compiled: what was compiled, in order.
    refused: configs that the compiler refuses, and with what.
    unloadable: configs whose cubin the driver refuses.
    maps: encoded descriptors by address, as they were encoded.
    address_word: which word of a descriptor holds the address.
    launches: of loaded kernels.
    packed: launches of the kernel that copies operands.
    fallbacks: calls of `cupy.matmul`, by their options.
    fallback_devices: what was current in them.
    accumulate: how a loaded kernel multiplies two stacks: in float32.
    afterwards: called with where a loaded kernel has stored its result; does nothing.
    """

    def __init__(self) -> None:
        self.clock_us = 0.0
        self.captured: list[Callable[[], None]] | None = None
        self.replayed: list[FakeGraph] = []
        self.faulted = False
        self.stream = FakeStream(self)
        self.current = [0]
        self.specs = {0: H200, 1: H200}
        self.active_clusters: int | None = None
        self.compiled: list[CompiledKernel] = []
        self.pages: list[tuple[str, str]] = []
        self.refused: dict[KernelConfig, Exception] = {}
        self.unloadable: set[KernelConfig] = set()
        self.maps: dict[int, tuple[Matrix, Box]] = {}
        self.address_word = 0
        self.launches: list[Launched] = []
        self.packed: list[Packed] = []
        self.graph_memory: dict[int, DeviceArray] = {}
        self.fallbacks: list[dict[str, Any]] = []
        self.fallback_devices: list[int] = []
        self.accumulate: Callable[[Any, Any], Any] = lambda a, b: a.astype(np.float32) @ b.astype(np.float32)
        self.afterwards: Callable[[Matrix], None] = lambda result: None
        self._kernels: list[FakeKernel] = []
        self._alive: list[Any] = []
        self._spans: list[tuple[int, int]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts it in the place of CuPy, the driver, the compiler and the encoder of descriptors."""
        cupy = self.cupy
        monkeypatch.setattr(driver, "cupy", lambda: cupy)
        monkeypatch.setattr(driver, "device_spec", lambda index: self.specs[index])
        monkeypatch.setattr(driver, "max_active_blocks", lambda function, threads, shared: 1 if threads else 0)
        monkeypatch.setattr(driver, "max_active_clusters", self._max_active_clusters)
        monkeypatch.setattr(driver, "DependentLaunch", self._dependent_launch)
        monkeypatch.setattr(compiler, "compile_kernel", self.compile)
        monkeypatch.setattr(compiler, "is_cached", self.is_cached)
        monkeypatch.setattr(compiler, "compile_page", self.compile_page)
        monkeypatch.setattr(compiler, "is_page_cached", lambda page, entry: (page, entry) in self.pages)
        monkeypatch.setattr(pack_kernel, "_loaded", {})
        monkeypatch.setattr(tensor_map, "encode", self.encode)
        monkeypatch.setattr(prepared, "copied", lambda each: self.encode(*self.maps.get(each.address, NO_MAP)))
        prepared._first_beside.cache_clear()
        monkeypatch.setattr(prepared, "_driver_calls", lambda: (self._launch, self._replace_address))
        for module in (fallback_terms, unfused):
            monkeypatch.setattr(module, "epilogue_kernel", self.epilogue_kernel)

    def _max_active_clusters(self, function: int, cluster_size: int, threads: int, shared_bytes: int) -> int:
        if self.active_clusters is not None:
            return self.active_clusters
        return self.specs[self.current[-1]].sm_count // cluster_size

    def _dependent_launch(self, function: int, grid: int, threads: int, shared_bytes: int) -> Callable[..., None]:
        (kernel,) = (each for each in self._kernels if each.kernel.ptr == function)

        def launch(stream: int, addresses: tuple[int, ...]) -> None:
            assert stream == self.stream.ptr
            kernel((grid,), (threads,), tuple(SimpleNamespace(address=each) for each in addresses), shared_bytes)
            self.launches[-1].dependent = True

        return launch

    def _launch(self, config: Any, function: Any, parameters: Any, extra: None) -> int:
        """Stands for cuLaunchKernelEx."""
        config, function, parameters = (_address(each) for each in (config, function, parameters))
        told = prepared._LaunchConfig.from_address(config)
        assert (told.stream or 0) == self.stream.ptr
        (kernel,) = (each for each in self._kernels if each.kernel.ptr == function)
        addresses = (ctypes.c_void_p * 4).from_address(parameters)
        arguments = tuple(SimpleNamespace(address=each) for each in addresses)
        kernel((told.grid[0],), (told.block[0],), arguments, told.shared_bytes)
        return 0

    def _replace_address(self, descriptor: int, place: int) -> int:
        """Stands for cuTensorMapReplaceAddress."""
        if place % 16:
            return 1
        self._place(descriptor).value = place
        return 0

    def _place(self, descriptor: int) -> Any:
        return ctypes.c_uint64.from_address(descriptor + 8 * self.address_word)

    def described(self, descriptor: int) -> Matrix | None:
        """What a descriptor describes now; None for the empty one."""
        found = self.maps.get(descriptor)
        return None if found is None else replace(found[0], pointer=self._place(descriptor).value or 0)

    def compile(self, spec: KernelSpec, config: KernelConfig) -> CompiledKernel:
        """Stands for `compiler.compile_kernel`."""
        if config in self.refused:
            raise self.refused[config]
        name = f"kernel{len(self.compiled)}"
        registers = REGISTERS_AT_LAUNCH[config.consumers]
        self.compiled.append(CompiledKernel(spec, config, Path(f"{name}.cubin"), name, registers, 0, ()))
        return self.compiled[-1]

    def is_cached(self, spec: KernelSpec, config: KernelConfig) -> bool:
        """Stands for `compiler.is_cached`."""
        kept = config.compiled()
        return any(each.spec == spec and each.config.compiled() == kept for each in self.compiled)

    def compile_page(self, page: str, entry: str) -> CompiledPage:
        """Stands for `compiler.compile_page`."""
        if (page, entry) not in self.pages:
            self.pages.append((page, entry))
        return CompiledPage(Path(page), entry, "")

    def encode(self, matrix: Matrix, box: Box) -> TensorMap:
        """Stands for `tensor_map.encode`."""
        encoded = TensorMap()
        self._alive.append(encoded)
        self.maps[encoded.address] = (matrix, box)
        self._place(encoded.address).value = matrix.pointer
        return encoded

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float64) -> DeviceArray:
        """An array on the current device, at an address that is a multiple of 256."""
        element = np.dtype(dtype)
        size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * element.itemsize
        raw = np.full(size + 256, 0xFF, np.uint8)  # NaN in each dtype
        start = -raw.ctypes.data % 256
        self._spans.append((raw.ctypes.data + start, raw.ctypes.data + start + size))
        array = raw[start : start + size].view(element).reshape(shape).view(DeviceArray)
        array.home = FakeDevice(self, self.current[-1])
        self._alive.append(raw)
        return array

    def malloc_async(self, size: int, stream: int) -> int:
        """Stands for cudaMallocAsync on a captured stream: a node that allocates, at the same address always."""
        assert (self.captured is not None, stream, size > 0) == (True, self.stream.ptr, True)
        memory = self.empty(size, np.uint8)
        self.graph_memory[memory.ctypes.data] = memory
        self.run(lambda: memory.fill(0xFF))
        return memory.ctypes.data

    def free_async(self, place: int, stream: int) -> None:
        """Stands for cudaFreeAsync there: whoever reads it later finds NaN."""
        assert (self.captured is not None, stream) == (True, self.stream.ptr)
        memory = self.graph_memory.pop(place)
        self.run(lambda: memory.fill(0xFF))

    def memory(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """The rows that a descriptor describes, of a stack by matrices; all of them must have been allocated."""
        element = verify.numpy_dtype(matrix.dtype)
        shape: tuple[int, ...] = (matrix.rows, matrix.columns)
        strides: tuple[int, ...] = (matrix.row_stride, element.itemsize)
        if matrix.depth:
            shape, strides = (matrix.depth, *shape), (matrix.depth_stride, *strides)
        # Along an axis of one nothing steps.
        strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
        size = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + element.itemsize
        start, end = matrix.pointer, matrix.pointer + size
        assert any(low <= start and end <= high for low, high in self._spans), f"{matrix} was never allocated"
        raw = (ctypes.c_uint8 * size).from_address(start)
        return np.ndarray(shape, element, raw, 0, strides)

    def span(self, low: int, high: int) -> np.ndarray[Any, Any]:
        """The bytes from one address up to another; all of them must have been allocated at once."""
        assert any(start <= low and high <= end for start, end in self._spans), f"{low:#x} to {high:#x}: not allocated"
        return np.ndarray((high - low,), np.uint8, (ctypes.c_uint8 * (high - low)).from_address(low))

    def matmul(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Stands for `cupy.matmul`: 16-bit operands in float32, two matrices rounded before dtype= widens them."""
        self.fallbacks.append(dict(options))
        self.fallback_devices.append(self.current[-1])
        for name, operand in (("a", a), ("b", b)):
            if not isinstance(operand, DeviceArray):
                raise TypeError(
                    f"Argument {name!r} has incorrect type (expected ndarray, got {type(operand).__name__})"
                )
        dtype = np.promote_types(a.dtype, b.dtype)
        if self.captured is not None and self.stream.ptr and dtype.kind not in "biu":
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        wide = np.promote_types(dtype, np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
        wanted = options.pop("dtype", None)
        result = np.matmul(a.astype(wide), b.astype(wide), **options)
        if wanted is None or max(a.ndim, b.ndim) <= 2:
            result = result.astype(dtype)
        result = result.astype(wanted or dtype)
        if out is None:
            return result
        if not isinstance(out, DeviceArray):
            raise TypeError("`out` must be a tuple or `cupy.ndarray`")
        if out.shape != result.shape:
            raise ValueError(f"Output operand 0 has invalid shape {out.shape} expected {result.shape}")
        if not np.can_cast(result.dtype, out.dtype, options.get("casting", "same_kind")):
            raise TypeError(f"Cannot cast out dtype from {result.dtype} to {out.dtype} with casting rule 'same_kind'")
        out[...] = result
        return out

    def kernel(self, compute: Compute, cost_us: float) -> Launch:
        """A launch that computes with `compute` and takes `cost_us`."""

        def launch(operands: Operands) -> None:
            def run() -> None:
                compute(operands.a, operands.b, operands.out)
                self.clock_us += cost_us

            self.run(run)

        return launch

    def epilogue_kernel(self, epilogue: Epilogue, wide: str = "float32") -> Callable[..., None]:
        """Stands for `elementwise.epilogue_kernel`; takes no time."""
        return lambda *arguments: self.run(lambda: do_epilogue(epilogue, wide, *arguments))

    def current_stream(self, device: int = -1) -> FakeStream:
        """Stands for `cupy.cuda.get_current_stream`; who names a device must have made it the current one."""
        assert device in (-1, self.current[-1])
        return self.stream

    def run(self, work: Callable[[], None]) -> None:
        """Does it now, or keeps it where a capture is under way."""
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    @property
    def cupy(self) -> Any:
        """The module."""
        gpu = self

        class Event:
            def record(self) -> None:
                self.at_us = gpu.clock_us

        class RawModule:
            def __init__(self, path: str) -> None:
                self.path = Path(path)

            def get_function(self, name: str) -> FakeKernel | FakePackKernel:
                if self.path.name == pack_kernel.PAGE:
                    assert name == pack_kernel.ENTRY
                    return FakePackKernel(gpu)
                (compiled,) = (each for each in gpu.compiled if each.lowered_name == name and each.cubin == self.path)
                if compiled.config in gpu.unloadable:
                    raise CudaError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")
                return FakeKernel(gpu, compiled)

        cuda = SimpleNamespace(
            Device=lambda index: FakeDevice(gpu, index),
            Event=Event,
            Stream=lambda non_blocking: gpu.stream,
            get_current_stream=gpu.current_stream,
            get_elapsed_time=lambda start, end: (end.at_us - start.at_us) / 1000,
            runtime=SimpleNamespace(
                CUDARuntimeError=CudaError,
                getDevice=lambda: gpu.current[-1],
                getDeviceCount=lambda: len(gpu.specs),
                mallocAsync=gpu.malloc_async,
                freeAsync=gpu.free_async,
            ),
            driver=SimpleNamespace(CUDADriverError=CudaError),
            function=SimpleNamespace(CPointer=lambda address: SimpleNamespace(address=address)),
        )
        DeviceArray.made_by = staticmethod(gpu.empty)
        return SimpleNamespace(
            cuda=cuda,
            random=np.random,
            empty=gpu.empty,
            matmul=gpu.matmul,
            linalg=SimpleNamespace(matmul=gpu.matmul),
            ndarray=DeviceArray,
            RawModule=RawModule,
        )
