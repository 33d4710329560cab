"""Which strategy searches where none is named, and how a person sees that one is at work."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from cupygemm.commands.tune_view import TuneView
from cupygemm.config import KernelConfig
from cupygemm.errors import not_installed
from cupygemm.measurement import Measurement
from cupygemm.names import GUIDED, NEEDED, PLAINEST, UNGUIDED
from cupygemm.search.strategies import Strategy

IMPORTING, COMPILING = "importing JAX", "JAX compiles the policy's network"


class Default(NamedTuple):
    """What searches where no strategy is named.

    Attributes:
        strategy: its name.
        missing: what to say where it stands in for one that needs a package; None where it does not.
    """

    strategy: str
    missing: str | None = None


def default_strategy(guided: bool) -> Default:
    """What is known to find most (docs/tuning.md), of what can be imported.

    Args:
        guided: whether there is a policy that has not learnt from the problem.
    """
    wanted = GUIDED if guided else UNGUIDED
    missing = next((package for package in NEEDED[wanted] if find_spec(package) is None), None)
    if missing is None:
        return Default(wanted)
    return Default(PLAINEST, f"{not_installed(missing, 'search')}; {PLAINEST} searches in place of {wanted}")


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
