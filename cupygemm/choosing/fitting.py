"""Kernels for problems that nobody has tuned: few, so that a first call seldom has to compile, and how each is told.

A kernel of the portfolio is a config whose fields told at launch do not count: `fitted` says what a problem wants of
them. The rules are those that the recorded tables agree on (H200, 2026-11); docs/unseen.md has the figures.
"""

from __future__ import annotations

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.legality import illegal_reason, unswappable_reason
from cupygemm.problem import Problem

LEAST_STAGES = 2
FEW_TILES = 2
"""Tiles across an operand that is streamed: so many are computed at the same time, and its lines are not read again."""
PREFETCHED = 4
"""Stages of a first tile, where B is read once."""


def fitted(kernel: KernelConfig, problem: Problem, device: DeviceSpec) -> KernelConfig | None:
    """The config with which a kernel of the portfolio computes a problem; None where none of its kind is legal.

    Rows that TMA cannot store are stored from registers, and stages are given up until shared memory suffices: then
    it is another kernel, which is compiled for itself.
    """
    spec = KernelSpec.of(problem)
    if kernel.swap_ab and unswappable_reason(spec) is not None:
        return None
    told = told_at_launch(kernel if spec.out_aligned else kernel.swapped(store_stages=0), problem, device)
    for stages in range(told.stages, LEAST_STAGES - 1, -1):
        config = told.swapped(stages=stages, cp_async_stages=min(told.cp_async_stages, stages))
        if illegal_reason(config, spec, device) is None:
            return config
    return None


def told_at_launch(kernel: KernelConfig, problem: Problem, device: DeviceSpec) -> KernelConfig:
    """The kernel with the order of tiles, L2 hints and prefetch that suit the sizes of a problem.

    An operand whose other side has a tile or two is read once, so that the L2 need not keep it; nor does it keep a
    result of half its size. What copies its first stages has neither such a hint nor a prefetch; with A and B swapped
    prefetch has hardly been measured, and there is none.
    """
    copies = kernel.cp_async_stages > 0
    m, n = kernel.as_computed(problem.m, problem.n)
    streams_b = m <= FEW_TILES * kernel.block_m * kernel.cluster_m
    streams_a = n <= FEW_TILES * kernel.block_n * kernel.cluster_n
    in_one_tile = m <= kernel.block_m * kernel.cluster_m
    written = problem.m * problem.n * problem.batch * DTYPES[problem.out_dtype].bytes
    return kernel.swapped(
        raster_along_n=True,
        group=4,
        l2_promotion=128,
        keep_a=-1 if streams_a and not streams_b else 0,
        keep_b=-1 if streams_b and not streams_a else 0,
        keep_out=-1 if kernel.store_stages and not copies and 2 * written > device.l2_bytes else 0,
        prefetch=PREFETCHED if in_one_tile and not (streams_a or copies or kernel.swap_ab) else 0,
    )
