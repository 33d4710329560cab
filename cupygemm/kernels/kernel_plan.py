"""A compiled kernel bound to one problem on one device: `Plan`, which launches it."""

from __future__ import annotations

import ctypes
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec, loaded_bytes, shared_bytes
from cupygemm.epilogue import NONE
from cupygemm.errors import ConfigError, LaunchError, ProblemError
from cupygemm.kernels import driver, tensor_map
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.kernels.epilogue_terms import EpilogueTerms
from cupygemm.kernels.operands import Operands
from cupygemm.kernels.placement import check_rows, matrix_of
from cupygemm.kernels.raster import Divisor, Raster
from cupygemm.kernels.tensor_map import TensorMap
from cupygemm.problem import Problem

MAX_EXTENT = 2**31 - 2048
"""Coordinates are 32-bit and signed, and must not overflow past the last tile: 8 CTAs of 256 at most."""

_L2_POLICIES = {-1: 0x12F0000000000000, 0: 0x1000000000000000, 1: 0x14F0000000000000}
"""L2 cache hints by `keep_a` and its like: evict first, normal, evict last, all lines (CUTLASS, TMA::CacheHintSm90)."""


class _Arguments(ctypes.Structure):
    """`Arguments` of cuda_src/arguments.cuh."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("out_row_stride", ctypes.c_int64),
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("loaded_bytes", ctypes.c_int),
        ("share_stages", ctypes.c_int),
        ("longer_shares", ctypes.c_int),
        ("prefetch", ctypes.c_int),
        ("raster", Raster),
        ("policy_a", ctypes.c_uint64),
        ("policy_b", ctypes.c_uint64),
        ("policy_out", ctypes.c_uint64),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("a_row_bytes", ctypes.c_int64),
        ("b_row_bytes", ctypes.c_int64),
        ("matrix_tiles", Divisor),
        ("a_step", ctypes.c_int),
        ("b_step", ctypes.c_int),
        ("a_batch_bytes", ctypes.c_int64),
        ("b_batch_bytes", ctypes.c_int64),
        ("out_batch_stride", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("residual_row_stride", ctypes.c_int64),
        ("residual_batch_stride", ctypes.c_int64),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    )


class LoadedKernel:
    """A cubin loaded on one device, ready for any problem of its spec.

    Attributes:
        compiled: what is loaded.
        index: of its CUDA device.
        active_clusters: how many of its clusters the device holds at once.
    """

    def __init__(self, compiled: CompiledKernel, index: int = 0) -> None:
        """Loads the module and asks for its shared memory.

        Whether the config is legal on the device is asked before it is compiled, not here.

        Raises:
            ConfigError: the kernel is not what was asked of the compiler.
            LaunchError: the driver refused the cubin, or not one cluster fits (a MIG slice, say).
        """
        if compiled.advisories or compiled.registers < _registers_at_launch(compiled.config):
            raise ConfigError(
                f"{compiled.cubin.name} is not what was asked for (advisories {compiled.advisories}, "
                f"{compiled.registers} registers at launch): setmaxnreg in it could wait for ever"
            )
        cupy, device = driver.cupy(), driver.device_spec(index)
        self.compiled = compiled
        self.index = index
        self.shared_bytes = shared_bytes(compiled.config, compiled.spec)
        try:
            with cupy.cuda.Device(index):
                self.kernel = cupy.RawModule(path=str(compiled.cubin)).get_function(compiled.lowered_name)
                self.kernel.max_dynamic_shared_size_bytes = self.shared_bytes
                self.active_clusters = self._active_clusters(device.sm_count)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise LaunchError(f"the driver refused {compiled.cubin.name}: {error}") from error
        if self.active_clusters == 0:
            raise LaunchError(f"not one cluster of {compiled.config.cluster_size} CTAs fits on {device.name}")

    def _active_clusters(self, sm_count: int) -> int:
        config, function = self.compiled.config, self.kernel.kernel.ptr
        if config.cluster_size == 1:
            return sm_count * driver.max_active_blocks(function, config.threads, self.shared_bytes)
        return driver.max_active_clusters(function, config.cluster_size, config.threads, self.shared_bytes)


def _registers_at_launch(config: KernelConfig) -> int:
    """Registers a thread with which the CTA's pool is what setmaxnreg will hand out; without it, any."""
    if config.cp_async_stages:
        return 0
    total = config.producer_registers + config.consumers * config.consumer_registers
    return -(-total // (1 + config.consumers) // 8) * 8


class Plan:
    """Launches one kernel for one problem: `plan(a, b, out)`, or `plan.launch(operands)` where a `Launch` is wanted.

    Attributes:
        problem, kernel: what it computes, and with what.
        grid: CTAs launched.
        reads_addresses: whether the kernel is told where the operands lie, beside their descriptors.
    """

    def __init__(
        self, problem: Problem, kernel: LoadedKernel, max_sms: int | None = None, *, dependent_launch: bool = False
    ) -> None:
        """Sizes the persistent grid.

        Args:
            max_sms: use at most this many SMs, as if the device had no more.
            dependent_launch: begin before the kernel before it in the stream has ended, and wait for that end before
                anything is read or written (programmatic dependent launch). What is compared with others waits as
                they do, so nothing here measures or searches with it unless told to.

        Raises:
            ProblemError: the problem is larger than TMA's coordinates, or of another spec than the kernel.
        """
        reason = oversize_reason(problem)
        if reason is not None:
            raise ProblemError(reason)
        if KernelSpec.of(problem) != kernel.compiled.spec:
            raise ProblemError(f"{problem} asks for {KernelSpec.of(problem)}: the kernel is of {kernel.compiled.spec}")
        config = kernel.compiled.config
        m, n = config.as_computed(problem.m, problem.n)
        tiles_m = -(-m // (config.block_m * config.cluster_m))
        tiles_n = -(-n // (config.block_n * config.cluster_n))
        fitting = kernel.active_clusters
        if max_sms is not None:
            fitting = max(1, min(fitting, max_sms // config.cluster_size))
        tiles = tiles_m * tiles_n * problem.batch
        if tiles > MAX_EXTENT:
            raise ProblemError(f"{problem}: {tiles} tiles are more than a 32-bit count")
        self.problem = problem
        self.kernel = kernel
        k_stages = -(-problem.k // config.block_k)
        self.grid = min(tiles, fitting) * config.cluster_size
        spec = kernel.compiled.spec
        self._boxes = config.as_computed(tensor_map.a_box(config, spec, m), tensor_map.b_box(config, spec, n))
        self._out_box = tensor_map.out_box(config, spec)
        # All but the result's place; a call copies it, which is quicker than filling it in.
        self._template = _Arguments(
            m=m,
            n=n,
            k=problem.k,
            loaded_bytes=sum(loaded_bytes(config, spec, m, n)),
            share_stages=k_stages // config.cluster_k,
            longer_shares=k_stages % config.cluster_k,
            prefetch=config.prefetch,
            raster=Raster.of(config, tiles_m, tiles_n, problem.batch),
            matrix_tiles=Divisor.of(tiles_m * tiles_n),
            policy_a=_L2_POLICIES[config.keep_a],
            policy_b=_L2_POLICIES[config.keep_b],
            policy_out=_L2_POLICIES[config.keep_out],
        )
        self.reads_addresses = config.prefetch > 0 or config.cp_async_stages > 0
        self._no_map = TensorMap()
        self._epilogue = None if problem.epilogue == NONE else EpilogueTerms(problem)
        self._dependent_launch = None
        if dependent_launch:
            function = kernel.kernel.kernel.ptr
            self._dependent_launch = driver.DependentLaunch(function, self.grid, config.threads, kernel.shared_bytes)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        residual: Any = None,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        """Computes out = activation(alpha · a · b + bias + beta · residual) on CuPy's current stream.

        Neither synchronises nor allocates device memory. Which of the terms there are, the problem's epilogue says.

        Args:
            a: [m, k] of the problem's a_dtype, on the plan's device, its contiguous axis as the layout says; where the
                problem has a batch [batch, m, k], with any stride between matrices, 0 too, that is a multiple of 16
                bytes.
            b: [k, n] likewise.
            out: [m, n] of out_dtype, likewise, rows contiguous; it must not overlap `a` or `b`.
            bias: [n] or [m] of out_dtype, contiguous.
            residual: like `out`, which it may be itself; it must not overlap it otherwise.
            alpha: 1 where the epilogue is "none".
            beta: of the residual.

        Raises:
            ProblemError: an array is not what the plan was made for, or is not aligned as TMA needs it.
            LaunchError: the driver refused the launch.
        """
        *maps, arguments = self.parameters(a, b, out, bias, residual, alpha, beta)
        self._enqueue((*(each.address for each in maps), ctypes.addressof(arguments)))

    def parameters(
        self,
        a: Any,
        b: Any,
        out: Any,
        bias: Any = None,
        residual: Any = None,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> tuple[TensorMap, TensorMap, TensorMap, Any]:
        """What a launch hands to the kernel: descriptors of a, b and out, in the kernel's order, and the rest.

        With `swap_ab` b comes first, here and in all that the rest says of a and b.

        Raises:
            ProblemError: as a call.
            LaunchError: the driver refused an array's geometry.
        """
        problem, spec = self.problem, self.kernel.compiled.spec
        a_matrix = matrix_of("a", a, problem.matrix(problem.m, problem.k), spec.a_dtype, spec.a_major == "mn")
        b_matrix = matrix_of("b", b, problem.matrix(problem.k, problem.n), spec.b_dtype, spec.b_major == "k")
        a_box, b_box = self._boxes
        config = self.kernel.compiled.config
        maps = config.as_computed(tensor_map.encode(a_matrix, a_box), tensor_map.encode(b_matrix, b_box))
        map_out = self._out_map(out)
        first, second = config.as_computed(a_matrix, b_matrix)
        arguments = _Arguments.from_buffer_copy(self._template)
        arguments.out = out.data.ptr
        arguments.out_row_stride = out.strides[-2] // out.dtype.itemsize
        if self.reads_addresses:
            # Of a matrix of one row the stride is any, and copies of nothing start at multiples of it too.
            arguments.a, arguments.a_row_bytes = first.pointer, first.row_stride if first.rows > 1 else 0
            arguments.b, arguments.b_row_bytes = second.pointer, second.row_stride if second.rows > 1 else 0
        if problem.batch > 1:
            arguments.a_step, arguments.b_step = int(first.depth > 1), int(second.depth > 1)
            arguments.a_batch_bytes, arguments.b_batch_bytes = first.depth_stride, second.depth_stride
            arguments.out_batch_stride = out.strides[0] // out.dtype.itemsize
        if self._epilogue is not None:
            self._epilogue.fill(arguments, bias, residual, alpha, beta)
        elif bias is not None or residual is not None or alpha != 1.0:
            raise ProblemError("the plan was made without an epilogue: it takes no bias, residual or alpha")
        return *maps, map_out, arguments

    def _out_map(self, out: Any) -> TensorMap:
        """The descriptor with which TMA stores the result; none where it is stored from registers.

        With `cp_async_stages` warps store what they staged and read no descriptor: then its checks of the address and
        the strides are what is wanted, which pieces of 16 bytes need as well.
        """
        problem, dtype = self.problem, self.kernel.compiled.spec.out_dtype
        shape = problem.matrix(problem.m, problem.n)
        by_tma = self.kernel.compiled.config.store_stages > 0
        found = tensor_map.encode(matrix_of("out", out, shape, dtype, False), self._out_box) if by_tma else self._no_map
        check_rows("out", out, shape, dtype)  # TMA copies from rows that overlap, and would store to them too
        return found

    def launch(self, operands: Operands) -> None:
        """The same on a record, for what measures and verifies; `matmul` saves the host the making of one.

        Raises:
            ProblemError: as a call.
            LaunchError: as a call.
        """
        self(*operands)

    def _enqueue(self, addresses: tuple[int, ...]) -> None:
        # The driver copies what the addresses point to before the launch returns.
        if self._dependent_launch is not None:
            self._dependent_launch(driver.cupy().cuda.get_current_stream().ptr, addresses)
            return
        pointer = driver.cupy().cuda.function.CPointer
        threads = self.kernel.compiled.config.threads
        arguments = tuple(pointer(address) for address in addresses)
        self.kernel.kernel((self.grid,), (threads,), arguments, shared_mem=self.kernel.shared_bytes)


def oversize_reason(problem: Problem) -> str | None:
    """Why no config computes a problem, whatever its operands, or None."""
    if max(problem.m, problem.n, problem.k, problem.batch) > MAX_EXTENT:
        return f"{problem}: sizes up to {MAX_EXTENT} are built"
    return None
