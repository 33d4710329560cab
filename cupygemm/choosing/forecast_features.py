"""What a forecast goes by: sizes, and what every kernel of a portfolio is estimated to take and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cupygemm.choosing.estimate import Column, Estimate, Kernels
from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import DTYPES
from cupygemm.problem import Problem

STORED_DIRECTLY_A_US = 0.45e6
"""Bytes that are written to rows that TMA cannot store, by all SMs together (H200, 2026-11)."""
UNALIGNED_US, UNALIGNED_STEP_US = 2.2, 0.15
UNALIGNED_FLOPS_A_US, UNALIGNED_BYTES_A_US = 140e6, 3e6
VECTOR_US, VECTOR_STEP_US, VECTOR_BYTES_A_US = 1.8, 0.05, 1.5e6
"""About what cuBLAS reaches where rows are no multiples of 16 bytes, and there with a vector (H200, 2026-11)."""
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
    "cp_async_stages",
    "swap_ab",
)
"""Of a kernel, that are features themselves."""


KERNEL_FEATURES = 12 + len(FIELDS) + 2
"""Columns of `kernel_features`."""


def own_scale(problem: Problem, found: Estimate[Column]) -> Column:
    """Logarithms of what kernels are compared with, [kernels]: estimates, and how slowly rows are stored directly."""
    unaligned = problem.n * DTYPES[problem.out_dtype].bytes % TMA_ALIGNMENT != 0
    written = problem.m * problem.n * DTYPES[problem.out_dtype].bytes if unaligned else 0
    scale: Column = np.log(found.us + written / STORED_DIRECTLY_A_US)
    return scale


def cublas_scale(problem: Problem, found: Estimate[Column]) -> float:
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


def kernel_features(problem: Problem, kernels: Kernels, found: Estimate[Column], chosen: Any) -> Column:
    """Of the chosen kernels, float64 [chosen, features]; the logarithm of the estimate is the first."""
    of = {name: kernels.fields[name][chosen] for name in FIELDS}
    us, ctas, waves, stages = (column[chosen] for column in (found.us, found.ctas, found.waves, found.stages))
    tensor, loading = (waves * stages * cycles[chosen] for cycles in (found.tensor_cycles, found.loading_cycles))
    positive = [us, ctas, waves, stages, tensor, loading, found.way_out_cycles[chosen]]
    return np.concatenate(
        [
            np.log(np.stack(positive, axis=1)),
            np.stack(
                [
                    ctas / found.at_once[chosen] / waves,
                    problem.m / found.rows[chosen],
                    problem.n / found.columns[chosen],
                    problem.k / (stages * of["cluster_k"] * of["block_k"]),
                    found.memory_us / us,
                ],
                axis=1,
            ),
            np.stack([*of.values(), kernels.cluster_size[chosen], of["block_m"] * of["block_n"]], axis=1),
        ],
        axis=1,
    )
