"""What is timed, how often and how long: graphs and rounds, and what one interleaved run comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from cupygemm.measurement import paired_cost
from cupygemm.measuring.telemetry import Reading
from cupygemm.problem import Problem

CUBLAS, CUBLASLT = "cublas", "cublaslt"
"""Names of the baselines."""
GRAPH_US = 300.0
"""What a graph lasts at least where `good_us` is right, and two thirds of it at the least: long beside a graph launch,
which takes about 10 µs."""
MAX_SETS = 200
"""Most operand sets. Where so many are still smaller than twice the L2, each launch has a set of its own."""
SLOW_RATIO = 3.0
"""A candidate so many times slower than cuBLAS in its first rounds is not timed further."""


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        trial_rounds: rounds after which a hopeless candidate is given up.
        rounds: all rounds, the first ones included, which do not count where there is a warm-up after them.
        warm_us: how long the graphs take turns before they are timed: until the clock has become what they make it.
    """

    trial_rounds: int
    rounds: int
    warm_us: float = 0.0


QUICK = Effort(trial_rounds=2, rounds=10)
"""For a search: some 10 ms for a 50 µs kernel and its baseline."""
THOROUGH = Effort(trial_rounds=10, rounds=70, warm_us=500_000.0)
"""For a winner, and for everything that is reported."""
HEAT = Effort(trial_rounds=10, rounds=30, warm_us=500_000.0)
"""To choose who stays in a race."""
LAST = 2
"""Candidates that a race does not halve any more: they are timed with `THOROUGH`."""


@dataclass
class Timing:
    """One interleaved run.

    Attributes:
        samples_us: by name, GPU time of one launch, µs, one a round in the order taken.
        reading: clock and power in the middle of it; of blocks, those of the first graph's last one.
        readings: of blocks, by name, those in each graph's last one.
    """

    samples_us: dict[str, list[float]]
    reading: Reading = field(default_factory=Reading)
    readings: dict[str, Reading] = field(default_factory=dict)

    def median_us(self, name: str) -> float | None:
        """Median of one graph's samples; None where it was not timed."""
        samples = self.samples_us.get(name)
        return median(samples) if samples else None


def good_us(problem: Problem) -> float:
    """About what a very good kernel takes on an H200, µs; it only sizes graphs.

    880 TFLOP/s is WGMMA's sustained rate in 16 bits, 4.3 TB/s that of a copy, 2.5 µs about what a small product takes:
    1.6 for 64x64x64, 3.1 and 3.2 for 512x512x512 and 64x64x4096 (H200, 2026-11).
    """
    return max(problem.flops / 880e6, problem.compulsory_bytes / 4.3e6) + 2.5


def num_sets(problem: Problem, l2_bytes: int) -> int:
    """Operand sets whose bytes are at least twice the L2, or as many as there may be."""
    return min(MAX_SETS, math.ceil(2 * l2_bytes / problem.compulsory_bytes))


def num_launches(problem: Problem, sets: int) -> int:
    """Launches of a graph: every set equally often, and no less than `GRAPH_US`."""
    return sets * math.ceil(GRAPH_US / (sets * good_us(problem)))


def is_hopeless(timing: Timing, names: Sequence[str]) -> bool:
    """Whether cuBLAS was timed and every candidate is far slower."""
    baseline = timing.median_us(CUBLAS)
    if baseline is None or not names:
        return False
    return all(median(timing.samples_us[name]) > SLOW_RATIO * baseline for name in names)


def faster_half(timing: Timing, names: Sequence[str]) -> list[str]:
    """The faster half of a heat's candidates, in the order given; of an odd number the larger half."""
    samples, baseline = timing.samples_us, timing.samples_us.get(CUBLAS, ())
    ordered = sorted(names, key=lambda name: paired_cost(samples[name], baseline))
    kept = set(ordered[: math.ceil(len(ordered) / 2)])
    return [name for name in names if name in kept]
