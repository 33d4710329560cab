"""Iterated local search: from the best config known to one that differs in a single knob, as long as that helps.

The plainest strategy that learns, and the bar for the others: docs/tuning.md has what each finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.strategies import REDRAWS, StrategyContext, opening, unseen

BATCH = 8
"""Neighbours asked for at once: enough to keep the compilers busy, few enough to move on soon."""
KICK = 3
"""Knobs that change where no neighbour is better: after 150 evaluations on the H200 tables of 2026-11 three and four
score alike, two less (0.32 and not 0.45)."""


class LocalSearch:
    """Moves to the first better neighbour of those asked for together; kicks the best where there is none."""

    def __init__(self, context: StrategyContext) -> None:
        """Prepares the design, which begins with the configs to start from that are legal here."""
        self._space = context.space
        self._rng = np.random.default_rng(context.seed)
        self._design = opening(self._space, context.start, self._rng)
        self._costs: dict[KernelConfig, float] = {}
        self._here: KernelConfig | None = None
        self._around: list[KernelConfig] = []

    def ask(self) -> list[KernelConfig]:
        """The design, then neighbours of where the search stands; empty when nothing new is left."""
        if self._design:
            asked, self._design = list(dict.fromkeys(self._design)), []
            return asked
        fresh = self._next_neighbours()
        if fresh:
            return fresh
        kicked = self._kicked()
        if kicked is None:
            return []
        self._here = None
        return [kicked]

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Goes to the best of what was asked for, where that is better than where the search stands."""
        for config, measurement in zip(configs, measurements, strict=True):
            cost = measurement.cost
            self._costs[config] = math.inf if cost is None else cost
        best = min(configs, key=lambda config: (self._costs[config], config), default=None)
        if best is None:
            return
        if self._here is None or self._costs[best] < self._costs[self._here]:
            self._here = best
            found = self._space.neighbours(best, any_value=True)
            self._around = [found[i] for i in self._rng.permutation(len(found))]

    def _next_neighbours(self) -> list[KernelConfig]:
        """The next few neighbours that have no cost yet."""
        fresh: list[KernelConfig] = []
        while self._around and len(fresh) < BATCH:
            config = self._around.pop()
            if config not in self._costs:
                fresh.append(config)
        return fresh

    def _kicked(self) -> KernelConfig | None:
        """The best config with a few knobs changed; None where everything has been measured."""
        best = min(self._costs, key=lambda config: (self._costs[config], config))
        indices = self._space.encode(best)
        varying = [position for position, knob in enumerate(self._space.knobs) if knob.varies]
        for _ in range(REDRAWS):
            changed = list(indices)
            for position in self._rng.choice(varying, size=min(KICK, len(varying)), replace=False):
                changed[position] = int(self._rng.integers(len(self._space.knobs[position].values)))
            config = self._space.decode(changed)
            if config not in self._costs and self._space.is_legal(config):
                return config
        return unseen(self._space, self._costs, self._rng)
