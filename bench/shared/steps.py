"""The steps that bench/ladder.py measures, by suite: docs/ladder.md and docs/small.md say what each is for."""

from __future__ import annotations

from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.seeds import SOON_ENOUGH

Steps = dict[str, KernelConfig]

BEST_OF_TABLE = "the best of its table"

# Tiles of 128x256 whose rows two consumers divide, and tiles that the consumers take by turns.
DIVIDED = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=6, wait_depth=1, ping_pong=True)
WIDE = TURNS.swapped(block_n=192, stages=4)
TALL = TURNS.swapped(block_m=192, stages=4)
PROMOTED = {"l2_promotion": 128}
STREAMED = {"keep_out": -1}

# Small products: one consumer, or two of 64 rows each, and as many stages as fit. Tiles that share columns of B come
# one after the other.
SQUARE = KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 4, 40, 1, 1, l2_promotion=128)
TIPPED = SQUARE.swapped(block_m=128, stages=8, consumers=2)
BROAD = SQUARE.swapped(block_n=128, stages=8)
BROAD_TURNS = BROAD.swapped(consumers=2, ping_pong=True, store_stages=2)
LARGER = TIPPED.swapped(block_n=128, stages=6)
DIRECT = {"store_stages": 0}
ONCE_B = {"keep_b": -1}
ONCE_A = {"keep_a": -1}

DEEP = SQUARE.swapped(block_k=128, stages=6)


def copied(config: KernelConfig, count: int, **changes: int) -> KernelConfig:
    """The config with other changes, and its first `count` stages copied by the consumers."""
    return config.swapped(cp_async_stages=count, **changes)


EIGHTHS = {"cluster_k": 8, **DIRECT}
QUARTERS = {"cluster_k": 4, **DIRECT}

