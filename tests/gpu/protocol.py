"""The configs, operands and checks that the GPU tests share."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from cupygemm import driver, verify
from cupygemm.compiler import compile_kernel
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.operands import Operands
from cupygemm.plan import LoadedKernel, Plan
from cupygemm.problem import Problem

SMALL = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, False, 1, 40, 1, 1)
LARGE = KernelConfig(128, 256, 64, 4, 2, False, 2, 1, False, 8, 40, 1, 1)

CONFIGS = {
    "one consumer": SMALL,
    "wide, cluster 2x1": LARGE,
    "wide, cluster 1x2, depth 0": LARGE.swapped(cluster_m=1, cluster_n=2, wait_depth=0, store_stages=2),
    "square, no cluster": LARGE.swapped(block_n=128, cluster_m=1, stages=6, raster_along_n=True, group=4),
    "tall": LARGE.swapped(block_m=256, block_n=128, cluster_m=1, group=1),
    "columns split": LARGE.swapped(block_m=64, split_n=True, cluster_m=1),
    "cluster 2x2": LARGE.swapped(block_n=128, cluster_n=2, stages=5),
    "cluster 4x2, narrow": SMALL.swapped(cluster_m=4, cluster_n=2, block_n=32),
    "three consumers": LARGE.swapped(consumers=3, block_m=192, block_n=128, cluster_m=1, producer_registers=32),
    "n of 8": SMALL.swapped(block_n=8, wait_depth=0),
    "n of 200": LARGE.swapped(block_n=200, stages=3, cluster_m=1),
    "n of 24, deep k": SMALL.swapped(block_n=24, block_k=128, stages=3),
    "direct store": LARGE.swapped(store_stages=0, cluster_m=1),
    "ping-pong": LARGE.swapped(block_m=64, cluster_m=1, ping_pong=True, store_stages=2),
    "ping-pong, two steps of rows, cluster 2x1": LARGE.swapped(block_n=128, ping_pong=True, stages=5),
    "ping-pong of three, direct": LARGE.swapped(
        block_m=64, block_n=128, consumers=3, ping_pong=True, cluster_m=1, producer_registers=32, store_stages=0
    ),
    "two stages": LARGE.swapped(stages=2, block_k=128),
    "four store buffers": LARGE.swapped(stages=3, store_stages=4, cluster_m=1),
    "K in two shares": LARGE.swapped(block_n=128, cluster_m=1, cluster_k=2),
    "K in eight shares": SMALL.swapped(cluster_k=8),
    "K in two shares, cluster 2x2": LARGE.swapped(block_n=128, cluster_n=2, cluster_k=2),
    "K in four shares, two steps of rows, direct": LARGE.swapped(
        block_m=256, block_n=128, cluster_m=1, cluster_k=4, stages=2, store_stages=0
    ),
    "K in three shares, cluster 1x2, unequal parts": SMALL.swapped(cluster_n=2, cluster_k=3, store_stages=0),
    "K in seven shares, some without a part": LARGE.swapped(
        block_n=40, cluster_m=1, cluster_k=7, stages=6, store_stages=0
    ),
    "K in eight shares, two parts": SMALL.swapped(block_n=16, cluster_k=8, store_stages=0),
    "K in three shares, one part empty": SMALL.swapped(block_n=16, cluster_k=3, store_stages=0),
    "L2 hints": LARGE.swapped(l2_promotion=128, keep_a=1, keep_b=-1, keep_out=-1, prefetch=3),
    "prefetch, no cluster": SMALL.swapped(prefetch=16),
}
"""One config for each thing that a kernel can do differently."""

LAYOUTS = ("nn", "nt", "tn", "tt")
DTYPES = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "bfloat16"),
)
"""Of the operands, and of the result."""


def padded(rows: int, columns: int, dtype: str, transposed: bool, fill: Callable[[tuple[int, int]], Any]) -> Any:
    """A [rows, columns] array whose rows (or columns, when transposed) are padded with NaN to 16 bytes."""
    cupy = driver.cupy()
    stored = (columns, rows) if transposed else (rows, columns)
    element = verify.numpy_dtype(dtype)
    per_row = -(-stored[1] * element.itemsize // 16) * 16 // element.itemsize
    whole = cupy.full((stored[0], per_row), float("nan"), dtype=element)
    view = whole[:, : stored[1]]
    view = view.T if transposed else view
    view[...] = fill((rows, columns)).astype(element)
    return view


def operands(problem: Problem, kind: str, seed: int) -> Operands:
    """Operands of a problem with NaN in the padding that aligns their rows, and in the result."""
    rng = driver.cupy().random.default_rng(seed)
    drawn = verify.draw_operands(rng, problem, kind)
    drawn.out.fill(float("nan"))
    return drawn._replace(
        a=padded(problem.m, problem.k, problem.a_dtype, problem.layout[0] == "t", lambda _: drawn.a),
        b=padded(problem.k, problem.n, problem.b_dtype, problem.layout[1] == "t", lambda _: drawn.b),
    )


def fitting(config: KernelConfig, problem: Problem) -> KernelConfig:
    """The config, storing from registers where TMA cannot store the problem's rows."""
    return config if KernelSpec.of(problem).out_aligned else config.swapped(store_stages=0)


