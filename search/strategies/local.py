"""Iterated local search: from the best config known to one that differs in a single knob, as long as that helps.

The plainest strategy that learns, and the bar for the others: docs/tuning.md has what each finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.strategies import StrategyContext

DESIGN = 10
"""Random configs measured first."""
STARTED_DESIGN = 5
"""Random configs measured first beside configs to start from."""
MOST_STARTS = 16
"""Configs to start from that are measured, as by `cma`."""
BATCH = 8
"""Neighbours asked for at once: enough to keep the compilers busy, few enough to move on soon."""
KICK = 3
"""Knobs that change where no neighbour is better: after 150 evaluations on the H200 tables of 2026-11 three and four
score alike, two less (0.32 and not 0.45)."""
REDRAWS = 200
"""Kicks in a row that lead to nothing legal and new after which a random config is taken."""


class LocalSearch:
    """Moves to the first better neighbour of those asked for together; kicks the best where there is none."""

    def __init__(self, context: StrategyContext) -> None:
        """Prepares the design, which begins with the configs to start from that are legal here."""
        self._space = context.space
        self._rng = np.random.default_rng(context.seed)
        starts = [config for config in context.start if self._space.is_legal(config)][:MOST_STARTS]
        chance = range(STARTED_DESIGN if starts else DESIGN)
        self._design: list[KernelConfig] = [*starts, *(self._space.sample(self._rng) for _ in chance)]
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
            self._here, self._around = best, self._neighbours(best)

    def _next_neighbours(self) -> list[KernelConfig]:
        """The next few neighbours that have no cost yet."""
        fresh: list[KernelConfig] = []
        while self._around and len(fresh) < BATCH:
            config = self._around.pop()
            if config not in self._costs:
                fresh.append(config)
        return fresh

    def _neighbours(self, config: KernelConfig) -> list[KernelConfig]:
        """Legal configs that differ in one knob, in random order."""
        indices = self._space.encode(config)
        found = []
        for position, knob in enumerate(self._space.knobs):
            for value in range(len(knob.values)):
                if value != indices[position]:
                    neighbour = self._space.decode((*indices[:position], value, *indices[position + 1 :]))
                    if self._space.is_legal(neighbour):
                        found.append(neighbour)
        return [found[i] for i in self._rng.permutation(len(found))]

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
        for _ in range(REDRAWS):
            config = self._space.sample(self._rng)
            if config not in self._costs:
                return config
        return next((member for member in self._space.members or () if member not in self._costs), None)