STEPS: dict[str, Steps] = {
    "headline": {
        "128x256": DIVIDED,
        "128x256, cluster 2x1": DIVIDED.swapped(cluster_m=2),
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x256, 3 stages, 4 store buffers": DIVIDED.swapped(stages=3, store_stages=4),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 1": TURNS.swapped(group=1, **PROMOTED),
    },
    "squares": {
        "128x256": DIVIDED.swapped(group=8),
        "128x256, cluster 2x1": DIVIDED.swapped(group=8, cluster_m=2),
        "128x128 by turns": TURNS.swapped(group=8),
        "128x128 by turns, keep_out -1": TURNS.swapped(group=8, **STREAMED),
        "128x192 by turns": WIDE.swapped(group=8),
        "128x192 by turns, group 4": WIDE,
        "128x192 by turns, l2_promotion 128": WIDE.swapped(group=8, **PROMOTED),
        "128x192 by turns, cluster 2x1": WIDE.swapped(cluster_m=2),
        "192x128 by turns": TALL,
    },
    "short_k": {
        "128x256": DIVIDED,
        "128x128 by turns": TURNS,
        "128x128 by turns, keep_out -1": TURNS.swapped(**STREAMED),
        "128x128 by turns, keep_out -1, l2_promotion 128": TURNS.swapped(**STREAMED, **PROMOTED),
        "128x128 by turns, keep_out -1, cluster 2x1": TURNS.swapped(cluster_m=2, **STREAMED),
        "128x192 by turns": WIDE,
        "128x192 by turns, keep_out -1": WIDE.swapped(**STREAMED),
        "128x192 by turns, keep_out -1, l2_promotion 128": WIDE.swapped(**STREAMED, **PROMOTED),
        "128x192 by turns, keep_out -1, cluster 2x1": WIDE.swapped(cluster_m=2, **STREAMED),
    },
    "ragged": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, cluster 2x1": TURNS.swapped(cluster_m=2, **PROMOTED),
        "128x192 by turns, l2_promotion 128": WIDE.swapped(**PROMOTED),
        "128x192 by turns, l2_promotion 128, cluster 2x1": WIDE.swapped(cluster_m=2, **PROMOTED),
        "128x192 by turns, l2_promotion 128, cluster 2x1, group 1": WIDE.swapped(cluster_m=2, group=1, **PROMOTED),
    },
    "layouts": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 8": TURNS.swapped(group=8, **PROMOTED),
    },
    "small": {
        "64x64": SQUARE,
        "64x64, group 1": SQUARE.swapped(group=1),
        "64x64, stages of 128": SQUARE.swapped(block_k=128, stages=6),
        "64x64, 2 stages prefetched": SQUARE.swapped(prefetch=2),
        "64x64, stored from registers": SQUARE.swapped(**DIRECT),
        "64x64, 2 shares of K": SQUARE.swapped(cluster_k=2),
        "64x32": SQUARE.swapped(block_n=32),
        "128x64": TIPPED,
        "128x64, cluster 1x2": TIPPED.swapped(cluster_n=2),
        "128x64, 3 store buffers": TIPPED.swapped(stages=7, store_stages=3),
        "64x128": BROAD,
        "64x128 by turns": BROAD_TURNS,
        "64x128 by turns, group 8": BROAD_TURNS.swapped(group=8),
        "128x128": LARGER,
        "128x128, 2 shares of K": LARGER.swapped(cluster_k=2, stages=5),
        "64x64, 1 stage copied": copied(SQUARE, 1),
        "64x64, stages of 128, 2 copied": copied(DEEP, 2),
        "64x64, stages of 128, 4 copied": copied(DEEP, 4),
        "64x32, 1 stage copied": copied(SQUARE, 1, block_n=32),
        "64x32, stages of 128, 1 copied": copied(DEEP, 1, block_n=32),
        "128x64, 1 stage copied": copied(TIPPED, 1),
        "64x128, 1 stage copied": copied(BROAD, 1),
        "64x128, 2 stages copied": copied(BROAD, 2),
    },
    "splitk": {
        "64x64": SQUARE,
        "64x64, 2 shares of K": SQUARE.swapped(cluster_k=2, **DIRECT),
        "64x64, 4 shares of K": SQUARE.swapped(cluster_k=4, **DIRECT),
        "64x64, 8 shares of K": SQUARE.swapped(cluster_k=8, **DIRECT),
        "64x64, 8 shares of K, stored by TMA": SQUARE.swapped(cluster_k=8),
        "64x64, 8 shares of K, stages of 128": SQUARE.swapped(cluster_k=8, block_k=128, stages=4, **DIRECT),
        "64x64, 8 shares of K, 2 stages prefetched": SQUARE.swapped(cluster_k=8, prefetch=2, **DIRECT),
        "64x32, 8 shares of K, 2 stages prefetched": SQUARE.swapped(block_n=32, cluster_k=8, prefetch=2, **DIRECT),
        "64x16, 8 shares of K, 2 stages prefetched": SQUARE.swapped(block_n=16, cluster_k=8, prefetch=2, **DIRECT),
        "64x16, 8 shares of K, stages of 128": SQUARE.swapped(block_n=16, block_k=128, stages=4, cluster_k=8, **DIRECT),
        "64x128, 2 shares of K": BROAD.swapped(cluster_k=2, **DIRECT),
        "64x128, 3 shares of K": BROAD.swapped(cluster_k=3, **DIRECT),
        "64x128, 4 shares of K": BROAD.swapped(cluster_k=4, **DIRECT),
        "64x128, 8 shares of K": BROAD.swapped(cluster_k=8, **DIRECT),
        "128x64, 3 shares of K, cluster 1x2": TIPPED.swapped(cluster_n=2, cluster_k=3, **DIRECT),
        "128x64, 3 shares of K": TIPPED.swapped(cluster_k=3, **DIRECT),
        "128x128, 4 shares of K": LARGER.swapped(cluster_k=4, stages=5, **DIRECT),
        "64x64, 4 shares of K, stages of 128, 1 copied": copied(DEEP, 1, **QUARTERS),
        "64x64, 8 shares of K, stages of 128, 1 copied": copied(DEEP, 1, **EIGHTHS),
        "64x32, 8 shares of K, stages of 128, 1 copied": copied(DEEP, 1, block_n=32, **EIGHTHS),
        "64x16, 8 shares of K, stages of 128, 4 copied": copied(DEEP, 4, block_n=16, stages=4, **EIGHTHS),
        "64x16, 8 shares of K, stages of 256, 2 copied": copied(DEEP, 2, block_n=16, block_k=256, stages=3, **EIGHTHS),
        "64x128, 4 shares of K, 2 stages copied": copied(BROAD, 2, stages=6, **QUARTERS),
        "128x64, 4 shares of K, 2 stages copied": copied(TIPPED, 2, **QUARTERS),
        "128x64, 3 shares of K, 2 stages copied": copied(TIPPED, 2, cluster_k=3, **DIRECT),
    },
    "skinny": {
        "64x64": SQUARE,
        "64x64, B read once": SQUARE.swapped(**ONCE_B),
        "64x64, B read once, group 1": SQUARE.swapped(group=1, **ONCE_B),
        "64x64, B read once, 4 stages prefetched": SQUARE.swapped(prefetch=4, **ONCE_B),
        "64x64, B read once, 12 stages prefetched": SQUARE.swapped(prefetch=12, **ONCE_B),
        "64x64, B read once, stored from registers": SQUARE.swapped(prefetch=4, **ONCE_B, **DIRECT),
        "64x64, B read once, 2 shares of K": SQUARE.swapped(cluster_k=2, prefetch=4, **ONCE_B),
        "64x64, B read once, 2 shares of K in stages of 128": SQUARE.swapped(
            block_k=128, stages=6, cluster_k=2, prefetch=12, **ONCE_B
        ),
        "64x64, B read once, cluster 2x1": SQUARE.swapped(cluster_m=2, prefetch=2, **ONCE_B),
        "64x128 by turns, B read once": BROAD_TURNS.swapped(**ONCE_B),
        "64x192, B read once": SQUARE.swapped(block_n=192, stages=6, **ONCE_B),
        "64x192, B read once, cluster 2x1": SQUARE.swapped(block_n=192, stages=6, cluster_m=2, prefetch=2, **ONCE_B),
        "128x64, B read once, 2 shares of K": TIPPED.swapped(cluster_k=2, prefetch=4, **ONCE_B),
        "128x128, B read once": LARGER.swapped(prefetch=2, **ONCE_B),
        "128x128, B read once, cluster 1x4": LARGER.swapped(cluster_n=4, prefetch=2, **ONCE_B),
        "64x64, B read once, 1 stage copied": copied(SQUARE, 1, **ONCE_B),
        "64x64, B read once, 4 stages copied": copied(SQUARE, 4, **ONCE_B),
        "64x64, B read once, 8 stages copied": copied(SQUARE, 8, **ONCE_B),
        "64x64, B read once, stages of 128, 2 copied": copied(DEEP, 2, **ONCE_B),
        "64x64, B read once, 2 shares of K, 4 stages copied": copied(SQUARE, 4, cluster_k=2, **ONCE_B),
        "128x64, A read once": TIPPED.swapped(**ONCE_A),
        "128x64, A read once, stages of 128": TIPPED.swapped(block_k=128, stages=4, **ONCE_A),
        "128x64 by turns, A read once, stages of 128, cluster 2x1": TIPPED.swapped(
            block_k=128, stages=4, cluster_m=2, ping_pong=True, store_stages=2, **ONCE_A
        ),
        "128x128, keep_out -1, 4 store buffers": LARGER.swapped(stages=4, store_stages=4, **STREAMED),
        "128x192 by turns, keep_out -1": WIDE.swapped(stages=3, **STREAMED),
        "128x256, keep_out -1, 4 store buffers": DIVIDED.swapped(stages=2, store_stages=4, **STREAMED),
    },
    "batched": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x256, cluster 2x1": DIVIDED.swapped(cluster_m=2),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 1": TURNS.swapped(group=1, **PROMOTED),
        "128x128 by turns, keep_out -1": TURNS.swapped(**STREAMED),
        "128x128 by turns, cluster 2x1": TURNS.swapped(cluster_m=2),
        "128x192 by turns": WIDE,
        "128x192 by turns, keep_out -1": WIDE.swapped(**STREAMED),
        "128x128": LARGER,
        "64x128": BROAD,
    },
    "fused": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 1": TURNS.swapped(group=1, **PROMOTED),
        "128x128 by turns, keep_out -1": TURNS.swapped(**STREAMED),
        "128x192 by turns": WIDE,
        "128x192 by turns, keep_out -1": WIDE.swapped(**STREAMED),
        "64x64": SQUARE,
        "64x64, 2 shares of K": SQUARE.swapped(cluster_k=2),
        "64x64, B read once, 4 stages prefetched": SQUARE.swapped(prefetch=4, **ONCE_B),
        "64x64, B read once, cluster 2x1": SQUARE.swapped(cluster_m=2, prefetch=2, **ONCE_B),
        "128x64": TIPPED,
        "64x128": BROAD,
        "128x128": LARGER,
    },
}
"""By suite. Where rows of the result are no multiple of 16 bytes, a step stores from registers."""

