"""Strategies: who decides what to try next, behind one ask/tell protocol, by name."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Protocol, Self

import numpy as np

from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError, not_installed
from cupygemm.measurement import Measurement
from cupygemm.names import STRATEGIES
from cupygemm.search.interruption import uninterrupted
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.spaces.space import SearchSpace

DESIGN = 10
"""Random configs that a search from nothing measures first."""
STARTED_DESIGN = 5
"""Random configs measured first beside configs to start from."""
MOST_STARTS = 16
"""Configs to start from that are measured: what those of the other H200 tables find alone scores 0.89 after 50
evaluations, and a search that took only the first five of them 0.82 (8 tables, 20 seeds, 2026-11)."""
REDRAWS = 200
"""Random configs in a row that are known already after which what is left is looked for."""


class Strategy(Protocol):
    """Proposes configs and learns from their measurements; it never calls anything back."""

    def ask(self) -> list[KernelConfig]:
        """The next configs to measure, all legal, repeats allowed; empty when there is nothing left to propose."""
        ...

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """What was asked for last, in that order, with a measurement for each."""
        ...


@dataclass(frozen=True)
class StrategyContext:
    """All that a strategy may know when it begins; each uses what it needs.

    Attributes:
        space: where it searches.
        seed: the same seed gives the same proposals for the same measurements.
        start: configs known to be good elsewhere, the most promising first; they need not be legal here.
        rewards: what learning strategies maximise.
        guide: a policy trained on other problems, which says what is promising here; None where there is none.
    """

    space: SearchSpace
    seed: int = 0
    start: Sequence[KernelConfig] = ()
    rewards: RewardWeights = field(default_factory=RewardWeights)
    guide: Guide | None = None

    def without_start(self) -> Self:
        """The same, with nothing known beforehand."""
        return replace(self, start=())


def make_strategy(name: str, context: StrategyContext) -> Strategy:
    """The strategy of this name, ready to be asked.

    Args:
        name: a key of `names.STRATEGIES`.
        context: what it may know.

    Raises:
        ConfigError: an unknown name, or a package that the strategy needs is missing.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy {name!r}: there are {', '.join(STRATEGIES)}")
    module, _, kind = STRATEGIES[name].partition(":")
    try:
        with uninterrupted():
            factory = getattr(import_module(module), kind)
            strategy: Strategy = factory(context)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigError(f"strategy {name}: {not_installed(package, 'search')}") from error
    return strategy


def opening(space: SearchSpace, start: Sequence[KernelConfig], rng: np.random.Generator) -> list[KernelConfig]:
    """What is measured first: the configs to start from that are legal here, and a few random ones."""
    starts = [config for config in start if space.is_legal(config)][:MOST_STARTS]
    return [*starts, *(space.sample(rng) for _ in range(STARTED_DESIGN if starts else DESIGN))]


def unseen(space: SearchSpace, seen: Container[KernelConfig], rng: np.random.Generator) -> KernelConfig | None:
    """A random config that is not among those seen; None where all are, as far as can be told."""
    for _ in range(REDRAWS):
        config = space.sample(rng)
        if config not in seen:
            return config
    return next((member for member in space.members or () if member not in seen), None)
