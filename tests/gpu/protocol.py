"""The configs, operands and checks that the GPU tests share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.kernels import driver
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.kernels.compiler import compile_kernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Operands
from cupygemm.legality import illegal_reason
from cupygemm.measuring import verify
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
    "one stage copied": SMALL.swapped(cp_async_stages=1),
    "all stages copied, deep k": SMALL.swapped(block_k=128, stages=3, cp_async_stages=3),
    "copied, n of 24, direct": SMALL.swapped(block_n=24, store_stages=0, stages=12, cp_async_stages=5),
    "copied, n of 96, hints": SMALL.swapped(block_n=96, keep_a=1, keep_b=-1, cp_async_stages=2),
    "copied, two consumers, two steps of rows": LARGE.swapped(
        block_m=256, block_n=128, block_k=128, stages=2, cluster_m=1, cp_async_stages=2
    ),
    "copied, columns split": LARGE.swapped(
        block_m=64, block_n=128, split_n=True, cluster_m=1, store_stages=1, cp_async_stages=3
    ),
    "copied, K in eight shares": SMALL.swapped(block_n=16, cluster_k=8, store_stages=0, cp_async_stages=2),
    "copied, K in two shares, staged": SMALL.swapped(cluster_k=2, cp_async_stages=4),
    "copied, K in three shares": LARGE.swapped(
        block_n=200, stages=2, cluster_m=1, cluster_k=3, store_stages=0, cp_async_stages=1
    ),
    "A and B swapped": SMALL.swapped(swap_ab=True),
    "swapped, n of 208": SMALL.swapped(block_n=208, swap_ab=True),
    "swapped, n of 152, stored twice": SMALL.swapped(block_n=152, store_stages=2, swap_ab=True),
    "swapped, n of 24, hints": SMALL.swapped(
        block_n=24, l2_promotion=128, keep_a=-1, keep_b=1, keep_out=-1, prefetch=2, swap_ab=True
    ),
    "swapped, cluster 2x2": LARGE.swapped(block_n=128, cluster_n=2, stages=5, swap_ab=True),
    "swapped, ping-pong, cluster 2x1": LARGE.swapped(
        block_n=144, stages=4, store_stages=2, ping_pong=True, swap_ab=True
    ),
    "swapped, two steps of rows, four store buffers": LARGE.swapped(
        block_m=256, block_n=96, cluster_m=1, stages=2, store_stages=4, swap_ab=True
    ),
    "swapped, columns split": LARGE.swapped(block_m=64, split_n=True, cluster_m=1, swap_ab=True),
    "swapped, K in two shares": LARGE.swapped(block_n=176, cluster_m=1, cluster_k=2, stages=3, swap_ab=True),
    "swapped, copied, n of 8": SMALL.swapped(block_n=8, cp_async_stages=2, swap_ab=True),
    "swapped, copied, two steps of rows": LARGE.swapped(
        block_m=256, block_n=112, cluster_m=1, stages=2, cp_async_stages=2, swap_ab=True
    ),
    "swapped, copied, n of 120, stored twice": SMALL.swapped(block_n=120, cp_async_stages=2, swap_ab=True),
    "swapped, copied, K in three shares": LARGE.swapped(
        block_n=120, cluster_m=1, cluster_k=3, cp_async_stages=1, swap_ab=True
    ),
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


EPILOGUES = (
    "scaled",
    "bias_n",
    "bias_m+relu",
    "bias_n+gelu",
    "bias_n+gelu_tanh",
    "silu",
    "residual",
    "bias_n+residual+silu",
    "bias_m+residual+gelu_tanh",
)
"""Every term, alone and with others."""
STACKED = (
    "one consumer",
    "wide, cluster 2x1",
    "cluster 2x2",
    "direct store",
    "ping-pong",
    "four store buffers",
    "columns split",
    "K in eight shares",
    "K in three shares, cluster 1x2, unequal parts",
    "L2 hints",
    "prefetch, no cluster",
    "one stage copied",
    "copied, K in eight shares",
    "A and B swapped",
    "swapped, copied, n of 8",
    "swapped, copied, two steps of rows",
)
"""One config for each way in which a kernel reaches the matrices of a stack."""
FUSED = (
    "one consumer",
    "direct store",
    "ping-pong",
    "K in eight shares",
    "K in three shares, cluster 1x2, unequal parts",
    "one stage copied",
    "copied, n of 24, direct",
    "A and B swapped",
    "swapped, copied, two steps of rows",
    "swapped, copied, K in three shares",
)
"""One for each way from the accumulators to the result."""


def stacked_problems(m: int, n: int, k: int, batch: int) -> dict[str, list[Problem]]:
    """Batched problems of a size by config: two layouts of each, and a few of the others and of other dtypes."""
    mixed = {"a_dtype": "bfloat16", "b_dtype": "bfloat16", "out_dtype": "float32"}
    found = {name: [Problem(m, n, k, batch, layout=layout) for layout in ("nn", "tt")] for name in STACKED}
    for name in STACKED[:3]:
        found[name] += [Problem(m, n, k, batch, layout=layout) for layout in ("nt", "tn")]
        found[name].append(Problem(m, n, k, batch, **mixed))
    return found


def fused_problems(m: int, n: int, k: int) -> dict[str, list[Problem]]:
    """Problems with epilogues by config: each epilogue that it may have, and a few of a batch and of other dtypes."""
    mixed = partial(Problem, m, n, k, a_dtype="bfloat16", b_dtype="bfloat16")
    found = {
        name: [problem for epilogue in EPILOGUES if is_legal(problem := Problem(m, n, k, epilogue=epilogue), name)]
        for name in FUSED
    }
    for name in FUSED[1:3]:
        for epilogue in EPILOGUES[-3:]:
            found[name].append(Problem(m, n, k, 3, epilogue=epilogue))
            found[name].append(mixed(out_dtype="bfloat16", epilogue=epilogue))
            found[name].append(mixed(out_dtype="float32", epilogue=epilogue))
    return found


def is_legal(problem: Problem, name: str) -> bool:
    """Whether one of `CONFIGS`, adapted by `fitting`, may compute a problem."""
    return illegal_reason(fitting(CONFIGS[name], problem), KernelSpec.of(problem), H200) is None


def variant_pairs() -> set[tuple[KernelSpec, KernelConfig]]:
    """The kernels of both, for results that TMA can store and for others."""
    return {
        (KernelSpec.of(problem), fitting(CONFIGS[name], problem))
        for n in (64, 65)
        for kind in (stacked_problems(64, n, 64, 3), fused_problems(64, n, 64))
        for name, problems in kind.items()
        for problem in problems
    }


def operands(problem: Problem, kind: str, seed: int) -> Operands:
    """Operands of a problem with NaN in the padding that aligns their rows, and in the result.

    They are there when it returns: a test may use them on another stream than the current one.
    """
    cupy = driver.cupy()
    drawn = verify.draw_operands(cupy.random.default_rng(seed), problem, kind)
    drawn.out.fill(float("nan"))
    cupy.cuda.get_current_stream().synchronize()
    return drawn


def fitting(config: KernelConfig, problem: Problem) -> KernelConfig:
    """The config; where TMA cannot store the problem's rows, storing from registers and without `swap_ab`."""
    return config if KernelSpec.of(problem).out_aligned else config.swapped(store_stages=0, swap_ab=False)