WHOLE_K = (
    copied(SQUARE, 1),
    copied(SQUARE, 4),
    copied(DEEP, 2),
    copied(DEEP, 4),
    copied(SQUARE, 1, block_n=32),
    copied(SQUARE, 4, block_n=32),
    copied(DEEP, 1, block_n=32),
    copied(BROAD, 2),
)
"""Configs that begin sooner, for few tiles and for many."""
SHARED_K = (
    copied(DEEP, 1, **QUARTERS),
    copied(DEEP, 1, **EIGHTHS),
    copied(DEEP, 1, block_n=32, **QUARTERS),
    copied(DEEP, 1, block_n=32, **EIGHTHS),
    copied(DEEP, 4, block_n=16, stages=4, **EIGHTHS),
    copied(SQUARE, 4, cluster_k=2, **DIRECT),
    copied(TIPPED, 2, **QUARTERS),
    copied(BROAD, 2, stages=6, **QUARTERS),
)
"""The same for few tiles and a long K."""
MANY_TILES = (
    copied(SQUARE, 2, stages=6),
    copied(BROAD, 1),
    copied(BROAD, 2, stages=4),
    copied(TIPPED, 1),
    copied(TIPPED, 2),
    copied(TIPPED, 2, stages=4),
    copied(LARGER, 1),
    copied(LARGER, 2),
)
"""The same for more tiles than SMs, or nearly so."""
SHORT_K = (
    LARGER.swapped(stages=4, store_stages=4, **STREAMED),
    SQUARE.swapped(consumers=2, ping_pong=True, store_stages=2),
)
"""For many tiles of a K of one or two stages, which are mostly storing."""
FEW_TILES = 66
"""Of 64x64: half an H200's SMs."""


