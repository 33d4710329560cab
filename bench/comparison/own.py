"""Our strategies as contenders, and what is had from other problems without any search.

A `+` ends the name of what knows other problems, as `cupygemm tune` does: it begins with what a policy suggests and
the best configs of the nearest recorded problems by turns, and is given the policy. Neither has seen a problem of the
family that is searched. Other people's tables have no policy: there a `+` begins with the best of the tables beside.
"""

from __future__ import annotations

from functools import cache
from math import inf
from pathlib import Path

from bench.comparison import policies
from bench.comparison.cases import RECORDED, Case
from bench.comparison.policies import Training
from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError
from cupygemm.search.policy.families import family
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.seeds import known_from_others
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.tune import Budget, tune

SEEDED = "+"
"""Ends the name of what knows other problems."""
NEAREST, SEEDS = "nearest+", "seeds+"
"""The best config of the nearest recorded problem alone, and all configs to start from, one after the other."""
POLICY, CLONED = "policy+", "cloned+"
"""The ranking of a policy that learns no more: as it was trained, and one that only imitated."""
WITHOUT_SEARCH = (NEAREST, SEEDS, POLICY, CLONED)


def run(case: Case, name: str, seed: int, evaluations: int, work: Path) -> list[float]:
    """The time of each config in the order measured, µs; infinite where it failed.

    Args:
        case: what is searched.
        name: a strategy, with `SEEDED` where it knows other problems, or one of `WITHOUT_SEARCH`.
        seed: of the strategy; seeds take turns with the policies of different trainings.
        evaluations: different configs that may be measured.
        work: folder for trained policies.
    """
    if name in WITHOUT_SEARCH:
        asked = _asked(case, name, seed, evaluations, work)
        return [inf if found.us is None else found.us for found in case.runner.run(case.problem, asked)]
    context = StrategyContext(case.space, seed)
    if name.endswith(SEEDED):
        guide = _guide(case, policies.TRAINED, seed % policies.TRAININGS, work)
        context = StrategyContext(case.space, seed, _start(case, guide), guide=guide)
    strategy = make_strategy(name.removesuffix(SEEDED), context)
    result = tune(case.problem, case.space, strategy, case.runner, Budget(evaluations))
    return [inf if trial.measurement.us is None else trial.measurement.us for trial in result.trials]


def applies(name: str, group: str) -> bool:
    """Whether a contender can search a group of tables."""
    return name not in (POLICY, CLONED) or group == RECORDED


def different_seeds(name: str, group: str) -> int | None:
    """How many seeds make a difference; None for all of them."""
    if name == NEAREST or (name == SEEDS and group != RECORDED):
        return 1
    return policies.TRAININGS if name in WITHOUT_SEARCH else None


def options_of(name: str) -> TrainingOptions | None:
    """How the policy was trained that a contender needs; None where it needs none."""
    if name == CLONED:
        return policies.IMITATING
    return policies.TRAINED if name.endswith(SEEDED) and name != NEAREST else None


def _asked(case: Case, name: str, seed: int, evaluations: int, work: Path) -> list[KernelConfig]:
    """What is measured without any search."""
    if name == NEAREST:
        return [config for config in case.nearest if case.space.is_legal(config)][:1]
    guide = _guide(case, policies.IMITATING if name == CLONED else policies.TRAINED, seed % policies.TRAININGS, work)
    if name == SEEDS:
        return _start(case, guide)[:evaluations]
    if guide is None:
        raise ConfigError(f"strategy {name}: there is no policy for {case.name}")
    return guide.ranked(evaluations)


def _start(case: Case, guide: Guide | None) -> list[KernelConfig]:
    """Configs to start from that are legal here, as `seeds` makes them for `cupygemm tune`."""
    return [config for config in known_from_others(guide, case.nearest) if case.space.is_legal(config)]


@cache
def _guide(case: Case, options: TrainingOptions, training: int, work: Path) -> Guide | None:
    """The policy that has not learnt from the family of a problem; None for other people's tables."""
    if case.device is None:
        return None
    weights = policies.policy(Training(case.folder, family(case.problem), training, options), work)
    return Guide(weights, case.problem, case.device, case.space)
