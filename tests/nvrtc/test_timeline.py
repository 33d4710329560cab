"""The stamps of bench/timeline.py: their places in the kernel's source are still there, and it still compiles."""

from __future__ import annotations

import pytest

from bench import timeline
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels import compiler, kernel_source
from cupygemm.problem import Problem

pytestmark = pytest.mark.nvrtc

SPEC = KernelSpec.of(Problem(2048, 2048, 4096))
DIVIDED = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=6, wait_depth=1, ping_pong=True, cluster_m=2)

SHARED = DIVIDED.swapped(block_n=128, cluster_k=4)


@pytest.mark.parametrize("config", [DIVIDED, TURNS, SHARED], ids=["rows divided", "by turns", "K divided"])
def test_every_variant_compiles_as_asked(config: KernelConfig) -> None:
    for variant in timeline.VARIANTS:
        headers = timeline.instrumented(SPEC, config, variant)
        made = compiler.compile_program(kernel_source.name_expression(SPEC, config), headers)
        assert compiler.advisories(made.log) == (), variant
        assert "0 bytes spill stores, 0 bytes spill loads" in made.log, variant
