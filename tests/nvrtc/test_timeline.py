"""The stamps of bench/timeline.py: their places in the kernel's source are still there, and it still compiles."""

from __future__ import annotations

import numpy as np
import pytest

from bench import timeline
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels import compiler
from cupygemm.problem import Problem

pytestmark = pytest.mark.nvrtc

SPEC = KernelSpec.of(Problem(2048, 2048, 4096))
DIVIDED = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=6, wait_depth=1, ping_pong=True, cluster_m=2)

SHARED = DIVIDED.swapped(block_n=128, cluster_k=4)
COPYING = DIVIDED.swapped(block_m=64, block_n=64, consumers=1, wait_depth=1, store_stages=1, cp_async_stages=2)
CONFIGS = {
    "rows divided": DIVIDED,
    "by turns": TURNS,
    "K divided": SHARED,
    "copied": COPYING,
    "copied, K divided, swapped": COPYING.swapped(cluster_k=8, swap_ab=True),
}


def test_cycles_are_counted_from_a_ctas_entry_to_the_last_consumer() -> None:
    stamps = np.zeros((2, len(timeline.STAMPS)), np.int64)
    for name, values in {
        "entry": (100, 200),
        "entry_ns": (7, 8),
        "first_load": (150, 260),
        "end_ns0": (90, 95),
    }.items():
        stamps[:, timeline.STAMPS.index(name)] = values
    stamps[:, timeline.STAMPS.index("read0")] = 900, 950
    stamps[:, timeline.STAMPS.index("read1")] = 1000, 940
    found = timeline._latest(stamps)
    assert found["first_load"].tolist() == [50, 60]
    assert found["read"].tolist() == [900, 750]
    assert (found["entry_ns"].tolist(), found["end_ns"].tolist()) == ([7, 8], [90, 95])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_every_variant_compiles_as_asked(config: KernelConfig) -> None:
    for variant in timeline.variants(config):
        made = timeline.compiled(SPEC, config, variant)
        assert compiler.advisories(made.log) == (), variant
        assert "0 bytes spill stores, 0 bytes spill loads" in made.log, variant
