"""What configs can be expected to take: waves of tiles, bytes, and what a launch costs besides; of many at once.

Coarse, and made to rank the configs of one problem where nothing has been measured. The constants are of one H200,
found with trials in 2026-11 that docs/small.md and docs/ladder.md tell of. Fields told at launch have no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cupygemm.config import MMA_M, SWIZZLE_BYTES, KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.problem import Problem

Column = NDArray[np.float64]
Number = TypeVar("Number", float, Column)

START_CYCLES = 4600
"""From one kernel's end to the next one's first stage."""
SM_BYTES_A_CYCLE = 72
"""What one SM takes in from the L2."""
L2_BYTES_A_CYCLE = 4300
"""What the L2 gives out; what SMs of one GPC ask for together counts once."""
GPCS = 8
DRAM_BYTES_A_US = 4.2e6
LATENCY_CYCLES = 1500
"""From a load to its data, under load: what all stages of a ring have to hide."""
IN_STEP = 1.08
"""Factor on each stage where CTAs of a cluster share tiles, and so wait for one another."""
WAY_OUT_CYCLES = 500
"""From the last WGMMA to the first store."""
STORED_BYTES_A_CYCLE, STORED_DIRECTLY_A_CYCLE = 32, 12
"""By TMA, and from registers."""
EXCHANGE_CYCLES, EXCHANGED_BYTES_A_CYCLE = 700, 12
"""Of partial sums in a cluster: until the first is there, and from then on."""
HIDDEN_BY_TURNS, HIDDEN = 0.9, 0.2
"""Share of a tile's way out that overlaps the next tile: with ping-pong the other consumer multiplies meanwhile."""
HEATING_CYCLES, SUSTAINED_CLOCK = 60000, 0.76
"""Tensor cores that are busy for so long bring the clock down to this share of the highest."""
NOT_OVERLAPPED = 0.2
"""Share of the shorter of two, device memory and SMs, that the longer does not hide."""
FIELDS = (
    *("block_m", "block_n", "block_k", "stages", "consumers", "split_n", "ping_pong"),
    *("cluster_m", "cluster_n", "cluster_k", "store_stages", "swap_ab"),
)
"""Of a config, that an estimate depends on: configs that agree in these have one estimate."""
COLUMNS = (*FIELDS, "cp_async_stages")
"""And what else of it a forecast goes by."""

_GPCS_ASKING = np.array([GPCS * (1 - (1 - 1 / GPCS) ** asking) for asking in range(300)])
"""How many GPCs ask for a tile that so many CTAs ask for, wherever they are; of more, as many as of the last.

A table, since powers of NumPy's differ in the last bit from one machine to the next.
"""


class Kernels(NamedTuple):
    """Configs as columns, float64 [kernels], and what follows from them and a device alone.

    Attributes:
        fields: by name, those of `COLUMNS`.
        cluster_size: CTAs of a cluster.
        at_once: CTAs that are computed at the same time.
        tensor_cycles: of a stage.
        in_step: factor on what a stage takes to load.
        hidden: share of a tile's way out that overlaps the next tile.
    """

    fields: dict[str, Column]
    cluster_size: Column
    at_once: Column
    tensor_cycles: Column
    in_step: Column
    hidden: Column

    @classmethod
    def of(cls, kernels: Sequence[KernelConfig], device: DeviceSpec) -> Kernels:
        """The columns of configs on a device."""
        values = np.array(list(map(attrgetter(*COLUMNS), kernels)), np.float64).reshape(len(kernels), len(COLUMNS))
        of = dict(zip(COLUMNS, values.T.copy(), strict=True))
        sharing = of["cluster_m"] * of["cluster_n"]
        sizes = sharing * of["cluster_k"]
        at_once = {size: device.clusters_at_once(int(size)) * size for size in set(sizes.tolist())}
        return cls(
            of,
            sizes,
            np.array([at_once[size] for size in sizes.tolist()]),
            _tensor_cycles(of),
            np.where(sharing > 1, IN_STEP, 1.0),
            np.where(of["ping_pong"] > 0, HIDDEN_BY_TURNS, HIDDEN),
        )


class Estimate(NamedTuple, Generic[Number]):
    """What a config can be expected to take, and what of; of several, a column of each.

    Attributes:
        us: of one launch, µs, with operands out of the L2.
        ctas, at_once, waves: tiles, those that are computed at the same time, and how often that happens.
        stages: of one tile: its share of K.
        tensor_cycles, loading_cycles: of a stage.
        way_out_cycles: from the last product of a tile to its store.
        rows, columns: of the result, up to whole clusters.
        memory_us: of the bytes that have to move; it is the same for all.
    """

    us: Number
    ctas: Number
    at_once: Number
    waves: Number
    stages: Number
    tensor_cycles: Number
    loading_cycles: Number
    way_out_cycles: Number
    rows: Number
    columns: Number
    memory_us: float


