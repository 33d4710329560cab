"""What is compiled: `KernelSpec` (fixed by the problem) and `KernelConfig` (searched), and the shared memory they take.

`cuda_src/config.cuh` declares the same two structs with the same fields in the same order, but for those of a config
that the kernel learns at launch. tests/nvrtc proves that the two sides agree. What is legal is said in legality.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Self, TypeVar

from cupygemm.dtypes import DTYPES
from cupygemm.epilogue import transposed
from cupygemm.errors import ConfigError
from cupygemm.problem import Problem

T = TypeVar("T")

SWIZZLE_BYTES = 128
"""Width of the 128-byte swizzle: the contiguous extent of every operand slab in shared memory."""
SWIZZLE_ATOM_BYTES = 1024
"""Eight rows of 128 bytes, the unit in which the swizzle pattern repeats; every tile starts at a multiple of it."""
WARP, WARPGROUP = 32, 128
"""Threads in a warp, and in the four that issue a WGMMA."""
MMA_M = 64
"""Rows of one WGMMA instruction (PTX ISA, wgmma.mma_async: M is always 64)."""
MAX_TILE = 256
"""Largest extent of a tile: WGMMA's N, and rows of a TMA box."""
TMA_ALIGNMENT = 16
"""Bytes to which TMA wants base addresses and row strides aligned (cuTensorMapEncodeTiled)."""
MAX_STAGES = 16
MAX_CLUSTER = 8
"""Largest portable cluster, in CTAs."""
L2_PROMOTIONS = (0, 64, 128, 256)
"""Bytes of CUtensorMapL2promotion, in the order of its values."""
AT_LAUNCH = {"compiled": False}
"""Metadata of the fields of a config that the kernel learns at launch."""
OF_SPEC = {"in_struct": False}
"""Metadata of the field that the kernel is told as part of its spec (`KernelSpec.seen_by`)."""
MOST_STORED_ROWS = 104
"""Of the result, in one TMA store with `swap_ab`: half of 208."""
OF_PAGE = {"in_struct": False}
"""Metadata of the fields that choose the page of cuda_src, and are an argument of its own template."""
CP_ASYNC_PRODUCER_REGISTERS = 40
"""The `producer_registers` of configs with `cp_async_stages`, where they mean nothing."""
MIN_PRODUCER_REGISTERS = 24
MAX_REGISTERS = 255
"""Most registers a thread can name; setmaxnreg itself takes multiples of 8 from 24 to 256."""


