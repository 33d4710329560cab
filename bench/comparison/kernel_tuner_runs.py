"""Kernel Tuner's strategies as contenders, through `tune_kernel` in simulation mode, with their default options.

An evaluation is a different legal config that was measured, as for our strategies and as Kernel Tuner itself counts
them: asking again is free, and so is an illegal config, which its cost function answers without running anything. Some
strategies end before their budget does (a schedule that is over, a largest number of generations): they are started
again, with another seed and all that was measured still free, until the budget is spent. And some never end, where they
have walked into a corner of fewer configs than their budget (`greedy_ils`): they are told to stop after `ASKS`.

Version 1.5.0 takes a seed and does nothing with it: its strategies draw from the generators of `random` and NumPy that
all programs share, and those are seeded here. `diff_evo` alone does not repeat: its first population is a sample of
SciPy's that asks the system for its seed.

A start builds the space anew, and each ask formats an array for a message that nobody reads; that is two thirds of the
time of `pso` and `dual_annealing`. Here a space is built once and nothing is formatted: what is found is the same.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.comparison.cases import Case
from cupygemm.atomic import write_atomically

PREFIX = "kernel_tuner:"
"""Before the name of a strategy."""
STARTS = 20
"""Most starts of a run."""
ASKS = 100_000
"""Most asks of a start, of what was measured before too. Of searches of 500 different configs those of `greedy_ils`
that end by themselves make up to 97,000, others some thousands."""
OTHER_START = 1000
"""Between the seeds of two starts of a run."""


def run(case: Case, name: str, seed: int, evaluations: int, work: Path) -> list[float]:
    """The time of each config in the order measured, µs; infinite where it failed.

    Args:
        case: what is searched.
        name: `PREFIX` and what `tune_kernel` calls the strategy.
        seed: of the first start.
        evaluations: different configs that may be measured.
        work: folder for the cache files, which stay there.
    """
    path = work / f"{case.digest}.json"
    if not path.exists():
        write_atomically(path, json.dumps(case.document).encode())
    measured: dict[str, float] = {}
    for start in range(STARTS):
        before = len(measured)
        for result in _simulate(case, path, name.removeprefix(PREFIX), seed + OTHER_START * start, evaluations):
            key = ",".join(str(result[each]) for each in case.document["tune_params_keys"])
            if key in case.times_us:
                measured.setdefault(key, case.times_us[key])
        if len(measured) >= evaluations or len(measured) == before:
            break
    return list(measured.values())[:evaluations]


def _simulate(case: Case, path: Path, strategy: str, seed: int, evaluations: int) -> list[dict[str, Any]]:
    """What one start asked for, in order, repeats among it."""
    with warnings.catch_warnings(), _seeded(seed), _without_waste(case), _ending():
        warnings.simplefilter("ignore")
        import kernel_tuner

        results, _ = kernel_tuner.tune_kernel(
            case.document["kernel_name"],
            "",
            case.document["problem_size"],
            [],
            case.document["tune_params"],
            restrictions=case.document["restrictions"],
            simulation_mode=True,
            cache=str(path),
            strategy=strategy,
            strategy_options={"max_fevals": min(evaluations, len(case.times_us))},
            quiet=True,
        )
    return list(results)


@contextmanager
def _ending() -> Iterator[None]:
    """Kernel Tuner with an end to asking again."""
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.util import StopCriterionReached

    run_configs = CostFunc._run_configs

    def answered(cost: CostFunc, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        if len(cost.results) >= ASKS:
            raise StopCriterionReached(f"asked {ASKS} times")
        found: list[dict[str, Any]] = run_configs(cost, *arguments, **options)
        return found

    with patch.object(CostFunc, "_run_configs", answered):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The shared generators, seeded; afterwards they are as they were."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def _without_waste(case: Case) -> Iterator[None]:
    """Kernel Tuner without what it does again and again to the same end."""
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.strategies import common

    build = Searchspace._Searchspace__build_searchspace

    def built(space: Searchspace, *arguments: Any) -> tuple[list[Any], dict[Any, int], int]:
        if case.digest not in _built:
            _built[case.digest] = build(space, *arguments)
        points, places, size = _built[case.digest]
        return list(points), dict(places), size

    with (
        patch.object(Searchspace, "_Searchspace__build_searchspace", built),
        patch.object(common, "str", _unformatted, create=True),
        patch.object(common, "unscale_and_snap_to_nearest", _snapped),
    ):
        yield


_built: dict[str, tuple[list[Any], dict[Any, int], int]] = {}
"""Spaces by digest of their case: points, their places, how many."""


def _unformatted(value: object) -> str:
    """`str` but for arrays, which only messages show."""
    return "" if isinstance(value, np.ndarray) else str(value)


def _snapped(x: Sequence[float], tune_params: Mapping[str, Sequence[Any]], eps: float) -> list[Any]:
    """What `unscale_and_snap_to_nearest` gives, which computes the places of a parameter's values for each ask."""
    found = zip(x, tune_params.values(), strict=True)
    return [values[int(np.abs(_places(eps, len(values)) - at).argmin())] for at, values in found]


@cache
def _places(eps: float, count: int) -> Any:
    return np.linspace(0.5 * eps, eps * count - 0.5 * eps, count)
