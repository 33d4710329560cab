"""What a config can be expected to take: waves of tiles, bytes, and what a launch costs besides.

Coarse, and made to rank the configs of one problem: it is where a search begins when nothing has been measured. The
constants are of one H200 (docs/ladder.md tells where they were found).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from math import ceil

from cupygemm.config import MMA_M, KernelConfig, KernelSpec, illegal_reason, operand_bytes
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.problem import Problem
from cupygemm.tensor_map import loaded_rows

START_CYCLES = 4600
"""From one kernel's end to the next one's first stage, 2.3 µs at the highest clock."""
FLOPS_A_CYCLE = 4096
"""Of an SM in 16 bits."""
SM_BYTES_A_CYCLE = 72
"""What one SM takes in from the L2."""
L2_BYTES_A_CYCLE = 4300
"""What the L2 gives out, 8.5 TB/s at the highest clock; what SMs of one GPC ask for together counts once."""
GPCS = 8
DRAM_BYTES_A_US = 4.2e6
LATENCY_CYCLES = 1500
"""From a load to its data, under load: what all stages of a ring have to hide."""
CLUSTER_BYTES_A_CYCLE = 12
"""What a CTA sends to others of its cluster by 16-byte stores."""
STORE_CYCLES = 500
"""From the last WGMMA to the first store."""
PER_TILE = 3
"""Guesses of one tile before the next tile's."""
IN_STEP = 1.08
"""What it costs the CTAs of a cluster to wait for one another in each stage."""
SUSTAINED_CLOCK = 0.76
"""Of the highest clock, where the tensor cores are busy for long."""


def predicted_us(problem: Problem, config: KernelConfig, device: DeviceSpec) -> float:
    """About what one launch takes, µs, with operands out of the L2.

    Args:
        problem: what is computed.
        config: legal for it.
        device: for its SMs, its L2 and its clock.
    """
    spec = KernelSpec.of(problem)
    ctas = ceil(problem.m / (config.block_m * config.cluster_m)) * config.cluster_m
    ctas *= ceil(problem.n / (config.block_n * config.cluster_n)) * config.cluster_n * config.cluster_k
    at_once = clusters_at_once(config.cluster_size, device) * config.cluster_size
    waves = ceil(ctas / at_once)
    stages = ceil(ceil(problem.k / config.block_k) / config.cluster_k)
    a_rows, b_rows = loaded_rows(config, spec, problem.m, problem.n)
    a_bytes = operand_bytes(a_rows, config.block_k, spec.a_major, spec.a_dtype)
    b_bytes = operand_bytes(b_rows, config.block_k, spec.b_major, spec.b_dtype)
    columns = config.consumer_n
    wgmmas = config.block_k * DTYPES[spec.a_dtype].bytes // 32 * (config.block_m // MMA_M) * (config.block_n // columns)
    tensor = wgmmas * max(columns / 2, 16 + columns / 4)
    rows, columns_of_tiles = ceil(problem.m / config.block_m), ceil(problem.n / config.block_n)
    asked = a_bytes * _asked(columns_of_tiles, config.cluster_n) + b_bytes * _asked(rows, config.cluster_m)
    fabric = min(ctas, at_once) * asked / L2_BYTES_A_CYCLE
    step = max(tensor, (a_bytes + b_bytes) / SM_BYTES_A_CYCLE, fabric, LATENCY_CYCLES / config.stages)
    if config.cluster_m * config.cluster_n > 1:
        step *= IN_STEP
    way_out = STORE_CYCLES + config.block_m * config.block_n * DTYPES[spec.out_dtype].bytes / config.cluster_k / (
        32 if config.store_stages else 12
    )
    if config.cluster_k > 1:
        sent = config.block_m * config.block_n * 4 * (config.cluster_k - 1) / config.cluster_k
        way_out += 700 + sent / CLUSTER_BYTES_A_CYCLE
    # The producer is ahead of a tile's way out; by turns, the other consumer multiplies meanwhile.
    hidden = 0.9 if config.ping_pong else 0.2
    cycles = waves * stages * step + way_out * (1 + (waves - 1) * (1 - hidden))
    clock = device.clock_mhz * (1 - (1 - SUSTAINED_CLOCK) * min(1.0, waves * stages * tensor / 60000))
    dram_us = problem.compulsory_bytes / DRAM_BYTES_A_US
    start_us = START_CYCLES / device.clock_mhz
    return start_us + max(cycles / clock, dram_us) + 0.2 * min(cycles / clock, dram_us)


def _asked(sharers: int, peers: int) -> float:
    """Share of a tile's bytes that the L2 gives out for each of the CTAs that use the tile."""
    asking = ceil(sharers / peers)
    return GPCS * (1 - (1 - 1 / GPCS) ** asking) / sharers


def clusters_at_once(size: int, device: DeviceSpec) -> int:
    """About how many clusters run at the same time: larger ones leave some SMs of a GPC over."""
    return device.sm_count // size if size <= 2 else int(device.sm_count * 0.92) // size


def guesses(problem: Problem, device: DeviceSpec, most: int) -> list[KernelConfig]:
    """Legal configs for a problem, the one that is expected to be fastest first, of many tiles.

    Args:
        problem: what is to be computed.
        device: where.
        most: how many.
    """
    spec = KernelSpec.of(problem)
    legal = [config for shape in _shapes() if (config := _completed(shape, problem, spec, device)) is not None]
    ranked = sorted(dict.fromkeys(legal), key=lambda config: (predicted_us(problem, config, device), config))
    # The model is less sure of tiles than of what differs within one: every tile gets its turn before a third of one.
    turns: Counter[tuple[int, int]] = Counter()
    order = []
    for config in ranked:
        tile = config.block_m, config.block_n
        order.append((turns[tile] // PER_TILE, config))
        turns[tile] += 1
    return [config for _, config in sorted(order, key=lambda each: each[0])][:most]


def _shapes() -> Iterator[KernelConfig]:
    tiles = itertools.product((64, 128, 192, 256), (16, 32, 64, 96, 128, 192, 256))
    clusters = (
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
    for (block_m, block_n), (cluster_m, cluster_n, cluster_k), by_turns, stored in itertools.product(
        tiles, clusters, (False, True), (0, 1, 2)
    ):
        consumers = 2 if by_turns or block_m in (128, 256) else block_m // MMA_M
        if by_turns != (stored == 2) or (stored == 1 and cluster_k > 2):
            continue
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
