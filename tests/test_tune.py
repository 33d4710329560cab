"""The loop between strategy and runner: budgets, memory, confirmation, interruption."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from cupygemm.errors import ConfigError, ProblemError
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.runners.runner import Confirming
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.tune import ALIKE, BARREN_ASKS, CONFIRMED, Budget, tune

PROBLEM = Problem(2048, 2048, 4096)


class CountingRunner:
    """Replays, and counts what it was asked for."""

    device = "replay"

    def __init__(self, table, at=lambda index: None):
        self._runner = ReplayRunner(table)
        self._at = at
        self.asked = Counter()
        self.closed = False

    def run(self, problem, configs):
        try:
            for config in configs:
                self._at(self.asked.total())
                self.asked[config] += 1
                yield from self._runner.run(problem, [config])
        finally:
            self.closed = True

    def close(self):
        pass


class Proposing:
    """Proposes what it is given, and remembers what it is told."""

    def __init__(self, *batches):
        self._batches = list(batches)
        self.told = []

    def ask(self):
        return self._batches.pop(0) if self._batches else []

    def tell(self, configs, measurements):
        self.told.append((list(configs), list(measurements)))


@pytest.fixture
def configs(toy_table):
    ok = [config for config, row in toy_table.rows.items() if row.status is Status.OK]
    return sorted(ok, key=lambda config: toy_table.rows[config].us)


def search(table, strategy, budget, runner=None, on_trial=lambda trial: None):
    return tune(PROBLEM, table.space, strategy, runner or ReplayRunner(table), budget, on_trial)


@pytest.mark.parametrize("strategy", ["random", "cma"])
def test_a_budget_of_evaluations_counts_different_configs(toy_table, strategy):
    runner = CountingRunner(toy_table)
    result = search(toy_table, make_strategy(strategy, StrategyContext(toy_table.space, 0)), Budget(50), runner)
    assert result.stopped_by == "evaluations"
    assert len(result.trials) == len(runner.asked) == runner.asked.total() == 50


def test_exhaustive_search_finds_the_optimum(toy_table):
    result = search(
        toy_table, make_strategy("exhaustive", StrategyContext(toy_table.space, 0)), Budget(evaluations=None)
    )
    assert result.stopped_by == "exhausted"
    assert len(result.trials) == len(toy_table.rows)
    assert result.best.config == toy_table.optimum[0]
    assert result.best.measurement.us == toy_table.optimum_us
    assert result.failures == Counter({Status.SERIALISED.value: toy_table.statuses["serialised"]})
    assert result.failures.total() > 0


def test_trials_are_numbered_and_carry_the_best_so_far(toy_table):
    seen = []
    result = search(
        toy_table, make_strategy("random", StrategyContext(toy_table.space, 1)), Budget(40), on_trial=seen.append
    )
    assert seen == list(result.trials)
    assert [trial.index for trial in seen] == list(range(40))
    best = None
    for trial in seen:
        us = trial.measurement.us
        best = us if best is None else best if us is None else min(best, us)
        assert trial.best_us == best


def test_a_known_config_is_told_from_memory(toy_table, configs):
    one, two = configs[:2]
    runner, strategy = CountingRunner(toy_table), Proposing([one, two, one], [two, one])
    result = search(toy_table, strategy, Budget(10), runner)
    assert runner.asked == {one: 1, two: 1}
    assert [told for told, _ in strategy.told] == [[one, two, one], [two, one]]
    assert [m.us for m in strategy.told[1][1]] == [toy_table.rows[two].us, toy_table.rows[one].us]
    assert result.stopped_by == "exhausted"


def test_a_batch_cut_by_the_budget_is_not_told(toy_table, configs):
    strategy = Proposing(configs[:3], configs[3:6])
    result = search(toy_table, strategy, Budget(4))
    assert len(result.trials) == 4
    assert len(strategy.told) == 1


def test_a_strategy_that_repeats_itself_is_stopped(toy_table, configs):
    result = search(toy_table, Proposing(*[[configs[0]]] * (BARREN_ASKS + 5)), Budget(10))
    assert result.stopped_by == "stagnation"
    assert len(result.trials) == 1


def test_seconds_stop_within_a_batch_and_close_the_runner(toy_table, configs):
    runner = CountingRunner(toy_table, at=lambda index: time.sleep(0.02))
    result = search(toy_table, Proposing(configs[:50]), Budget(evaluations=None, seconds=0.1), runner)
    assert result.stopped_by == "seconds"
    assert 1 <= len(result.trials) < 50
    assert runner.closed


def test_a_speedup_stops_the_search(toy_table, configs):
    slow, fast = configs[-1], configs[0]
    speedup = toy_table.baselines["cublas_us"] / toy_table.rows[fast].us
    result = search(toy_table, Proposing([slow], [fast], [configs[1]]), Budget(10, stop_at_speedup=0.999 * speedup))
    assert result.stopped_by == "speedup"
    assert result.best.config == fast
    assert len(result.trials) == 2


@pytest.mark.parametrize("limits", [{"evaluations": 0}, {"seconds": -1.0}, {"stop_at_speedup": 0.0}])
def test_a_limit_that_is_not_positive_is_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        Budget(**limits)


def test_ctrl_c_keeps_what_was_found(toy_table, configs):
    def interrupt(index):
        if index == 3:
            raise KeyboardInterrupt

    runner = CountingRunner(toy_table, at=interrupt)
    result = search(toy_table, Proposing(configs[::-1][:10]), Budget(10), runner)
    assert result.stopped_by == "interrupted"
    assert len(result.trials) == 3
    assert result.best.config == configs[-3]
    assert runner.closed


def test_nothing_that_runs_gives_no_best(toy_table):
    failing = [config for config, row in toy_table.rows.items() if row.status is not Status.OK][:3]
    result = search(toy_table, Proposing(failing), Budget(10))
    assert result.best is None
    assert result.failures == {"serialised": 3}


class Noisy(CountingRunner):
    """Measures once with a lucky time for one config, and again truthfully."""

    def __init__(self, table, lucky, failing=()):
        super().__init__(table)
        self.table, self.lucky, self.failing = table, lucky, failing
        self.confirmed = []

    def run(self, problem, configs):
        for config, found in zip(configs, super().run(problem, configs), strict=True):
            yield found.with_fields(samples_us=(1.0,)) if config == self.lucky else found

    def confirm(self, problem, configs):
        self.confirmed = list(configs)
        again = ReplayRunner(self.table).run(problem, configs)
        lost = Measurement(Status.CRASHED)
        return [lost if config in self.failing else found for config, found in zip(configs, again, strict=True)]


def test_the_winner_has_the_least_confirmed_time(toy_table, configs):
    runner = Noisy(toy_table, lucky=configs[20])
    assert isinstance(runner, Confirming)
    result = search(toy_table, Proposing(configs[:30]), Budget(30), runner)
    assert runner.confirmed[:1] == [configs[20]]
    assert result.best.config == configs[0]
    assert result.best.measurement.us == toy_table.rows[configs[0]].us


def test_a_finalist_that_fails_when_measured_again_does_not_win(toy_table, configs):
    runner = Noisy(toy_table, lucky=configs[0], failing=configs[:1])
    result = search(toy_table, Proposing(configs[:10]), Budget(10), runner)
    assert result.best.config == configs[1]


def kind(config):
    return config.block_m, config.block_n, config.ping_pong, config.cluster_k


class Told(Noisy):
    """Measures what it is told of each config, µs."""

    def __init__(self, table, times):
        super().__init__(table, lucky=None)
        self.times = times

    def run(self, problem, configs):
        return iter([Measurement(Status.OK, samples_us=(self.times[config],)) for config in configs])


def test_finalists_are_the_fastest_of_several_kinds(toy_table, configs):
    kinds: dict = {}
    for config in configs:
        kinds.setdefault(kind(config), []).append(config)
    best, near, far = sorted(kinds.values(), key=len, reverse=True)[:3]
    assert min(len(best), len(near), len(far)) > ALIKE
    # Hundreds of one kind are alike, another is 5% slower, a third cannot win.
    times = {
        config: at + 0.001 * i for at, each in ((1.0, best), (1.05, near), (1.5, far)) for i, config in enumerate(each)
    }
    runner = Told(toy_table, times)
    search(toy_table, Proposing(list(times)), Budget(len(times)), runner)
    assert runner.confirmed == [*best[: CONFIRMED - ALIKE], *near[:ALIKE]]
    lucky = Told(toy_table, {**times, best[0]: 0.01})
    search(toy_table, Proposing(list(times)), Budget(len(times)), lucky)
    assert lucky.confirmed == runner.confirmed


def test_where_all_are_of_a_kind_the_fastest_race(toy_table, configs):
    alike = [config for config in configs if kind(config) == kind(configs[0])][:20]
    assert len(alike) > CONFIRMED
    runner = Noisy(toy_table, lucky=None)
    search(toy_table, Proposing(alike), Budget(len(alike)), runner)
    assert runner.confirmed == alike[:CONFIRMED]


class Racing(CountingRunner):
    """Measures again with the samples it is given."""

    def __init__(self, table, samples, baseline=()):
        super().__init__(table)
        self.samples, self.baseline = samples, baseline

    def confirm(self, problem, configs):
        return [
            Measurement(Status.OK, samples_us=samples, baseline_us=self.baseline[: len(samples)])
            for samples, _ in zip(self.samples, configs, strict=True)
        ]


def test_what_a_race_gave_up_does_not_win_by_the_few_samples_that_it_has(toy_table, configs):
    runner = Racing(toy_table, [(5.0, 5.0), (8.0, 8.1, 8.1, 8.0), (8.0, 7.9, 8.0, 8.0)])
    result = search(toy_table, Proposing(configs[:3]), Budget(3), runner)
    assert result.best.config == configs[2]
    assert result.best.measurement.samples_us == (8.0, 7.9, 8.0, 8.0)


def test_the_winner_is_the_faster_in_most_rounds_beside_the_same_baseline(toy_table, configs):
    # The second has the lower median, and lost to the first wherever both were timed at one clock.
    baseline = (10.0, 10.0, 20.0, 20.0, 20.0)
    runner = Racing(toy_table, [(9.0, 9.0, 18.0, 18.0, 18.0), (9.5, 9.5, 17.0, 19.0, 19.0)], baseline)
    assert search(toy_table, Proposing(configs[:2]), Budget(2), runner).best.config == configs[0]
    runner = Racing(toy_table, [(9.0, 19.0, 18.0), (9.9, 9.9, 9.9)], (10.0, 20.0, 19.0))
    assert search(toy_table, Proposing(configs[:2]), Budget(2), runner).best.config == configs[1]


def test_a_runner_that_returns_too_little_is_a_fault(toy_table, configs):
    class Short(CountingRunner):
        def run(self, problem, configs):
            return super().run(problem, configs[:-1])

    with pytest.raises(ValueError, match="shorter"):
        search(toy_table, Proposing(configs[:3]), Budget(10), Short(toy_table))


def test_replay_answers_as_recorded(toy_table):
    runner = ReplayRunner(toy_table)
    configs = sorted(toy_table.rows)
    for config, found in zip(configs, runner.run(PROBLEM, configs), strict=True):
        row = toy_table.rows[config]
        assert (found.status, found.us, found.registers, found.detail) == (
            row.status,
            row.us,
            row.registers,
            row.detail,
        )
    assert toy_table.optimum_us == min(row.us for row in toy_table.rows.values() if row.us is not None)


def test_replay_calls_what_was_not_recorded_illegal(toy_table, configs):
    outside = configs[0].swapped(group=2)
    (found,) = ReplayRunner(toy_table).run(PROBLEM, [outside])
    assert found.status is Status.ILLEGAL
    assert found.us is None


def test_replay_refuses_another_problem(toy_table, configs):
    with pytest.raises(ProblemError, match="512x512x512"):
        ReplayRunner(toy_table).run(Problem(512, 512, 512), configs[:1])


@pytest.mark.parametrize("strategy", ["random", "cma"])
def test_a_hundred_evaluations_on_replay_are_quick(core_table, strategy):
    started = time.thread_time()
    result = search(core_table, make_strategy(strategy, StrategyContext(core_table.space, 0)), Budget(100))
    assert len(result.trials) == 100
    assert time.thread_time() - started < 5
