"""Every legal config, in the order of the knobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.strategies import StrategyContext

BATCH = 64
"""Configs asked for at once."""


class Exhaustive:
    """Proposes each legal config once. Meant for small spaces; a budget ends it early on large ones."""

    def __init__(self, context: StrategyContext) -> None:
        self._configs = context.space.enumerate()

    def ask(self) -> list[KernelConfig]:
        """The next configs; empty after the last."""
        return list(islice(self._configs, BATCH))

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """There is nothing to decide."""
