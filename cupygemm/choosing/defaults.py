"""Configs for problems that nobody has tuned: plain choices by size, in place of a fallback that is far slower."""

from __future__ import annotations

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem

# By the number of their tiles: large ones that two consumers take by turns, and small ones.
_BY_TURNS = KernelConfig(128, 128, 64, 6, 2, False, 1, 1, True, 4, 40, 1, 2, ping_pong=True, l2_promotion=128)
_SMALL = KernelConfig(64, 64, 64, 8, 1, False, 1, 1, True, 4, 40, 1, 1, l2_promotion=128)


def default_config(problem: Problem, device: DeviceSpec) -> KernelConfig | None:
    """A config that computes a problem reasonably on a device; None where none of these is legal.

    For operands and results that `matmul` has own kernels for there is one on every Hopper GPU.
    """
    spec = KernelSpec.of(problem)
    tiles = -(-problem.m // _BY_TURNS.block_m) * -(-problem.n // _BY_TURNS.block_n) * problem.batch
    for config in (_BY_TURNS, _SMALL) if tiles >= device.sm_count else (_SMALL,):
        for stages in range(config.stages, 1, -1):
            fitting = config.swapped(stages=stages)
            if not spec.out_aligned:
                fitting = fitting.swapped(store_stages=0)
            if illegal_reason(fitting, spec, device) is None:
                return fitting
    return None
