"""Configs that are expected to be fast for a problem that was never measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.forecast import shipped_forecast
from cupygemm.config import MMA_M, KernelConfig, KernelSpec, shared_bytes, stage_bytes
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.errors import BundleError
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.search.spaces.space import FULL_KNOBS

LEAST_STAGES, MOST_STAGES = 3, 12
PER_TILE = 3
"""Guesses of one tile before the next tile's."""


def guesses(problem: Problem, device: DeviceSpec, most: int) -> list[KernelConfig]:
    """Legal configs for a problem, the one that is expected to be fastest first, of many tiles.

    Args:
        problem: what is to be computed.
        device: where.
        most: how many.
    """
    spec = KernelSpec.of(problem)
    shapes = itertools.chain(_shapes(False), _shapes(True) if spec.out_aligned else ())
    found = [config for shape in shapes if (config := _completed(shape, problem, spec, device)) is not None]
    legal = list(dict.fromkeys(found))
    ranked = [config for _, config in sorted(zip(expected_us(problem, legal, device), legal, strict=True))]
    # It is less sure of tiles than of what differs within one: every tile gets its turn before one's fourth config.
    turns: Counter[tuple[int, int]] = Counter()
    order = []
    for config in ranked:
        tile = config.as_computed(config.block_m, config.block_n)
        order.append((turns[tile] // PER_TILE, config))
        turns[tile] += 1
    return [config for _, config in sorted(order, key=lambda each: each[0])][:most]


def expected_us(problem: Problem, configs: Sequence[KernelConfig], device: DeviceSpec) -> list[float]:
    """About what a launch of each takes, µs: as the forecast that ships has it, or else the estimate.

    It has learnt from few kernels, and says more of others too than the estimate does. Asked about kernels that are
    left out of what it learns from, what it takes for the best comes to 0.969 of the best, by the estimate to 0.951.
    On the recorded tables, whose shapes it does not know, the best of the first eight kernels comes to 0.970 of the
    optimum at the mean, by the estimate to 0.945 (2026-12).
    """
    try:
        forecast = shipped_forecast()
    except BundleError:
        return estimated_us(problem, configs, device)  # dispatch says so
    known = forecast.covers(problem, device)
    return forecast.kernel_us(problem, configs, device) if known else estimated_us(problem, configs, device)


COLUMNS = (16, 32, 64, 96, 128, 192, 256)
SWAPPED_COLUMNS = next(knob.values for knob in FULL_KNOBS if knob.name == "block_n")
"""Of tiles. With `swap_ab` they are rows of the result, of which there may be any number."""
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


def _shapes(swap_ab: bool) -> Iterator[KernelConfig]:
    """Tiles, clusters and ways out, with as yet two stages and no hints."""
    tiles = itertools.product((64, 128, 192, 256), SWAPPED_COLUMNS if swap_ab else COLUMNS)
    for (block_m, block_n), (cluster_m, cluster_n, cluster_k), by_turns, stored in itertools.product(
        tiles, CLUSTERS, (False, True), (0, 1, 2)
    ):
        # By turns two buffers, else one or none; where K is divided among many, the parts are too small for TMA, but
        # for those that are rows.
        if by_turns != (stored == 2) or (stored == 1 and cluster_k > 2 and not swap_ab):
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
            swap_ab=swap_ab,
        )


def _completed(shape: KernelConfig, problem: Problem, spec: KernelSpec, device: DeviceSpec) -> KernelConfig | None:
    """The shape with as many stages as fit and hints for what is read once, or None where it is not legal."""
    m, n = shape.as_computed(problem.m, problem.n)
    once_a = n <= shape.block_n * shape.cluster_n
    once_b = m <= shape.block_m * shape.cluster_m
    written = problem.m * problem.n * DTYPES[problem.out_dtype].bytes
    config = shape.swapped(
        store_stages=shape.store_stages if spec.out_aligned else 0,
        keep_a=-1 if once_a and not once_b else 0,
        keep_b=-1 if once_b and not once_a else 0,
        prefetch=4 if once_a or once_b else 1 if shape.cluster_k > 1 else 0,
    )
    if config.store_stages and written > device.l2_bytes:
        config = config.swapped(keep_out=-1)
    spare = device.shared_bytes - shared_bytes(config, spec)
    most = min(MOST_STAGES, config.stages + spare // stage_bytes(config, spec))
    # What is rounded up to whole atoms may cost one of them.
    for stages in range(most, max(most - 2, LEAST_STAGES - 1), -1):
        full = config.swapped(stages=stages)
        if illegal_reason(full, spec, device) is None:
            return full
    return None
