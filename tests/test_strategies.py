"""What every strategy promises, and what each is for."""

from __future__ import annotations

import math
import statistics
import sys

import numpy as np
import pytest
from cmaes import CatCMAwM

from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement, Status
from cupygemm.names import STRATEGIES
from cupygemm.problem import Problem
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.spaces.space import SearchSpace
from cupygemm.search.strategies import MOST_STARTS, STARTED_DESIGN, StrategyContext, make_strategy
from cupygemm.search.strategies.cma import BARREN_GENERATIONS, CmaEs, _losses
from cupygemm.search.strategies.draws import draw
from cupygemm.search.strategies.local import LocalSearch
from cupygemm.search.tune import BARREN_ASKS, Budget, tune

PROBLEM = Problem(2048, 2048, 4096)


@pytest.fixture(params=sorted(STRATEGIES))
def name(request) -> str:
    return request.param


def asks(strategy, model, rounds: int) -> list[KernelConfig]:
    found = []
    for _ in range(rounds):
        configs = strategy.ask()
        found += configs
        strategy.tell(configs, [model(config) for config in configs])
    return found


def test_proposals_are_legal(name, toy_table, model):
    space = toy_table.space
    found = asks(make_strategy(name, StrategyContext(space, 0)), model, rounds=20)
    assert found
    assert all(space.is_legal(config) for config in found)


def test_proposals_are_legal_in_the_full_space(name, model):
    space = SearchSpace.for_problem(PROBLEM, H200)
    found = asks(make_strategy(name, StrategyContext(space, 0)), model, rounds=3)
    assert found
    assert all(space.is_legal(config) for config in found)


