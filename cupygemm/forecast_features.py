"""What a forecast goes by: waves of tiles, bytes and latencies of every kernel of a portfolio at once, and sizes.

`estimates` is search/estimate.py for all kernels in one go, since a decision has less than a millisecond; a test holds
the two together. Fields told at launch have no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cupygemm.config import MMA_M, TMA_ALIGNMENT, KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.problem import Problem

Column = NDArray[np.float64]

START_CYCLES, WAY_OUT_CYCLES, LATENCY_CYCLES = 4600, 500, 1500
SM_BYTES_A_CYCLE, L2_BYTES_A_CYCLE, DRAM_BYTES_A_US = 72, 4300, 4.2e6
GPCS, IN_STEP = 8, 1.08
STORED_BYTES_A_CYCLE, STORED_DIRECTLY_A_CYCLE = 32, 12
EXCHANGE_CYCLES, EXCHANGED_BYTES_A_CYCLE = 700, 12
HIDDEN_BY_TURNS, HIDDEN, NOT_OVERLAPPED = 0.9, 0.2, 0.2
HEATING_CYCLES, SUSTAINED_CLOCK = 60000, 0.76
"""As in search/estimate.py, which says what they are."""
STORED_DIRECTLY_A_US = 0.45e6
"""Bytes that are written to rows that TMA cannot store, by all SMs together (H200, 2026-11)."""
UNALIGNED_US, UNALIGNED_STEP_US = 2.2, 0.15
UNALIGNED_FLOPS_A_US, UNALIGNED_BYTES_A_US = 140e6, 3e6
VECTOR_US, VECTOR_STEP_US, VECTOR_BYTES_A_US = 1.8, 0.05, 1.5e6
"""About what cuBLAS reaches where rows are no multiples of 16 bytes, and there with a vector (H200, 2026-11)."""
SLAB = 64
"""Elements of 16 bits in a swizzled row of shared memory."""
ITEM_BYTES = 2
FIELDS = (
    "block_m",
    "block_n",
    "block_k",
    "stages",
    "consumers",
    "ping_pong",
    "cluster_m",
    "cluster_n",
    "cluster_k",
    "store_stages",
)
"""Of a kernel, that are features themselves."""


KERNEL_FEATURES = 12 + len(FIELDS) + 2
"""Columns of `kernel_features`."""


class Kernels(NamedTuple):
    """Fields of kernels as columns, float64 [kernels], and what follows from them alone.

    Attributes:
        fields: by name, those of `FIELDS`.
        table: the same, [kernels, fields], with the CTAs of a cluster and the elements of a tile behind them.
        at_once: CTAs that are computed at the same time.
        tensor: cycles of a stage.
    """

    fields: dict[str, Column]
    table: Column
    at_once: Column
    tensor: Column

    @classmethod
    def of(cls, kernels: Sequence[KernelConfig], device: DeviceSpec) -> Kernels:
        """The columns of kernels on a device."""
        fields = {name: np.array([float(getattr(kernel, name)) for kernel in kernels]) for name in FIELDS}
        sizes = np.array([kernel.cluster_size for kernel in kernels], np.float64)
        table = np.stack([*fields.values(), sizes, fields["block_m"] * fields["block_n"]], axis=1)
        at_once = np.array([device.clusters_at_once(k.cluster_size) * k.cluster_size for k in kernels], np.float64)
        tensor = np.array([_tensor_cycles(kernel) for kernel in kernels])
        return cls(fields, table, at_once, tensor)


def _tensor_cycles(config: KernelConfig) -> float:
    columns = config.consumer_n
    wgmmas = config.block_k / 16 * (config.block_m / MMA_M) * (config.block_n / columns)
    return wgmmas * max(columns / 2, 16 + columns / 4)


class Estimates(NamedTuple):
    """Of each kernel, float64 [kernels]: as `search.estimate.Estimate`, and columns that the features take."""

    us: Column
    ctas: Column
    waves: Column
    at_once: Column
    stages: Column
    tensor: Column
    loading: Column
    way_out: Column
    memory_us: float
    rows: Column
    columns: Column


def estimates(problem: Problem, kernels: Kernels, device: DeviceSpec) -> Estimates:
    """About what a launch of each kernel takes, told at launch whatever suits it."""
    of = kernels.fields
    out_bytes = DTYPES[problem.out_dtype].bytes
    cluster_rows = np.ceil(problem.m / (of["block_m"] * of["cluster_m"]))
    cluster_columns = np.ceil(problem.n / (of["block_n"] * of["cluster_n"]))
    ctas = cluster_rows * cluster_columns * of["cluster_m"] * of["cluster_n"] * of["cluster_k"] * problem.batch
    waves = np.ceil(ctas / kernels.at_once)
    stages = np.ceil(np.ceil(problem.k / of["block_k"]) / of["cluster_k"])
    loading = _loading_cycles(problem, of, np.minimum(ctas, kernels.at_once))
    tile = of["block_m"] * of["block_n"]
    buffered = of["store_stages"] > 0 if problem.n * out_bytes % 16 == 0 else np.zeros(len(ctas), bool)
    stored = tile * out_bytes / of["cluster_k"]
    way_out = WAY_OUT_CYCLES + stored / np.where(buffered, STORED_BYTES_A_CYCLE, STORED_DIRECTLY_A_CYCLE)
    sent = tile * 4 * (of["cluster_k"] - 1) / of["cluster_k"]
    way_out += np.where(of["cluster_k"] > 1, EXCHANGE_CYCLES + sent / EXCHANGED_BYTES_A_CYCLE, 0.0)
    shown = 1 + (waves - 1) * (1 - np.where(of["ping_pong"] > 0, HIDDEN_BY_TURNS, HIDDEN))
    cycles = waves * stages * np.maximum(kernels.tensor, loading) + shown * way_out
    heat = np.minimum(1.0, waves * stages * kernels.tensor / HEATING_CYCLES)
    busy_us = cycles / (device.clock_mhz * (1 - (1 - SUSTAINED_CLOCK) * heat))
    memory_us = problem.compulsory_bytes / DRAM_BYTES_A_US
    longer, shorter = np.maximum(busy_us, memory_us), np.minimum(busy_us, memory_us)
    us = START_CYCLES / device.clock_mhz + longer + NOT_OVERLAPPED * shorter
    rows, columns = cluster_rows * of["block_m"] * of["cluster_m"], cluster_columns * of["block_n"] * of["cluster_n"]
    return Estimates(
        us, ctas, waves, kernels.at_once, stages, kernels.tensor, loading, way_out, memory_us, rows, columns
    )


def _loading_cycles(problem: Problem, of: dict[str, Column], ctas: Column) -> Column:
    a_rows, b_rows = of["block_m"], of["block_n"]
    if problem.layout[0] == "n":
        a_rows = np.where(of["cluster_n"] == 1, np.minimum(a_rows, problem.m), a_rows)
    else:
        a_rows = np.ceil(a_rows / SLAB) * SLAB
    if problem.layout[1] == "t":
        b_rows = np.where(of["cluster_m"] == 1, np.minimum(b_rows, problem.n), b_rows)
    else:
        b_rows = np.ceil(b_rows / SLAB) * SLAB
    a_bytes, b_bytes = a_rows * of["block_k"] * ITEM_BYTES, b_rows * of["block_k"] * ITEM_BYTES
    rows, columns = np.ceil(problem.m / of["block_m"]), np.ceil(problem.n / of["block_n"])
    asked = a_bytes * _asked(columns, of["cluster_n"]) + b_bytes * _asked(rows, of["cluster_m"])
    in_step = np.where(of["cluster_m"] * of["cluster_n"] > 1, IN_STEP, 1.0)
    own, everybody = (a_bytes + b_bytes) / SM_BYTES_A_CYCLE, ctas * asked / L2_BYTES_A_CYCLE
    found: Column = in_step * np.maximum(np.maximum(own, everybody), LATENCY_CYCLES / of["stages"])
    return found


def _asked(sharers: Column, peers: Column) -> Column:
    found: Column = GPCS * (1 - (1 - 1 / GPCS) ** np.ceil(sharers / peers)) / sharers
    return found


def own_scale(problem: Problem, found: Estimates) -> Column:
    """Logarithms of what kernels are compared with, [kernels]: estimates, and how slowly rows are stored directly."""
    unaligned = problem.n * DTYPES[problem.out_dtype].bytes % TMA_ALIGNMENT != 0
    written = problem.m * problem.n * DTYPES[problem.out_dtype].bytes if unaligned else 0
    scale: Column = np.log(found.us + written / STORED_DIRECTLY_A_US)
    return scale


def cublas_scale(problem: Problem, found: Estimates) -> float:
    """The logarithm of what cuBLAS is compared with: the least estimate, or where rows are not aligned another."""
    if all(row * ITEM_BYTES % TMA_ALIGNMENT == 0 for row in operand_rows(problem)):
        return math.log(found.us.min())
    steps = problem.k**0.5
    if 1 in (problem.m, problem.n):
        return math.log(VECTOR_US + problem.compulsory_bytes / VECTOR_BYTES_A_US + VECTOR_STEP_US * steps)
    bytes_us = problem.compulsory_bytes / UNALIGNED_BYTES_A_US
    return math.log(UNALIGNED_US + problem.flops / UNALIGNED_FLOPS_A_US + bytes_us + UNALIGNED_STEP_US * steps)


def operand_rows(problem: Problem) -> tuple[int, int]:
    """Elements of a row of A and of B as they lie."""
    by_rows = problem.k if problem.layout[0] == "n" else problem.m
    return by_rows, problem.n if problem.layout[1] == "n" else problem.k


def problem_features(problem: Problem) -> list[float]:
    """Of the product alone: sizes, layout, dtype, and how rows of contiguous operands are aligned."""
    m, n, k = problem.m, problem.n, problem.k
    row_a, row_b = operand_rows(problem)
    sizes = (m, n, k, m * n, row_a, row_b, min(m, n), max(m, n), problem.flops, problem.compulsory_bytes)
    return [
        *(math.log(size) for size in sizes),
        float(problem.layout[0] == "t"),
        float(problem.layout[1] == "t"),
        float(problem.a_dtype == "bfloat16"),
        float(math.gcd(row_a, 8)),
        float(math.gcd(row_b, 8)),
        float(math.gcd(n, 64)),
        float(math.gcd(k, 64)),
    ]


def kernel_features(problem: Problem, kernels: Kernels, found: Estimates, chosen: Any) -> Column:
    """Of the chosen kernels, float64 [chosen, features]; the logarithm of the estimate is the first."""
    of = {name: column[chosen] for name, column in kernels.fields.items()}
    us, ctas, waves, at_once, stages, tensor, loading, way_out = (column[chosen] for column in found[:8])
    positive = [us, ctas, waves, stages, waves * stages * tensor, waves * stages * loading, way_out]
    return np.concatenate(
        [
            np.log(np.stack(positive, axis=1)),
            np.stack(
                [
                    ctas / at_once / waves,
                    problem.m / found.rows[chosen],
                    problem.n / found.columns[chosen],
                    problem.k / (stages * of["cluster_k"] * of["block_k"]),
                    found.memory_us / us,
                ],
                axis=1,
            ),
            kernels.table[chosen],
        ],
        axis=1,
    )
