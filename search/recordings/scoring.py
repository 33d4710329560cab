"""How good a search was: against chance, whose expectation on a recorded table is exact.

After k of N points in random order the least time is the i-th smallest with probability C(N-i, k-1) / C(N, k): the
other k-1 points are among the N-i that are slower. So E[best of k] = sum over i of f(i) · C(N-i, k-1) / C(N, k), with
f sorted and i from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cupygemm.search.recordings.table import Table


def expected_best(times_us: Sequence[float], count: int) -> float:
    """The expected least of `count` times drawn without replacement.

    Args:
        times_us: of all points; infinite for one that failed, which takes a draw. The expectation is then over the
            draws in which not all failed.
        count: from 1 to the number of points.
    """
    ordered = np.sort(np.asarray(times_us, dtype=float))
    total, expected, collected, probability = len(ordered), 0.0, 0.0, count / len(ordered)
    for i, time_us in enumerate(ordered[: total - count + 1]):
        if not np.isfinite(time_us):
            break
        expected += probability * time_us
        collected += probability
        # C(N-i-1, k-1) / C(N-i, k-1) for the next smallest
        probability *= (total - i - count) / max(total - i - 1, 1)
    return expected / collected if collected else math.inf


def times_of(table: Table) -> list[float]:
    """The times of all points, µs; infinite where a point failed."""
    return [math.inf if us is None else us for us in table.times_us.values()]


def score(found_us: float, expected_us: float, optimum_us: float) -> float:
    """(R - F) / (R - f*): 0 is as good as chance, 1 the optimum; 1 where chance finds the optimum itself.

    Args:
        found_us: F, what the strategy found.
        expected_us: R, what chance finds with as many evaluations.
        optimum_us: f*.
    """
    room = expected_us - optimum_us
    return 1.0 if room <= 0 else (expected_us - found_us) / room
