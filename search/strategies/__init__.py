"""Strategies: who decides what to try next, behind one ask/tell protocol, by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError, not_installed
from cupygemm.measurement import Measurement
from cupygemm.search.space import SearchSpace


class Strategy(Protocol):
    """Proposes configs and learns from their measurements; it never calls anything back."""

    def ask(self) -> list[KernelConfig]:
        """The next configs to measure, all legal, repeats allowed; empty when there is nothing left to propose."""
        ...

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """What was asked for last, in that order, with a measurement for each."""
        ...


STRATEGIES = {
    "random": "cupygemm.search.strategies.random_search:RandomSearch",
    "exhaustive": "cupygemm.search.strategies.exhaustive:Exhaustive",
    "cma": "cupygemm.search.strategies.cma:CmaEs",
}
"""Name → module and class. Modules are named, not imported: each may need a package that the others do not."""


SEEDED = {"cma"}
"""Strategies that can start from configs known to be good elsewhere."""


def make_strategy(name: str, space: SearchSpace, seed: int, start: Sequence[KernelConfig] = ()) -> Strategy:
    """The strategy of this name, ready to be asked.

    Args:
        name: a key of `STRATEGIES`.
        space: where it searches.
        seed: the same seed gives the same proposals for the same measurements.
        start: configs known to be good elsewhere, the most promising first; for those in `SEEDED`.

    Raises:
        ConfigError: an unknown name, or a package that the strategy needs is missing.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy {name!r}: there are {', '.join(STRATEGIES)}")
    module, _, kind = STRATEGIES[name].partition(":")
    try:
        factory = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise ConfigError(f"strategy {name}: {not_installed(str(error.name), 'search')}") from error
    strategy: Strategy = factory(space, seed, start) if name in SEEDED else factory(space, seed)
    return strategy
