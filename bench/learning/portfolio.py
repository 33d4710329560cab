"""Which few kernels a portfolio is made of: a greedy choice by what they come to on many problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.fitting import fitted
from cupygemm.config import COMPILED_FIELDS, KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.problem import Problem
from cupygemm.search.guesses import CLUSTERS
from cupygemm.search.recordings.table import Table

UNTRIED = 0.97
"""What the estimate of a kernel counts that was never measured anywhere."""
NARROW_STEPS = (48, 80, 112, 144, 176, 208)
"""Columns of a tile that are tried with A and B swapped only: then they are rows of the result, of any number."""
LEAST_SCORE = 0.05
"""Of a kernel that a problem cannot use, so that logarithms exist."""

Compiled = tuple[object, ...]
"""The values of `COMPILED_FIELDS`."""


def compiled(config: KernelConfig) -> Compiled:
    """What tells kernels apart."""
    return tuple(getattr(config, name) for name in COMPILED_FIELDS)


def kernels(configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """A config for each kernel, in the order in which they come first."""
    found: dict[Compiled, KernelConfig] = {}
    for config in configs:
        found.setdefault(compiled(config), config)
    return list(found.values())


def untried_kernels() -> list[KernelConfig]:
    """Tiles and clusters of the families that have paid, with as many stages as shared memory may hold."""
    tiles = itertools.product(
        (64, 128, 192, 256), (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)
    )
    found = []
    for (block_m, block_n), (cluster_m, cluster_n, cluster_k), by_turns, swap_ab in itertools.product(
        tiles, CLUSTERS, (False, True), (False, True)
    ):
        if (by_turns and cluster_k > 1) or (not swap_ab and block_n in NARROW_STEPS):
            continue
        consumers = 2 if by_turns else max(1, block_m // 64)
        stages = min(12, 196608 // ((block_m + -(-block_n // 64) * 64) * 128))
        stored = 2 if by_turns else 0 if cluster_k > 1 and not swap_ab else 1
        if stages >= 3 and consumers <= 3:
            # fmt: off
            found.append(KernelConfig(
                block_m, block_n, 64, stages, consumers, False, cluster_m, cluster_n, True, 4, 40, 1, stored,
                ping_pong=by_turns, cluster_k=cluster_k, swap_ab=swap_ab,
            ))
            # fmt: on
    return found


def recorded_scores(table: Table, pool: Sequence[KernelConfig]) -> NDArray[np.float64]:
    """The optimum's time over each kernel's best in a table, (n,); by the estimate where a kernel is not recorded."""
    best: dict[Compiled, float] = {}
    for config, us in table.times_us.items():
        if us is not None:
            best[compiled(config)] = min(us, best.get(compiled(config), us))
    estimated = estimated_scores(table.problem, table.device, pool)
    known = [table.optimum_us / best[key] if (key := compiled(kernel)) in best else 0.0 for kernel in pool]
    return np.where(np.array(known) > 0, known, np.minimum(estimated, UNTRIED))


def estimated_scores(
    problem: Problem, device: DeviceSpec, pool: Sequence[KernelConfig], best: KernelConfig | None = None
) -> NDArray[np.float64]:
    """The least estimate over each kernel's, (n,).

    Args:
        best: a config known to be the best, which scores 1, and none scores more; None for the least estimate.
    """
    fitting = {i: config for i, kernel in enumerate(pool) if (config := fitted(kernel, problem, device)) is not None}
    us = np.full(len(pool), np.inf)
    us[list(fitting)] = estimated_us(problem, list(fitting.values()), device)
    least_us = float(us.min()) if best is None else estimated_us(problem, [best], device)[0]
    scores: NDArray[np.float64] = np.clip(least_us / us, LEAST_SCORE, 1.0 if best is None else UNTRIED)
    if best is not None:
        scores[[compiled(kernel) == compiled(best) for kernel in pool]] = 1.0
    return scores


def choose(
    scores: NDArray[np.float64],
    weights: NDArray[np.float64],
    most: int,
    least_gain: float,
    first: Sequence[int] = (),
) -> list[tuple[int, float]]:
    """Kernels one by one, each the one that adds most to the weighted geometric mean of the best score.

    Args:
        scores: (problems, kernels), from 0 to 1.
        weights: (problems,).
        most: kernels at most.
        least_gain: where the next one adds less than this factor less one, it ends.
        first: columns that are chosen in any case, the best first.

    Returns:
        columns in the order chosen, with the mean reached by them and those before.
    """
    logs, share = np.log(np.maximum(scores, LEAST_SCORE)), weights / weights.sum()
    reached = np.full(len(scores), np.log(LEAST_SCORE))
    chosen: list[tuple[int, float]] = []
    while len(chosen) < most:
        gains = share @ np.maximum(logs - reached[:, None], 0.0)
        left = [column for column in first if column not in (each for each, _ in chosen)]
        best = max(left, key=lambda column: float(gains[column])) if left else int(gains.argmax())
        if not left and gains[best] < np.log1p(least_gain):
            break
        reached = np.maximum(reached, logs[:, best])
        chosen.append((best, float(np.exp(share @ reached))))
    return chosen