def all_pairs() -> set[tuple[KernelSpec, KernelConfig]]:
    """Every legal kernel of `CONFIGS`, `DTYPES` and `LAYOUTS`, for results that TMA can store and for others."""
    pairs = set()
    for config, n, (dtype, out), layout in itertools.product(CONFIGS.values(), (64, 65), DTYPES, LAYOUTS):
        problem = Problem(64, n, 64, a_dtype=dtype, b_dtype=dtype, out_dtype=out, layout=layout)
        spec, adapted = KernelSpec.of(problem), fitting(config, problem)
        if illegal_reason(adapted, spec, H200) is None:
            pairs.add((spec, adapted))
    return pairs


@dataclass
class Kernels:
    """Loaded kernels by spec and config, compiled at the first use or ahead."""

    loaded: dict[tuple[KernelSpec, KernelConfig], LoadedKernel] = field(default_factory=dict)

    def ahead(self, pairs: set[tuple[KernelSpec, KernelConfig]]) -> None:
        """Compiles on all cores into the cache."""
        compile_ahead(pairs)  # what fails there, fails again in the test that needs it

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
            out = verify.GuardedOutput(driver.cupy(), problem.matrix(problem.m, problem.n), problem.out_dtype)
            given = operands(problem, kind, seed)._replace(out=out.array)
            reference = verify.Reference.of(given, problem)
            plan.launch(given)
            verdict = replace(verify.check(out.array, reference), guards_intact=out.intact())
            self.verified += 1
            assert verdict.ok, f"{problem} {kind} grid {plan.grid}: {verdict.detail}"
