"""The estimate and what kernels are told, held to what the shipped policy and forecast have learnt on.

Who changes them on purpose trains both anew (`cupygemm train`, `python -m bench.ship_forecast`), and then puts the new
figures here: nothing else would notice that the two go by other numbers than they were taught.
"""

from __future__ import annotations

import pytest

from bench.portfolio import read_kernels
from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.fitting import fitted
from cupygemm.device import H200
from cupygemm.problem import Problem

EVERY = 7
"""Kernel of the portfolio."""
LEARNT_ON = (
    (
        "64x64x4096",
        "nn",
        [10.3728, 7.1449, 4.065, 41.4577, 5.3311, 4.065],
        [(12, 0, 0, 0, 0), (6, 0, 0, 0, 0), (12, 0, -1, 0, 4), (4, 0, 0, 0, 0), (8, 0, 0, 0, 0), (4, 0, -1, 0, 4)],
    ),
    (
        "512x512x512",
        "nn",
        [3.7047, 4.0638, 15.7518, 7.3169, 8.0944, 17.9224],
        [(12, 0, 0, 0, 0), (6, 0, 0, 0, 0), (12, 0, 0, 0, 0), (4, 0, 0, 0, 0), (8, 0, 0, 0, 0), (4, 0, 0, 0, 0)],
    ),
    (
        "100x3072x768",
        "nt",
        [4.3563, 6.1165, 22.7768, 9.4684, 10.2821, 23.9861],
        [(12, 0, -1, 0, 0), (6, 0, -1, 0, 0), (12, 0, -1, 0, 0), (4, 0, -1, 0, 4), (8, 0, -1, 0, 4), (4, 0, -1, 0, 0)],
    ),
    (
        "2048x2048x4096",
        "nn",
        [82.5991, 99.1153, 557.4105, 83.2769, 138.2954, 557.4105],
        [(12, 0, 0, 0, 0), (6, 0, 0, 0, 0), (12, 0, 0, 0, 0), (4, 0, 0, 0, 0), (8, 0, 0, 0, 0), (4, 0, 0, 0, 0)],
    ),
    (
        "8192x8192x512",
        "nn",
        [167.4653, 426.5604, 4201.8591, 117.4927, 1227.5074, 4862.6897],
        [(12, 0, 0, -1, 0), (6, 0, 0, -1, 0), (12, 0, 0, 0, 0), (4, 0, 0, -1, 0), (8, 0, 0, 0, 0), (4, 0, 0, 0, 0)],
    ),
    (
        "1x4096x14336",
        "nn",
        [33.6516, 33.4418, 90.6973, 142.8164, 38.3581, 90.6973],
        [(12, 0, -1, 0, 4), (6, 0, -1, 0, 4), (12, 0, -1, 0, 4), (4, 0, -1, 0, 4), (8, 0, -1, 0, 4), (4, 0, -1, 0, 4)],
    ),
)
"""Shape, layout, µs of each kernel, and its stages, keep_a, keep_b, keep_out and prefetch."""


@pytest.mark.parametrize(("shape", "layout", "us", "told"), LEARNT_ON, ids=[row[0] for row in LEARNT_ON])
def test_what_was_learnt_on_is_what_there_is(
    shape: str, layout: str, us: list[float], told: list[tuple[int, ...]]
) -> None:
    problem = Problem(*map(int, shape.split("x")), layout=layout)
    found = [config for kernel in read_kernels()[::EVERY] if (config := fitted(kernel, problem, H200)) is not None]
    assert estimated_us(problem, found, H200) == pytest.approx(us, rel=1e-4)
    assert [(c.stages, c.keep_a, c.keep_b, c.keep_out, c.prefetch) for c in found] == told
