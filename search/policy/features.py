"""What a policy that serves many problems sees of one of them and of a config: numbers of like size, by name.

Three kinds. Of the problem and the device: sizes, their ratios, bytes and FLOPs. Of the config: its knobs. Of both:
what `estimates` makes of them, waves of tiles and what is left over of the last, padding, the depth of the pipeline.
The last kind is what carries over: that a config leaves half of the SMs idle means the same whatever the sizes are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from cupygemm.choosing.estimate import DRAM_BYTES_A_US, FIELDS, START_CYCLES, Estimate, Kernels, estimates, one_by_one
from cupygemm.config import KernelConfig, KernelSpec, stage_bytes
from cupygemm.device import H200, DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.problem import Problem

MOST_BEHIND = 4.0
"""log2 of an estimate over the least one, at most: what is sixteen times slower is as bad as what is thirty times."""
CLOSE = 10.0
"""How fast the feature `close` falls: at 7% behind the least estimate it is 1/e."""

BANDWIDTHS = {"H200": 4.8e6, "GH200 480GB": 4.0e6, "H100 PCIe": 2.0e6, "H100 NVL": 3.9e6, "H100": 3.35e6}
"""Bytes a µs of device memory, by what a name contains, from data sheets; of several that fit, the first counts."""

_PROBLEM: dict[str, Callable[[Problem, DeviceSpec], float]] = {
    "log2 m": lambda p, d: math.log2(p.m),
    "log2 n": lambda p, d: math.log2(p.n),
    "log2 k": lambda p, d: math.log2(p.k),
    "log2 m/n": lambda p, d: math.log2(p.m / p.n),
    "log2 flops": lambda p, d: math.log2(p.flops),
    "log2 bytes": lambda p, d: math.log2(p.compulsory_bytes),
    "log2 flops/byte": lambda p, d: math.log2(p.flops / p.compulsory_bytes),
    "share of L2": lambda p, d: min(1.0, p.compulsory_bytes / d.l2_bytes),
    "operand bytes": lambda p, d: DTYPES[p.a_dtype].bytes,
    "result bytes": lambda p, d: DTYPES[p.out_dtype].bytes,
    "bfloat16": lambda p, d: p.a_dtype == "bfloat16",
    "A transposed": lambda p, d: p.layout[0] == "t",
    "B transposed": lambda p, d: p.layout[1] == "t",
    "log2 SMs": lambda p, d: math.log2(d.sm_count / H200.sm_count),
    "log2 clock": lambda p, d: math.log2(d.clock_mhz / H200.clock_mhz),
    "log2 L2": lambda p, d: math.log2(d.l2_bytes / H200.l2_bytes),
    "log2 bandwidth": lambda p, d: math.log2(bandwidth(d) / BANDWIDTHS["H200"]),
}
_CONFIG: dict[str, Callable[[KernelConfig], float]] = {
    "log2 block_m": lambda c: math.log2(c.block_m),
    "log2 block_n": lambda c: math.log2(c.block_n),
    "log2 block_k": lambda c: math.log2(c.block_k),
    "log2 stages": lambda c: math.log2(c.stages),
    "consumers": lambda c: c.consumers,
    "split_n": lambda c: c.split_n,
    "log2 cluster_m": lambda c: math.log2(c.cluster_m),
    "log2 cluster_n": lambda c: math.log2(c.cluster_n),
    "log2 cluster_k": lambda c: math.log2(c.cluster_k),
    "raster_along_n": lambda c: c.raster_along_n,
    "log2 group": lambda c: math.log2(c.group),
    "producer_registers": lambda c: c.producer_registers,
    "wait_depth": lambda c: c.wait_depth,
    "stored directly": lambda c: c.store_stages == 0,
    "one store stage": lambda c: c.store_stages == 1,
    "store_stages": lambda c: c.store_stages,
    "ping_pong": lambda c: c.ping_pong,
    "l2_promotion": lambda c: c.l2_promotion,
    "keep_a": lambda c: c.keep_a,
    "keep_b": lambda c: c.keep_b,
    "keep_out": lambda c: c.keep_out,
    "log2 prefetch": lambda c: math.log2(1 + c.prefetch),
    "log2 copied stages": lambda c: math.log2(1 + c.cp_async_stages),
    "swap_ab": lambda c: c.swap_ab,
}
_BOTH = (
    "behind",
    "close",
    "log2 waves",
    "filled",
    "useful",
    "log2 K stages",
    "log2 K stages/stages",
    "log2 tensor/loading",
    "log2 way out/main loop",
    "shared memory",
    "log2 memory share",
    "start share",
    "A read once",
    "B read once",
)

PROBLEM_FEATURES = tuple(_PROBLEM)
"""Names of what is seen of a problem and a device."""
FEATURES = (*_PROBLEM, *_CONFIG, *_BOTH)
"""Names of the columns of `features`."""
BEHIND = FEATURES.index("behind")
"""Column with log2 of an estimate over the least one, from 0 to `MOST_BEHIND`."""


def bandwidth(device: DeviceSpec) -> float:
    """Bytes that device memory moves a µs; that of an H100 where the name is none that is known."""
    return next((found for name, found in BANDWIDTHS.items() if name in device.name), BANDWIDTHS["H100"])


def problem_features(problem: Problem, device: DeviceSpec) -> NDArray[np.float32]:
    """What is seen of a problem and a device: shape (len(PROBLEM_FEATURES),)."""
    return np.array([feature(problem, device) for feature in _PROBLEM.values()], dtype=np.float32)


def features(
    problem: Problem, device: DeviceSpec, configs: Sequence[KernelConfig], least_us: float | None = None
) -> NDArray[np.float32]:
    """What is seen of configs of a problem: shape (n, len(FEATURES)), finite.

    Args:
        problem, device: what is computed, and where.
        configs: legal for it.
        least_us: the estimate that others are compared with; None for the least of these configs. Which it is moves
            all of them alike.
    """
    # Configs that agree in what an estimate reads share all that is of both.
    keys = list(map(attrgetter(*FIELDS), configs))
    shapes = dict(zip(keys, configs, strict=True))
    each = one_by_one(estimates(problem, Kernels.of(list(shapes.values()), device), device))
    least_us = least_us or min((found.us for found in each), default=1.0)
    both = {
        key: _of_both(problem, device, config, found, least_us)
        for (key, config), found in zip(shapes.items(), each, strict=True)
    }
    seen = problem_features(problem, device).tolist()
    rows = [[*seen, *_of_config(config), *both[key]] for key, config in zip(keys, configs, strict=True)]
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(FEATURES))


@lru_cache(maxsize=16384)
def _of_config(config: KernelConfig) -> tuple[float, ...]:
    return tuple(float(feature(config)) for feature in _CONFIG.values())


def _of_both(
    problem: Problem, device: DeviceSpec, config: KernelConfig, found: Estimate[float], least_us: float
) -> tuple[float, ...]:
    """In the order of `_BOTH`."""
    behind = min(max(math.log2(found.us / least_us), 0.0), MOST_BEHIND)
    m, n = config.as_computed(problem.m, problem.n)
    rows = math.ceil(m / config.block_m) * config.block_m
    columns = math.ceil(n / config.block_n) * config.block_n
    main_loop = found.stages * max(found.tensor_cycles, found.loading_cycles)
    memory_us = found.memory_us * DRAM_BYTES_A_US / bandwidth(device)
    return (
        behind,
        math.exp(-CLOSE * behind),
        math.log2(found.waves),
        found.ctas / (found.waves * found.at_once),
        m * n / (rows * columns),
        math.log2(found.stages),
        math.log2(found.stages / config.stages),
        math.log2(found.tensor_cycles / found.loading_cycles),
        math.log2(found.way_out_cycles / main_loop),
        config.stages * stage_bytes(config, KernelSpec.of(problem)) / device.shared_bytes,
        math.log2(memory_us / found.us),
        START_CYCLES / device.clock_mhz / found.us,
        float(n <= config.block_n * config.cluster_n),
        float(m <= config.block_m * config.cluster_m),
    )
