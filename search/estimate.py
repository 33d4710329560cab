"""What a config can be expected to take: waves of tiles, bytes, and what a launch costs besides.

Coarse, and made to rank the configs of one problem where nothing has been measured. The constants are of one H200,
found with trials in 2026-11 that docs/small.md and docs/ladder.md tell of.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from cupygemm.config import MMA_M, KernelConfig, KernelSpec, loaded_bytes
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem

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
PER_TILE = 3
"""Guesses of one tile before the next tile's."""


class Estimate(NamedTuple):
    """What a config can be expected to take, and what of.

    Attributes:
        us: of one launch, µs, with operands out of the L2.
        ctas, at_once, waves: tiles, those that are computed at the same time, and how often that happens.
        stages: of one tile: its share of K.
        tensor_cycles, loading_cycles: of a stage.
        way_out_cycles: from the last product of a tile to its store.
        memory_us: of the bytes that have to move.
    """

    us: float
    ctas: int
    at_once: int
    waves: int
    stages: int
    tensor_cycles: float
    loading_cycles: float
    way_out_cycles: float
    memory_us: float


def estimated_us(problem: Problem, config: KernelConfig, device: DeviceSpec) -> float:
    """About what one launch takes, µs, with operands out of the L2: `estimate` with nothing else."""
    return estimate(problem, config, device).us


def estimate(problem: Problem, config: KernelConfig, device: DeviceSpec) -> Estimate:
    """About what one launch takes, and why.

    Args:
        problem: what is computed.
        config: legal for it.
        device: for its SMs and its clock.
    """
    ctas = ceil(problem.m / (config.block_m * config.cluster_m)) * ceil(problem.n / (config.block_n * config.cluster_n))
    ctas *= config.cluster_size * problem.batch
    at_once = device.clusters_at_once(config.cluster_size) * config.cluster_size
    waves = ceil(ctas / at_once)
    stages = ceil(ceil(problem.k / config.block_k) / config.cluster_k)
    tensor, loading = _tensor_cycles(config), _loading_cycles(problem, config, min(ctas, at_once))
    way_out = _way_out_cycles(problem, config)
    shown = 1 + (waves - 1) * (1 - (HIDDEN_BY_TURNS if config.ping_pong else HIDDEN))
    cycles = waves * stages * max(tensor, loading) + shown * way_out
    heat = min(1.0, waves * stages * tensor / HEATING_CYCLES)
    busy_us = cycles / (device.clock_mhz * (1 - (1 - SUSTAINED_CLOCK) * heat))
    memory_us = problem.compulsory_bytes / DRAM_BYTES_A_US
    longer, shorter = max(busy_us, memory_us), min(busy_us, memory_us)
    us = START_CYCLES / device.clock_mhz + longer + NOT_OVERLAPPED * shorter
    return Estimate(us, ctas, at_once, waves, stages, tensor, loading, way_out, memory_us)


def _tensor_cycles(config: KernelConfig) -> float:
    """Of a stage. An m64nNk16 takes N / 2 cycles, and to read its 2 KiB of A and 32·N bytes of B 16 + N / 4."""
    columns = config.consumer_n
    wgmmas = config.block_k / 16 * (config.block_m / MMA_M) * (config.block_n / columns)
    return wgmmas * max(columns / 2, 16 + columns / 4)


def _loading_cycles(problem: Problem, config: KernelConfig, ctas: int) -> float:
    """Of a stage, that many CTAs loading at once."""
    a_bytes, b_bytes = loaded_bytes(config, KernelSpec.of(problem), problem.m, problem.n)
    rows, columns = ceil(problem.m / config.block_m), ceil(problem.n / config.block_n)
    asked = a_bytes * _asked(columns, config.cluster_n) + b_bytes * _asked(rows, config.cluster_m)
    in_step = IN_STEP if config.cluster_m * config.cluster_n > 1 else 1.0
    own, all_ctas = (a_bytes + b_bytes) / SM_BYTES_A_CYCLE, ctas * asked / L2_BYTES_A_CYCLE
    return in_step * max(own, all_ctas, LATENCY_CYCLES / config.stages)


