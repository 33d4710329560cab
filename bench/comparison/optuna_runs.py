"""Optuna's tree-structured Parzen estimator as a contender, with its default options.

An evaluation is a different legal config that was measured. A run is as many trials as it may measure, which is what a
budget is to Optuna, and it ends there: each ask takes longer than the one before, and the estimator asks again and
again for what it likes best. A trial that asks again is told that it was pruned: then about 220 of 500 trials on
`large` are different, and told its time once more 155 are.

Optuna knows no constraint between categories that it could keep. `tpe_pruned` searches the product of all values and
is told that an illegal config was pruned, which the estimator counts as bad. It searches other people's tables alone:
of the product of `large` one point in 2,500 is legal, and of 2,000 trials none was. `tpe` is offered only values that
lead to a legal config: a parameter whose values are restricted has a name of its own for each set of values left,
which is how Optuna writes spaces that depend on what was chosen.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from bench.comparison.cases import Case

PREFIX = "optuna:"
PRUNED, CONDITIONAL = "optuna:tpe_pruned", "optuna:tpe"

Point = tuple[int, ...]


def run(case: Case, name: str, seed: int, evaluations: int) -> list[float]:
    """The time of each config in the order measured, µs; infinite where it failed.

    Args:
        case: what is searched.
        name: `PRUNED` or `CONDITIONAL`.
        seed: of the sampler.
        evaluations: different configs that may be measured.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    states = optuna.trial.TrialState
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    space = _Space(case)
    measured: dict[Point, float] = {}
    for _ in range(evaluations):
        trial = study.ask()
        point = space.conditional(trial) if name == CONDITIONAL else space.product(trial)
        us = space.times_us.get(point)
        if us is None or point in measured:
            study.tell(trial, state=states.PRUNED)
            continue
        measured[point] = us
        study.tell(
            trial, us if math.isfinite(us) else None, state=states.COMPLETE if math.isfinite(us) else states.PRUNED
        )
        if len(measured) == min(evaluations, len(space.times_us)):
            break
    return list(measured.values())


class _Space:
    """The points of a case as trials suggest them."""

    def __init__(self, case: Case) -> None:
        self._params: dict[str, list[int]] = case.document["tune_params"]
        points = (tuple(result[name] for name in self._params) for result in case.document["cache"].values())
        self.times_us: dict[Point, float] = dict(zip(points, case.times_us.values(), strict=True))
        self._next = _next_values(self.times_us)

    def product(self, trial: Any) -> Point:
        """Any value of each parameter."""
        return tuple(trial.suggest_categorical(name, values) for name, values in self._params.items())

    def conditional(self, trial: Any) -> Point:
        """One value after the other, of those that lead to a legal point."""
        point: Point = ()
        for name in self._params:
            values = self._next[point]
            label = f"{name} of {' '.join(map(str, values))}"
            point = (*point, values[0] if len(values) == 1 else trial.suggest_categorical(label, values))
        return point


def _next_values(points: Iterable[Point]) -> dict[Point, list[int]]:
    """Which values come after each prefix of the points."""
    found: dict[Point, set[int]] = {}
    for prefix, value in _steps(points):
        found.setdefault(prefix, set()).add(value)
    return {prefix: sorted(values) for prefix, values in found.items()}


def _steps(points: Iterable[Point]) -> Iterator[tuple[Point, int]]:
    for point in points:
        for length, value in enumerate(point):
            yield point[:length], value
