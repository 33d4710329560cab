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
        [10.3728, 11.5205, 10.3728, 7.3576, 10.1735, 19.5267, 10.4749],
        [
            (12, 0, 0, 0, 0),
            (5, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, -1, 0, 0),
            (12, 0, -1, 0, 4),
            (6, 0, 0, 0, 0),
            (8, 0, 0, 0, 0),
        ],
    ),
    (
        "512x512x512",
        "nn",
        [3.7047, 5.3312, 3.7047, 3.8683, 4.5614, 5.0023, 3.8541],
        [
            (12, 0, 0, 0, 0),
            (5, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (6, 0, 0, 0, 0),
            (8, 0, 0, 0, 0),
        ],
    ),
    (
        "100x3072x768",
        "nt",
        [4.3563, 5.814, 4.3563, 6.3331, 5.5463, 6.0799, 4.5654],
        [
            (12, 0, -1, 0, 0),
            (5, -1, 0, 0, 0),
            (12, 0, -1, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, -1, 0, 0),
            (6, -1, 0, 0, 0),
            (8, -1, 0, 0, 0),
        ],
    ),
    (
        "2048x2048x4096",
        "nn",
        [82.5991, 66.4381, 85.0608, 199.4185, 315.5554, 64.228, 81.4072],
        [
            (12, 0, 0, 0, 0),
            (5, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (12, 0, 0, 0, 0),
            (6, 0, 0, 0, 0),
            (8, 0, 0, 0, 0),
        ],
    ),
    (
        "8192x8192x512",
        "nn",
        [167.4653, 269.2951, 211.073, 404.2596, 629.7283, 101.8795, 151.5509],
        [
            (12, 0, 0, -1, 0),
            (5, 0, 0, -1, 0),
            (12, 0, 0, -1, 0),
            (12, 0, 0, -1, 0),
            (12, 0, 0, -1, 0),
            (6, 0, 0, -1, 0),
            (8, 0, 0, -1, 0),
        ],
    ),
    (
        "1x4096x14336",
        "nn",
        [33.6516, 39.219, 33.6516, 33.4021, 74.7373, 75.533, 35.3431],
        [
            (12, 0, -1, 0, 4),
            (5, -1, 0, 0, 0),
            (12, 0, -1, 0, 4),
            (12, -1, 0, 0, 0),
            (12, 0, -1, 0, 4),
            (6, -1, 0, 0, 0),
            (8, -1, 0, 0, 0),
        ],
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