def all_pairs() -> set[tuple[KernelSpec, KernelConfig]]:
    """Every legal kernel of `CONFIGS`, `DTYPES` and `LAYOUTS`, for results that TMA can store and for others."""
    pairs = set()
    for config, n, (dtype, out), layout in itertools.product(CONFIGS.values(), (64, 65), DTYPES, LAYOUTS):
        problem = Problem(64, n, 64, a_dtype=dtype, b_dtype=dtype, out_dtype=out, layout=layout)
        spec, adapted = KernelSpec.of(problem), fitting(config, problem)
        if illegal_reason(adapted, spec, H200) is None:
            pairs.add((spec, adapted))
    return pairs


def compile_pair(pair: tuple[KernelSpec, KernelConfig]) -> None:
    compile_kernel(*pair)


@dataclass
class Kernels:
    """Loaded kernels by spec and config, compiled at the first use or ahead."""

    loaded: dict[tuple[KernelSpec, KernelConfig], LoadedKernel] = field(default_factory=dict)

    def ahead(self, pairs: set[tuple[KernelSpec, KernelConfig]]) -> None:
        """Compiles on all cores into the cache."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
            list(pool.map(compile_pair, pairs))

    def plan(self, problem: Problem, config: KernelConfig, max_sms: int | None = None, **options: bool) -> Plan:
        """A plan for the problem, with the config adapted by `fitting` and options of `Plan`."""
        pair = (KernelSpec.of(problem), fitting(config, problem))
        if pair not in self.loaded:
            self.loaded[pair] = LoadedKernel(compile_kernel(*pair))
        return Plan(problem, self.loaded[pair], max_sms, **options)


@dataclass
class Checks:
    """Verifies plans, and counts what was verified."""

    verified: int = 0

    def verify(self, plan: Plan, kinds: tuple[str, ...] = verify.DATA_KINDS, seed: int = 0) -> None:
        """Runs the plan on fresh operands into a poisoned, guarded output; fails the test when it is not right."""
        problem = plan.problem
        for kind in kinds:
            out = verify.GuardedOutput(driver.cupy(), (problem.m, problem.n), problem.out_dtype)
            given = operands(problem, kind, seed)._replace(out=out.array)
            reference = verify.Reference.of(given, problem)
            plan.launch(given)
            verdict = replace(verify.check(out.array, reference), guards_intact=out.intact())
            self.verified += 1
            assert verdict.ok, f"{problem} {kind} grid {plan.grid}: {verdict.detail}"
