"""Our strategies as contenders, and what is had from other tables without any search."""

from __future__ import annotations

from math import inf

from bench.comparison.cases import Case
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.tune import Budget, tune

SEEDED = "+"
"""Ends the name of what begins with the best configs of other tables."""
NEAREST, SEEDS = "nearest+", "seeds+"
"""The best config of the nearest recorded problem alone, and all configs to start from, one after the other."""


def run(case: Case, name: str, seed: int, evaluations: int) -> list[float]:
    """The time of each config in the order measured, µs; infinite where it failed.

    Args:
        case: what is searched.
        name: a strategy, with `SEEDED` where it starts from other tables, or one of `NEAREST` and `SEEDS`.
        seed: of the strategy.
        evaluations: different configs that may be measured.
    """
    legal = [config for config in case.start if case.space.is_legal(config)]
    if name in (NEAREST, SEEDS):
        asked = legal[: 1 if name == NEAREST else evaluations]
        return [inf if found.us is None else found.us for found in case.runner.run(case.problem, asked)]
    context = StrategyContext(case.space, seed, legal if name.endswith(SEEDED) else ())
    strategy = make_strategy(name.removesuffix(SEEDED), context)
    result = tune(case.problem, case.space, strategy, case.runner, Budget(evaluations))
    return [inf if trial.measurement.us is None else trial.measurement.us for trial in result.trials]
