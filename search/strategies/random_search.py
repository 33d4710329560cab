"""Random search without replacement: the bar that every other strategy has to clear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.spaces.space import ENUMERABLE, SearchSpace
from cupygemm.search.strategies import StrategyContext

BATCH = 16
"""Configs asked for at once: enough to keep the compilers busy beside the measuring."""
REDRAWS = 1000
"""Draws in a row that were all seen before after which a large space counts as exhausted."""


class RandomSearch:
    """Proposes legal configs, each as likely as any other, none twice."""

    def __init__(self, context: StrategyContext) -> None:
        self._configs = _without_replacement(context.space, np.random.default_rng(context.seed))

    def ask(self) -> list[KernelConfig]:
        """The next few configs; empty when all have been proposed."""
        return list(islice(self._configs, BATCH))

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Chance learns nothing."""


def _without_replacement(space: SearchSpace, rng: np.random.Generator) -> Iterator[KernelConfig]:
    if space.size is not None or space.size_cartesian <= ENUMERABLE:
        members = list(space.enumerate())
        yield from (members[i] for i in rng.permutation(len(members)))
        return
    seen: set[KernelConfig] = set()
    redraws = 0
    while redraws < REDRAWS:
        config = space.sample(rng)
        redraws = redraws + 1 if config in seen else 0
        if not redraws:
            seen.add(config)
            yield config