def estimates(problem: Problem, kernels: Kernels, device: DeviceSpec) -> Estimate[Column]:
    """About what a launch of each config takes, and why.

    Args:
        problem: what is computed.
        kernels: configs as columns, legal for it, but that stages to store through do not count where TMA cannot
            store.
        device: for its clock, and what `kernels` are of.
    """
    of = kernels.fields
    m, n = _as_computed(of, problem.m, problem.n)
    cluster_rows = np.ceil(m / (of["block_m"] * of["cluster_m"]))
    cluster_columns = np.ceil(n / (of["block_n"] * of["cluster_n"]))
    ctas = cluster_rows * cluster_columns * kernels.cluster_size * problem.batch
    waves = np.ceil(ctas / kernels.at_once)
    stages = np.ceil(np.ceil(problem.k / of["block_k"]) / of["cluster_k"])
    spec, tensor = KernelSpec.of(problem), kernels.tensor_cycles
    loading = kernels.in_step * _loading_cycles(problem, spec, of, np.minimum(ctas, kernels.at_once))
    way_out = _way_out_cycles(spec, of)
    shown = 1 + (waves - 1) * (1 - kernels.hidden)
    cycles = waves * stages * np.maximum(tensor, loading) + shown * way_out
    heat = np.minimum(1.0, waves * stages * tensor / HEATING_CYCLES)
    busy_us = cycles / (device.clock_mhz * (1 - (1 - SUSTAINED_CLOCK) * heat))
    memory_us = problem.compulsory_bytes / DRAM_BYTES_A_US
    longer, shorter = np.maximum(busy_us, memory_us), np.minimum(busy_us, memory_us)
    us = START_CYCLES / device.clock_mhz + longer + NOT_OVERLAPPED * shorter
    rows, columns = _as_computed(
        of, cluster_rows * of["block_m"] * of["cluster_m"], cluster_columns * of["block_n"] * of["cluster_n"]
    )
    return Estimate(
        us, ctas, kernels.at_once, waves, stages, tensor, loading, way_out, rows, columns, memory_us=memory_us
    )


def one_by_one(found: Estimate[Column]) -> list[Estimate[float]]:
    """The estimate of each config, in their order."""
    *columns, memory_us = found
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Estimate._make((*numbers, memory_us)) for numbers in rows]


def estimated_us(problem: Problem, kernels: Sequence[KernelConfig], device: DeviceSpec) -> list[float]:
    """About what one launch of each config takes, µs, with operands out of the L2: `estimates` with nothing else."""
    us: list[float] = estimates(problem, Kernels.of(kernels, device), device).us.tolist()
    return us


def _as_computed(of: dict[str, Column], of_m: Column | int, of_n: Column | int) -> tuple[Column, Column]:
    """`KernelConfig.as_computed` of many."""
    swapped = of["swap_ab"] > 0
    return np.where(swapped, of_n, of_m), np.where(swapped, of_m, of_n)


def _tensor_cycles(of: dict[str, Column]) -> Column:
    """Of a stage. An m64nNk16 takes N / 2 cycles, and to read its 2 KiB of A and 32·N bytes of B 16 + N / 4."""
    columns = np.where(of["split_n"] > 0, of["block_n"] // of["consumers"], of["block_n"])
    wgmmas = of["block_k"] / 16 * (of["block_m"] / MMA_M) * (of["block_n"] / columns)
    cycles: Column = wgmmas * np.maximum(columns / 2, 16 + columns / 4)
    return cycles


def _loading_cycles(problem: Problem, spec: KernelSpec, of: dict[str, Column], ctas: Column) -> Column:
    """Of a stage, that many CTAs loading at once, each as if by itself."""
    m, n = _as_computed(of, problem.m, problem.n)
    a_by_k, b_by_k = _as_computed(of, spec.a_major == "k", spec.b_major == "k")
    element = DTYPES[spec.a_dtype].bytes
    a_bytes = _loaded_bytes(of, "block_m", of["cluster_n"], m, a_by_k, element)
    b_bytes = _loaded_bytes(of, "block_n", of["cluster_m"], n, b_by_k, element)
    rows, columns = np.ceil(m / of["block_m"]), np.ceil(n / of["block_n"])
    asked = a_bytes * _asked(columns, of["cluster_n"]) + b_bytes * _asked(rows, of["cluster_m"])
    own, all_ctas = (a_bytes + b_bytes) / SM_BYTES_A_CYCLE, ctas * asked / L2_BYTES_A_CYCLE
    cycles: Column = np.maximum(np.maximum(own, all_ctas), LATENCY_CYCLES / of["stages"])
    return cycles


def _loaded_bytes(of: dict[str, Column], block: str, peers: Column, rows: Column, by_k: Column, element: int) -> Column:
    """What the boxes of an operand deliver to one CTA in a stage: `config.loaded_bytes` of many.

    Args:
        by_k: whether it is k-major.
        element: bytes of one.
    """
    slab = SWIZZLE_BYTES // element
    alone = np.where(peers == 1, np.minimum(of[block], rows), of[block])
    loaded: Column = np.where(by_k, alone, np.ceil(of[block] / slab) * slab)
    return loaded * of["block_k"] * element


def _asked(sharers: Column, peers: Column) -> Column:
    """Share of a tile's bytes that the L2 gives out for each of the CTAs that use the tile, `peers` by multicast."""
    asking = np.minimum(np.ceil(sharers / peers), len(_GPCS_ASKING) - 1).astype(np.intp)
    share: Column = _GPCS_ASKING[asking] / sharers
    return share


def _way_out_cycles(spec: KernelSpec, of: dict[str, Column]) -> Column:
    tile, out_bytes = of["block_m"] * of["block_n"], DTYPES[spec.out_dtype].bytes
    by_tma = of["store_stages"] * spec.out_aligned > 0
    stored = tile * out_bytes / of["cluster_k"]
    sent = tile * DTYPES["float32"].bytes * (of["cluster_k"] - 1) / of["cluster_k"]
    cycles = WAY_OUT_CYCLES + stored / np.where(by_tma, STORED_BYTES_A_CYCLE, STORED_DIRECTLY_A_CYCLE)
    cycles += np.where(of["cluster_k"] > 1, EXCHANGE_CYCLES + sent / EXCHANGED_BYTES_A_CYCLE, 0.0)
    return cycles