def test_the_same_seed_gives_the_same_search(name, toy_table, model):
    runs = [asks(make_strategy(name, StrategyContext(toy_table.space, 3)), model, rounds=12) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_space_of_one_config_is_no_special_case(name, toy_table, model):
    config = next(iter(toy_table.rows))
    knobs = [type(knob)(knob.name, (getattr(config, knob.name),), knob.ordered) for knob in toy_table.knobs]
    strategy = make_strategy(name, StrategyContext(SearchSpace.of_members(knobs, [config]), 0))
    assert set(asks(strategy, model, rounds=2)) == {config}


def test_a_search_where_everything_fails_goes_on(name, toy_table):
    strategy = make_strategy(name, StrategyContext(toy_table.space, 0))
    first = asks(strategy, lambda _: Measurement(Status.CRASHED), rounds=1)
    later = asks(strategy, lambda _: Measurement(Status.CRASHED), rounds=9)
    assert set(later) - set(first) or set(first) == set(toy_table.rows)


@pytest.mark.parametrize("covering", ["random", "exhaustive"])
def test_each_config_is_proposed_once(covering, toy_table, model):
    strategy = make_strategy(covering, StrategyContext(toy_table.space, 0))
    found = asks(strategy, model, rounds=toy_table.space.size)
    assert len(found) == toy_table.space.size
    assert set(found) == set(toy_table.rows)
    assert strategy.ask() == []


def test_random_search_depends_on_its_seed(toy_table, model):
    one, two = (
        asks(make_strategy("random", StrategyContext(toy_table.space, seed)), model, rounds=2) for seed in (0, 1)
    )
    assert one != two


def test_an_unknown_name_lists_the_known(toy_table):
    with pytest.raises(ConfigError, match="random, exhaustive, local, cma"):
        make_strategy("annealing", StrategyContext(toy_table.space, 0))


def test_a_missing_package_is_named(monkeypatch, toy_table):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    monkeypatch.delitem(sys.modules, "cupygemm.search.strategies.cma", raising=False)
    with pytest.raises(ConfigError, match=r"cmaes is not installed: install the extra `search`"):
        make_strategy("cma", StrategyContext(toy_table.space, 0))


def test_cma_finds_a_better_config_than_chance(core_table):
    def found_us(strategy: str, seed: int) -> float:
        space, runner = core_table.space, ReplayRunner(core_table)
        result = tune(
            core_table.problem, space, make_strategy(strategy, StrategyContext(space, seed)), runner, Budget(100)
        )
        assert len(result.trials) == 100
        return result.best.measurement.us

    seeds = range(10)
    by_cma, by_chance = ([found_us(name, seed) for seed in seeds] for name in ("cma", "random"))
    assert statistics.mean(by_cma) < 0.98 * statistics.mean(by_chance)
    assert statistics.median(by_cma) < 1.02 * core_table.optimum_us


def test_cma_does_not_ask_long_for_what_is_known(toy_table, model):
    space = SearchSpace.of_members(toy_table.knobs, sorted(toy_table.rows)[::2])
    strategy, known, barren, longest = make_strategy("cma", StrategyContext(space, 3)), set(), 0, 0
    while len(known) < space.size:
        configs = strategy.ask()
        strategy.tell(configs, [model(config) for config in configs])
        barren = barren + 1 if known >= set(configs) else 0
        longest = max(longest, barren)
        known |= set(configs)
        assert barren < BARREN_ASKS, f"{space.size - len(known)} configs were never asked for"
    assert 0 < longest <= 2 * (BARREN_GENERATIONS + 1)


def test_cma_covers_a_small_space_in_the_end(toy_table):
    space = SearchSpace.of_members(toy_table.knobs, sorted(toy_table.rows)[::8])
    result = tune(
        PROBLEM,
        space,
        make_strategy("cma", StrategyContext(space, 0)),
        ReplayRunner(toy_table),
        Budget(evaluations=None),
    )
    assert result.stopped_by == "exhausted"
    assert {trial.config for trial in result.trials} == set(space.members)


def test_losses_rank_failures_last_and_are_finite():
    def ok(us: float) -> Measurement:
        return Measurement(Status.OK, (us,))

    losses = _losses([ok(10.0), Measurement(Status.TIMED_OUT), ok(1000.0), ok(math.nan), ok(0.0), ok(math.inf)])
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[0] < losses[2] < losses[1]
    assert losses[1] == losses[3] == losses[4] == losses[5]


def started(table) -> CmaEs:
    """The strategy after its random design."""
    strategy = CmaEs(StrategyContext(table.space, 0))
    configs = strategy.ask()
    assert len(set(configs)) > 1
    strategy.tell(configs, list(ReplayRunner(table).run(table.problem, configs)))
    return strategy


def test_cma_starts_at_the_best_of_its_design(toy_table):
    strategy = CmaEs(StrategyContext(toy_table.space, 3))
    configs = strategy.ask()
    losses = [100.0 + index for index in range(len(configs))]
    losses[4] = 1.0
    strategy.tell(configs, [Measurement(Status.OK, (loss,)) for loss in losses])
    indices = toy_table.space.encode(configs[4])
    assert list(strategy._optimizer._mean) == [indices[i] for i in strategy._ordered]


def test_the_design_begins_with_what_is_given(toy_table):
    legal = sorted(toy_table.rows)[:8]
    foreign = legal[0].swapped(block_n=8)
    configs = CmaEs(StrategyContext(toy_table.space, 0, [foreign, *legal])).ask()
    assert configs[:8] == legal
    assert len(configs) == 8 + STARTED_DESIGN
    assert foreign not in configs
    many = list(toy_table.rows)[: MOST_STARTS + 3]
    assert CmaEs(StrategyContext(toy_table.space, 0, many)).ask()[:-STARTED_DESIGN] == many[:MOST_STARTS]


def test_cma_starts_again_when_it_finds_nothing_new(toy_table):
    config = next(iter(toy_table.rows))
    strategy = started(toy_table)
    first = strategy._optimizer
    strategy._seen = set(toy_table.rows)
    for _ in range(5):
        configs = strategy.ask()
        strategy.tell(configs, [Measurement(Status.OK, (1.0 + (c != config),)) for c in configs])
    assert strategy.converged
    strategy.ask()
    assert strategy._optimizer is not first


def test_cma_starts_again_when_its_covariance_has_collapsed(toy_table, model, monkeypatch):
    """Seen with cmaes 0.13.1 on a recorded table, after many generations of ties."""
    strategy = started(toy_table)
    first = strategy._optimizer

    def collapse(solutions):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(first, "tell", collapse)
    configs = strategy.ask()
    strategy.tell(configs, [model(config) for config in configs])
    assert strategy.ask()
    assert strategy._optimizer is not first


def test_cma_accepts_configs_that_it_did_not_draw(toy_table, model):
    """Where draws are hardly ever legal, legal configs are put in by hand, through a private field of cmaes."""
    only = sorted(toy_table.rows)[:3]
    space = SearchSpace.of_members(toy_table.knobs, only)
    strategy = CmaEs(StrategyContext(space, 0))
    assert set(asks(strategy, model, rounds=10)) == set(only)


class Given:
    """Stands for both kinds of generators: gives what it was given, a row or all of it."""

    def __init__(self, normal: np.ndarray, uniform: np.ndarray) -> None:
        self._normal, self._uniform = normal, uniform

    def randn(self, count: int) -> np.ndarray:
        return self._normal[0]

    def rand(self, *shape: int) -> np.ndarray:
        return self._uniform[0]

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        assert shape == self._normal.shape
        return self._normal

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        assert shape == self._uniform.shape
        return self._uniform


def test_many_draws_and_solutions_made_by_hand_are_those_cmaes_would_make(toy_table, model):
    strategy = started(toy_table)
    asks(strategy, model, rounds=3)  # so that the distribution is not as at first
    optimizer, rng = strategy._optimizer, np.random.default_rng(0)
    assert isinstance(optimizer, CatCMAwM)
    normal = 3 * rng.standard_normal((50, len(strategy._ordered)))  # wide enough to meet the edges
    uniform = rng.random((50, len(strategy._categorical), 1))
    draws = draw(optimizer, 50, Given(normal, uniform))
    for row in range(50):
        optimizer._rng = Given(normal[row:], uniform[row:])
        wanted = optimizer.ask()
        indices = np.zeros(len(toy_table.knobs), dtype=int)
        indices[strategy._ordered], indices[strategy._categorical] = draws.ordered[row], draws.categories[row]
        made = strategy._solution(indices, draws.raw[row])
        np.testing.assert_allclose(made._v_raw, wanted._v_raw, rtol=1e-12)
        np.testing.assert_array_equal(made.z, wanted.z)
        np.testing.assert_array_equal(made.c, wanted.c)
        by_hand = strategy._encode(toy_table.space.decode(indices.tolist()))
        np.testing.assert_array_equal(by_hand.z, wanted.z)
        np.testing.assert_array_equal(by_hand.c, wanted.c)
        assert by_hand._v_raw.shape == wanted._v_raw.shape
    assert len(np.unique(draws.ordered, axis=0)) > 10


# local


def ridge(config: KernelConfig) -> Measurement:
    """Least at one corner of the space, and every step towards it helps."""
    us = 100.0 + config.block_m / 64 + config.block_n / 64 + config.stages + config.cluster_m + config.cluster_n
    return Measurement(Status.OK, samples_us=(us,), baseline_us=(100.0,))


def test_local_search_walks_to_the_optimum_and_goes_on_elsewhere(toy_table):
    space = toy_table.space
    search = LocalSearch(StrategyContext(space, 1))
    found = asks(search, ridge, rounds=400)
    best = min(space.members, key=lambda config: ridge(config).us)
    assert found.index(best) < space.size / 4
    # Nothing is asked for twice, and in the end everything was.
    assert len(set(found)) == len(found) == space.size
    assert search.ask() == []


def test_local_search_asks_for_neighbours_of_the_best_of_its_design(toy_table):
    search = LocalSearch(StrategyContext(toy_table.space, 2))
    design = asks(search, ridge, rounds=1)
    best = min(design, key=lambda config: (ridge(config).us, config))
    indices = toy_table.space.encode(best)
    for config in search.ask():
        assert sum(a != b for a, b in zip(indices, toy_table.space.encode(config), strict=True)) == 1


def test_local_search_survives_a_design_that_fails(toy_table):
    search = LocalSearch(StrategyContext(toy_table.space, 3))
    broken = Measurement(Status.COMPILE_FAILED, detail="no")
    assert len(set(asks(search, lambda config: broken, rounds=6))) > 10
