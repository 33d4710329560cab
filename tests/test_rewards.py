"""What a measurement is worth."""

from __future__ import annotations

import math

import pytest

from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement, Status
from cupygemm.search.rewards import WORST, RewardWeights

TIMED = Measurement(Status.OK, samples_us=(40.0,), baseline_us=(50.0,))


def test_speed_is_the_logarithm_of_the_speedup():
    assert RewardWeights(0, 0).reward(TIMED, 1.0) == pytest.approx(math.log(50 / 40))


def test_the_l2_term_adds_and_spills_take_away():
    measurement = TIMED.with_fields(l2_term=0.5, l2_hit_rate=0.9, spill_bytes=256)
    base = math.log(50 / 40)
    assert RewardWeights(0.1, 0.2).reward(measurement, 1.0) == pytest.approx(base + 0.1 * 0.5 - 0.2 * 0.5)
    assert RewardWeights(0.1, 0, "hit_rate").reward(measurement, 1.0) == pytest.approx(base + 0.1 * 0.9)


def test_a_term_that_is_not_known_counts_nothing():
    assert RewardWeights(1.0, 1.0).reward(TIMED, 1.0) == pytest.approx(math.log(50 / 40))


def test_the_spill_term_ends_at_one():
    measurement = TIMED.with_fields(spill_bytes=10**6)
    assert RewardWeights(0, 0.1).reward(measurement, 1.0) == pytest.approx(math.log(50 / 40) - 0.1)


def test_the_baseline_stands_in_where_cublas_was_not_timed():
    assert RewardWeights(0, 0).reward(Measurement(Status.OK, samples_us=(40.0,)), 20.0) == pytest.approx(-math.log(2))


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Status.CRASHED),
        Measurement(Status.OK, samples_us=(math.nan,)),
        Measurement(Status.OK, samples_us=(math.inf,)),
        Measurement(Status.OK, samples_us=(0.0,)),
        Measurement(Status.OK, samples_us=(1e9,), baseline_us=(1.0,)),
    ],
)
def test_what_did_not_run_or_has_no_time_is_worth_least(measurement):
    assert RewardWeights().reward(measurement, 1.0) == WORST


@pytest.mark.parametrize("weights", [{"l2": -0.1}, {"spill": math.inf}, {"l2": math.nan}, {"l2_term": "requests"}])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match="reward"):
        RewardWeights(**weights)