@dataclass(frozen=True)
class KernelSpec:
    """What a `Problem` fixes at compile time.

    Attributes:
        a_dtype, b_dtype, out_dtype: names in `DTYPES`.
        a_major, b_major: the contiguous axis of each operand: "k" or "mn".
        accumulate, scales, epilogue: as in `Problem`.
        out_aligned: whether the rows of the result meet TMA's 16-byte rule.
        batched: whether there are several products, whose matrices lie a stride apart.
        out_transposed: whether this is what a kernel with `swap_ab` sees, and the result is stored transposed.
    """

    a_dtype: str
    b_dtype: str
    out_dtype: str
    a_major: str
    b_major: str
    accumulate: str
    scales: str
    epilogue: str
    out_aligned: bool
    batched: bool = False
    out_transposed: bool = False

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The spec that follows from a problem whose result is stored row-major without gaps."""
        out_row_bytes = problem.n * DTYPES[problem.out_dtype].bytes
        return cls(
            a_dtype=problem.a_dtype,
            b_dtype=problem.b_dtype,
            out_dtype=problem.out_dtype,
            a_major="k" if problem.layout[0] == "n" else "mn",
            b_major="mn" if problem.layout[1] == "n" else "k",
            accumulate=problem.accumulate,
            scales=problem.scales,
            epilogue=problem.epilogue,
            out_aligned=out_row_bytes % TMA_ALIGNMENT == 0,
            batched=problem.batch > 1,
        )

    def seen_by(self, config: KernelConfig) -> KernelSpec:
        """The spec that a config's kernel is compiled for: with `swap_ab` that of Cᵀ = Bᵀ · Aᵀ, stored transposed."""
        return _transposed(self) if config.swap_ab and not self.out_transposed else self

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in declaration order."""
        return asdict(self)


@cache
def _transposed(spec: KernelSpec) -> KernelSpec:
    """Of `KernelSpec.seen_by`; there are few specs, and legality asks for each config."""
    return replace(
        spec,
        a_dtype=spec.b_dtype,
        b_dtype=spec.a_dtype,
        a_major=spec.b_major,
        b_major=spec.a_major,
        epilogue=transposed(spec.epilogue),
        out_transposed=True,
    )


@dataclass(frozen=True, order=True)
class KernelConfig:
    """What is searched: how a kernel computes what its spec says. Sizes are in elements unless named otherwise.

    Attributes:
        block_m, block_n, block_k: tile of one CTA, and the part of K that one pipeline stage holds.
        stages: pipeline slots.
        consumers: warpgroups that issue WGMMA.
        split_n: the consumers divide the tile's columns instead of its rows.
        cluster_m, cluster_n: CTAs of a cluster along each axis; with more than one, the CTAs of a row share A and
            the CTAs of a column share B by TMA multicast, each loading its slice for all.
        raster_along_n: neighbouring CTAs take neighbouring tiles along N (else along M).
        group: tiles (of a cluster) across the raster direction that are visited together, for L2 reuse.
        producer_registers: what the producer keeps per thread after setmaxnreg; the consumers get the rest.
        wait_depth: WGMMA groups left in flight when a consumer waits.
        store_stages: shared-memory buffers through which a consumer stores with TMA; 0 stores from registers.
        ping_pong: the consumers take whole tiles by turns, so that one stores while another multiplies; without it
            they divide each tile.
        cluster_k: CTAs of a cluster that divide K: each sums its share for the whole tile, and they exchange and add
            parts of the sums through distributed shared memory.
        l2_promotion: bytes that a miss of an operand's load fetches into the L2 at least: 0 for no more than was asked,
            64, 128 or 256.
        keep_a, keep_b, keep_out: how long the L2 keeps lines of A, B and the result: -1 they are evicted first, 0 as
            usual, 1 they are evicted last.
        prefetch: stages of a CTA's first tile that the L2 is told to fetch while the barriers are made.
        cp_async_stages: stages of a CTA's first tile that the consumers copy themselves, before TMA can: with one or
            more it is the kernel of gemm_cp_async.cuh: its producer is a warp, and its warps store what they staged.
        swap_ab: the kernel computes Cᵀ = Bᵀ · Aᵀ and stores it transposed: WGMMA takes 64 rows and columns in eights,
            so that 200 rows of A had better be columns. What is said above of A and M is then of B and N, and the other
            way round.

    The fields marked `AT_LAUNCH` are told to the kernel, not compiled into it: configs that differ only there share a
    cubin.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    consumers: int
    split_n: bool
    cluster_m: int
    cluster_n: int
    raster_along_n: bool = field(metadata=AT_LAUNCH)
    group: int = field(metadata=AT_LAUNCH)
    producer_registers: int
    wait_depth: int
    store_stages: int
    ping_pong: bool = False
    cluster_k: int = 1
    l2_promotion: int = field(default=256, metadata=AT_LAUNCH)
    keep_a: int = field(default=0, metadata=AT_LAUNCH)
    keep_b: int = field(default=0, metadata=AT_LAUNCH)
    keep_out: int = field(default=0, metadata=AT_LAUNCH)
    prefetch: int = field(default=0, metadata=AT_LAUNCH)
    cp_async_stages: int = field(default=0, metadata=OF_PAGE)
    swap_ab: bool = field(default=False, metadata=OF_SPEC)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            wanted = bool if each.type == "bool" else int
            if type(value) is not wanted:
                raise ConfigError(f"{each.name} is {value!r}: it must be of type {wanted.__name__}")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`. A field that has a default, as every later addition does, may be missing.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong type; the message names it.
        """
        names = [each.name for each in fields(cls)]
        missing = [each.name for each in fields(cls) if each.default is MISSING and each.name not in values]
        unknown = [name for name in values if name not in names]
        if missing or unknown:
            raise ConfigError(f"config: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}; legal: {names}")
        return cls(**values)

    @classmethod
    def from_ints(cls, names: Sequence[str], values: Sequence[int]) -> Self:
        """A config of numbers alone, as arrays hold them: 0 and 1 for what is a truth.

        Raises:
            ConfigError: as `from_dict`.
        """
        named = dict(zip(names, values, strict=True))
        return cls.from_dict({name: bool(value) if name in FLAGS else value for name, value in named.items()})

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, in declaration order: plain ints and bools."""
        return asdict(self)

    def compiled(self) -> dict[str, Any]:
        """The fields that the kernel is compiled for, by name."""
        return {name: getattr(self, name) for name in COMPILED_FIELDS}

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers, and a producer warpgroup, or with `cp_async_stages` a producer warp."""
        return WARPGROUP * self.consumers + (WARP if self.cp_async_stages else WARPGROUP)

    @property
    def consumer_m(self) -> int:
        """Rows of the tile that one consumer computes."""
        return self.block_m if self.split_n or self.ping_pong else self.block_m // self.consumers

    @property
    def consumer_n(self) -> int:
        """Columns of the tile that one consumer computes."""
        return self.block_n // self.consumers if self.split_n else self.block_n

    @property
    def part_n(self) -> int:
        """Columns of a consumer's tile that one CTA stores: eights, and fewer or none in the last ones of a cluster."""
        return -(-self.consumer_n // 8 // self.cluster_k) * 8

    @property
    def registers(self) -> int:
        """Registers that a consumer thread can have: with `cp_async_stages` those that the CTA is launched with."""
        if not self.cp_async_stages:
            return self.consumer_registers
        # Threads are counted in whole warpgroups (288 as 384: ptxas of CUDA 13.0).
        whole = -(-self.threads // WARPGROUP) * WARPGROUP
        return min(65536 // whole, MAX_REGISTERS) // 8 * 8

    @property
    def accumulators(self) -> int:
        """fp32 accumulators, so registers, that each consumer thread holds."""
        return self.consumer_m * self.consumer_n // WARPGROUP

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread after setmaxnreg: an even share of what the producer gives up.

        The pool is what the CTA was launched with (65536 registers, allocated in eights and at most 255 usable a
        thread). A sum above it compiles without a word and deadlocks (NVRTC 13.0, 2026-11).
        """
        warpgroups = 1 + self.consumers
        pool = min(65536 // (WARPGROUP * warpgroups), MAX_REGISTERS) // 8 * 8 * warpgroups
        share = (pool - self.producer_registers) // self.consumers // 8 * 8
        return min(share, 248)

    def as_computed(self, of_m: T, of_n: T) -> tuple[T, T]:
        """What a kernel takes for M's and for N's, of a problem's, and back: with `swap_ab` they are exchanged."""
        return (of_n, of_m) if self.swap_ab else (of_m, of_n)

    def mirrored(self) -> Self:
        """The config, legal or not, that computes the same tiles the other way: with A and B swapped, or without."""
        as_many = self.split_n or self.ping_pong or self.block_n % (MMA_M * self.consumers) == 0
        return self.swapped(
            swap_ab=not self.swap_ab,
            block_m=self.block_n,
            block_n=self.block_m,
            consumers=self.consumers if as_many else 1,
            cluster_m=self.cluster_n,
            cluster_n=self.cluster_m,
            raster_along_n=not self.raster_along_n,
            keep_a=self.keep_b,
            keep_b=self.keep_a,
            store_stages=max(1, self.store_stages),
        )

    def copying(self) -> Self:
        """The config, legal or not, of the same tiles in a kernel whose consumers copy the first two stages."""
        return self.swapped(
            cp_async_stages=min(2, self.stages),
            consumers=1 if self.ping_pong else self.consumers,
            ping_pong=False,
            cluster_m=1,
            cluster_n=1,
            wait_depth=1,
            store_stages=min(1, self.store_stages),
            producer_registers=CP_ASYNC_PRODUCER_REGISTERS,
            keep_out=0,
            prefetch=0,
        )

    def swapped(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)


COMPILED_FIELDS = tuple(each.name for each in fields(KernelConfig) if each.metadata.get("compiled", True))
"""Of a config; the others are told at launch."""
STRUCT_FIELDS = tuple(
    each.name for each in fields(KernelConfig) if each.metadata.get("in_struct", each.name in COMPILED_FIELDS)
)
"""Those of them that KernelConfig of cuda_src/config.cuh has, in its order."""


FLAGS = tuple(each.name for each in fields(KernelConfig) if each.type == "bool")
"""Fields of a config that are true or false."""


def store_columns(config: KernelConfig, spec: KernelSpec) -> int:
    """Columns of the sub-tile of one TMA store: the widest of 128, 64, 32 or 16 bytes that divides part_n.

    With `swap_ab` they are rows of the result, and the sub-tile's rows are 128 bytes of each: the most up to
    `MOST_STORED_ROWS` that divide part_n, or where those are few as many as make the fewest sub-tiles, of which the
    last one overlaps the one before.
    """
    if config.swap_ab:
        part_n = max(config.part_n, 8)
        rows = next(each for each in range(min(MOST_STORED_ROWS, part_n), 0, -8) if part_n % each == 0)
        if rows == part_n or 2 * rows > MOST_STORED_ROWS:
            return rows
        return -(-part_n // -(-part_n // MOST_STORED_ROWS) // 8) * 8
    out_bytes = DTYPES[spec.out_dtype].bytes
    for row_bytes in (128, 64, 32):
        if config.part_n % (row_bytes // out_bytes) == 0:
            return row_bytes // out_bytes
    return 16 // out_bytes


def operand_bytes(rows: int, block_k: int, major: str, dtype: str) -> int:
    """Shared memory of one operand's tile in one stage; an mn-major tile is padded to whole 128-byte slabs."""
    element = DTYPES[dtype].bytes
    slab = SWIZZLE_BYTES // element
    padded = rows if major == "k" else -(-rows // slab) * slab
    return padded * block_k * element


def stage_bytes(config: KernelConfig, spec: KernelSpec) -> int:
    """Shared memory of one pipeline stage: a tile of A and a tile of B."""
    spec = spec.seen_by(config)
    a = operand_bytes(config.block_m, config.block_k, spec.a_major, spec.a_dtype)
    b = operand_bytes(config.block_n, config.block_k, spec.b_major, spec.b_dtype)
    return a + b


def loaded_rows(config: KernelConfig, spec: KernelSpec, m: int, n: int) -> tuple[int, int]:
    """Rows of A's and columns of B's tile that are loaded for an m x n result, all of them as the kernel sees them.

    They are those that there are, where all lie in one tile and a box can have so many: rows beyond an edge cost TMA as
    much as others. What shared memory holds in their place reaches nothing but rows and columns that are not stored.
    """
    spec = spec.seen_by(config)
    a_rows = min(config.block_m, m) if spec.a_major == "k" and config.cluster_n == 1 else config.block_m
    b_rows = min(config.block_n, n) if spec.b_major == "k" and config.cluster_m == 1 else config.block_n
    return a_rows, b_rows


def loaded_bytes(config: KernelConfig, spec: KernelSpec, m: int, n: int) -> tuple[int, int]:
    """What the boxes of A and of B deliver to one CTA in a stage of an m x n result, as the kernel sees them."""
    spec = spec.seen_by(config)
    a_rows, b_rows = loaded_rows(config, spec, m, n)
    a = operand_bytes(a_rows, config.block_k, spec.a_major, spec.a_dtype)
    return a, operand_bytes(b_rows, config.block_k, spec.b_major, spec.b_dtype)


def shared_storage_bytes(config: KernelConfig, spec: KernelSpec) -> int:
    """sizeof(SharedStorage) in cuda_src/gemm.cuh.

    Stages, store buffers, parts of other CTAs' sums, two barriers a stage and three a consumer.
    """
    store = store_columns(config, spec) * DTYPES[spec.out_dtype].bytes * MMA_M
    buffers = config.consumers * config.store_stages * store
    barriers = 8 * (2 * config.stages + 3 * config.consumers)
    received = (config.cluster_k - 1) * config.consumers * config.consumer_m * config.part_n * 4
    total = config.stages * stage_bytes(config, spec) + buffers + received + barriers
    return -(-total // SWIZZLE_ATOM_BYTES) * SWIZZLE_ATOM_BYTES


def shared_bytes(config: KernelConfig, spec: KernelSpec) -> int:
    """Dynamic shared memory to launch with: the storage, and room to round its base up to a swizzle atom."""
    return shared_storage_bytes(config, spec) + SWIZZLE_ATOM_BYTES
