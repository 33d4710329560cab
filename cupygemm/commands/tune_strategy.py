"""Which strategy searches, whether a policy guides it, and how a person sees that one is at work."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from cupygemm.commands.tune_view import TuneView
from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError, not_installed
from cupygemm.measurement import Measurement
from cupygemm.names import GUIDED, NEEDED, PLAINEST, POPULATION_EVALUATIONS, SEEDED, UNGUIDED
from cupygemm.problem import Problem
from cupygemm.search.policy.families import family
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.weights import PolicyWeights, shipped_weights
from cupygemm.search.strategies import Strategy
from cupygemm.search.target import Target

IMPORTING, COMPILING = "importing JAX", "JAX compiles the policy's network"


class Guidance(NamedTuple):
    """The policy that guides a search, if there is one.

    Attributes:
        guide: the policy, told the problem; None where none may guide.
        why: who guides, or why nobody does, in words.
    """

    guide: Guide | None
    why: str


class ChosenStrategy(NamedTuple):
    """The strategy that searches, and why it is that one, in words."""

    strategy: str
    why: str

    def __str__(self) -> str:
        return f"strategy: {self.strategy} ({self.why})"


def find_guidance(problem: Problem, target: Target, path: Path | None, cold: bool) -> Guidance:
    """The policy that may guide the search for a problem's config.

    Args:
        path: file of weights; None for the policy of the package.
        cold: whether nothing is to be known beforehand.

    Raises:
        CupygemmError: the file cannot be read, or is to guide a replay of what its policy was trained on.
    """
    if cold:
        return Guidance(None, "--cold, so that no policy guides")
    weights = shipped_weights() if path is None else PolicyWeights.read(path)
    if weights is None:
        return Guidance(None, "no policy is shipped that could guide")
    if target.recorded is not None and problem in weights.sources:
        if path is None:
            learnt = "the shipped policy was trained on this very table, so it does not guide"
            another = f"cupygemm train --without {family(problem)} -o policy.npz"
            return Guidance(None, f"{learnt}; {another} makes one that may, as --policy policy.npz")
        raise ConfigError(
            f"{path} was trained on the table of {problem}, which is to be replayed: name a policy that was not, "
            "or none"
        )
    whose = "the shipped policy" if path is None else f"the policy {path}"
    return Guidance(Guide(weights, problem, target.device, target.space), f"{whose} guides")


def choose_strategy(named: str | None, guidance: Guidance) -> ChosenStrategy:
    """The strategy that was named; else what is known to find most (docs/tuning.md), of what can be imported."""
    if named is not None:
        return ChosenStrategy(named, _why_named(named, guidance))
    wanted = UNGUIDED if guidance.guide is None else GUIDED
    missing = next((package for package in NEEDED[wanted] if find_spec(package) is None), None)
    if missing is None:
        return ChosenStrategy(wanted, guidance.why)
    instead = f"in place of {wanted}, for which {not_installed(missing, 'search')}"
    return ChosenStrategy(PLAINEST, instead if guidance.guide else f"{guidance.why}; {instead}")


def _why_named(named: str, guidance: Guidance) -> str:
    if named not in SEEDED:
        return "as asked"
    if named == "hybrid" and guidance.guide is None:
        return f"as asked; {guidance.why}: cma for {POPULATION_EVALUATIONS} trials, then ppo"
    return f"as asked; {guidance.why}"


class Watched:
    """A `Strategy` of which a view says that it is at work, where it takes a while: JAX compiles what it runs first."""

    def __init__(self, strategy: Strategy, view: TuneView) -> None:
        self._strategy, self._view = strategy, view

    def ask(self) -> list[KernelConfig]:
        """As the strategy does."""
        with self._view.busy(COMPILING):
            return self._strategy.ask()

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """As the strategy does."""
        with self._view.busy(COMPILING):
            self._strategy.tell(configs, measurements)