def _asked(sharers: int, peers: int) -> float:
    """Share of a tile's bytes that the L2 gives out for each of the CTAs that use the tile, `peers` by multicast."""
    asking = ceil(sharers / peers)
    return GPCS * (1 - (1 - 1 / GPCS) ** asking) / sharers


def _way_out_cycles(problem: Problem, config: KernelConfig) -> float:
    tile = config.block_m * config.block_n
    stored = tile * DTYPES[problem.out_dtype].bytes / config.cluster_k
    cycles = WAY_OUT_CYCLES + stored / (STORED_BYTES_A_CYCLE if config.store_stages else STORED_DIRECTLY_A_CYCLE)
    if config.cluster_k > 1:
        sent = tile * DTYPES["float32"].bytes * (config.cluster_k - 1) / config.cluster_k
        cycles += EXCHANGE_CYCLES + sent / EXCHANGED_BYTES_A_CYCLE
    return cycles


def guesses(problem: Problem, device: DeviceSpec, most: int) -> list[KernelConfig]:
    """Legal configs for a problem, the one that is expected to be fastest first, of many tiles.

    Args:
        problem: what is to be computed.
        device: where.
        most: how many.
    """
    spec = KernelSpec.of(problem)
    legal = [config for shape in _shapes() if (config := _completed(shape, problem, spec, device)) is not None]
    ranked = sorted(dict.fromkeys(legal), key=lambda config: (estimated_us(problem, config, device), config))
    # It is less sure of tiles than of what differs within one: every tile gets its turn before one's fourth config.
    turns: Counter[tuple[int, int]] = Counter()
    order = []
    for config in ranked:
        tile = config.block_m, config.block_n
        order.append((turns[tile] // PER_TILE, config))
        turns[tile] += 1
    return [config for _, config in sorted(order, key=lambda each: each[0])][:most]


CLUSTERS = (
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (1, 4, 1),
    (1, 1, 2),
    (1, 1, 3),
    (1, 1, 4),
    (1, 1, 6),
    (1, 1, 8),
    (1, 2, 3),
)
"""cluster_m, cluster_n and cluster_k that have paid somewhere."""


def _shapes() -> Iterator[KernelConfig]:
    """Tiles, clusters and ways out, with as yet two stages and no hints."""
    tiles = itertools.product((64, 128, 192, 256), (16, 32, 64, 96, 128, 192, 256))
    for (block_m, block_n), (cluster_m, cluster_n, cluster_k), by_turns, stored in itertools.product(
        tiles, CLUSTERS, (False, True), (0, 1, 2)
    ):
        # By turns two buffers, else one or none; where K is divided among many, the parts are too small for TMA.
        if by_turns != (stored == 2) or (stored == 1 and cluster_k > 2):
            continue
        consumers = 2 if by_turns or block_m in (128, 256) else block_m // MMA_M
        yield KernelConfig(
            block_m=block_m,
            block_n=block_n,
            block_k=64,
            stages=2,
            consumers=consumers,
            split_n=False,
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            raster_along_n=True,
            group=4,
            producer_registers=32 if consumers == 3 else 40,
            wait_depth=1,
            store_stages=stored,
            ping_pong=by_turns,
            cluster_k=cluster_k,
            l2_promotion=128,
        )


def _completed(shape: KernelConfig, problem: Problem, spec: KernelSpec, device: DeviceSpec) -> KernelConfig | None:
    """The shape with as many stages as fit and hints for what is read once, or None where it is not legal."""
    once_a = problem.n <= shape.block_n * shape.cluster_n
    once_b = problem.m <= shape.block_m * shape.cluster_m
    written = problem.m * problem.n * DTYPES[problem.out_dtype].bytes
    config = shape.swapped(
        store_stages=shape.store_stages if spec.out_aligned else 0,
        keep_a=-1 if once_a and not once_b else 0,
        keep_b=-1 if once_b and not once_a else 0,
        prefetch=4 if once_a or once_b else 1 if shape.cluster_k > 1 else 0,
    )
    if config.store_stages and written > device.l2_bytes:
        config = config.swapped(keep_out=-1)
    for stages in range(12, 2, -1):
        full = config.swapped(stages=stages)
        if illegal_reason(full, spec, device) is None:
            return full
    return None