def steps_of(suite: str, problem: Problem) -> Steps:
    """Those of the suite, then the best of the problem's table, which `legal_steps` keeps where it is none of them."""
    return STEPS[suite] | best_of_table(problem)


def best_of_table(problem: Problem) -> Steps:
    """The best config of the problem's table recorded on an H200; nothing where it has none.

    Raises:
        FileError: a table cannot be read.
    """
    for table in recorded_tables():
        if (table.problem, table.device.name) == (problem, H200.name):
            return {BEST_OF_TABLE: Table.read(table.path).optimum[0]}
    return {}


def proven(problem: Problem) -> list[KernelConfig]:
    """What was best for such problems in runs before: by the number of tiles, what copies first stages, and for a short
    K what stores fast; of a large product nothing.
    """
    if problem.flops > SOON_ENOUGH:
        return []
    tiles = -(-problem.m // 64) * -(-problem.n // 64)
    once = ONCE_B if problem.m <= 64 else ONCE_A if problem.n <= 64 else {}
    others = SHARED_K if tiles <= FEW_TILES and problem.k >= 512 else MANY_TILES
    short = SHORT_K if tiles > FEW_TILES and problem.k <= 128 else ()
    return [*short, *(config.swapped(**once) for config in (*WHOLE_K, *others))]
