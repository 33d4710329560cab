"""The score of a search against chance."""

from __future__ import annotations

import itertools
import math
from statistics import mean

import numpy as np
import pytest

from cupygemm.search.recordings.scoring import expected_best, score

TIMES = [5.0, 3.0, 8.0, 4.0, 9.0]


@pytest.mark.parametrize("count", range(1, 6))
def test_the_expectation_is_the_mean_over_all_draws(count):
    by_hand = mean(min(draw) for draw in itertools.combinations(TIMES, count))
    assert expected_best(TIMES, count) == pytest.approx(by_hand)


def test_a_failed_point_takes_a_draw():
    # Of the pairs of {2, inf, 4}: 2, 2 and 4.
    assert expected_best([2.0, float("inf"), 4.0], 2) == pytest.approx((2 + 2 + 4) / 3)


def test_chance_finds_the_optimum_where_it_draws_all():
    found = [expected_best(TIMES, count) for count in range(1, len(TIMES) + 1)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(min(TIMES))


@pytest.mark.parametrize(("found", "expected"), [(10.0, 0.0), (6.0, 1.0), (8.0, 0.5), (12.0, -0.5)])
def test_the_score(found, expected):
    assert score(found, expected_us=10.0, optimum_us=6.0) == pytest.approx(expected)


def test_where_chance_finds_the_optimum_nothing_can_be_better():
    assert score(6.0, 6.0, 6.0) == 1.0


def test_the_expectation_is_that_of_binomials_where_they_are_large():
    times, count = sorted(np.random.default_rng(0).lognormal(size=3486)), 500
    size = len(times)

    def log_choose(n, k):
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    whole = log_choose(size, count)
    terms = (
        time * math.exp(log_choose(size - i, count - 1) - whole)
        for i, time in enumerate(times[: size - count + 1], start=1)
    )
    assert expected_best(times, count) == pytest.approx(math.fsum(terms), rel=1e-9)
