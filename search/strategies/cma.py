"""CatCMA with margin: covariance matrix adaptation over ordered and categorical knobs together.

The algorithm is Hamano et al., "CatCMA with Margin" (arXiv 2504.07884), as the `cmaes` package implements it. Ordered
knobs enter as indices, so that neighbouring values are equally far apart; booleans and categories enter as categories;
knobs with one value do not enter. The constraint is met by drawing again: of the ways to treat illegal points, that
was the best on recorded GEMM tables (CLBlast Xgemm on three cards, 2026-11: score 0.917, against 0.902 for a death
penalty and 0.888 for repair to the nearest legal point).

The distribution starts at the best of a few configs and not at the centre of the knobs, which is a poor place for many
problems. On the 1,440-point H200 tables of 2026-11, 20 seeds, without configs to start from, the mean fraction of the
optimum after 50 and 150 evaluations went from 0.975 and 0.994 to 0.995 and 0.999 at 2048x2048x4096, and from 0.853 and
0.937 to 0.903 and 0.979 at 512x512x8192; random search: 0.990 and 0.996, 0.870 and 0.942.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from cmaes import CatCMAwM
from numpy.typing import NDArray

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.strategies import StrategyContext, opening, unseen
from cupygemm.search.strategies.draws import draw

AT_ONCE = (20, 180)
"""Draws that are made together until one of them is legal; after the last a legal config is taken at random instead."""
BARREN_GENERATIONS = 5
"""Generations in a row without a new config after which the search starts again elsewhere."""


class CmaEs:
    """Samples a generation, learns from its ranking, and starts again elsewhere when it stops finding anything new."""

    def __init__(self, context: StrategyContext) -> None:
        """Prepares the design.

        Args:
            context: what is searched. The design begins with the configs to start from that are legal here.
        """
        space = context.space
        self._space = space
        self._start_from = context.start
        self._rng = np.random.default_rng(context.seed)
        varying = [i for i, knob in enumerate(space.knobs) if knob.varies]
        self._ordered = [i for i in varying if space.knobs[i].ordered and len(space.knobs[i].values) > 2]
        self._categorical = [i for i in varying if i not in self._ordered]
        self._fixed = np.zeros(len(space.knobs), dtype=np.intp)
        self._seen: set[KernelConfig] = set()
        self._barren = 0
        self._degenerate = False
        self._asked: list[tuple[KernelConfig, CatCMAwM.Solution]] = []
        self._optimizer: CatCMAwM | None = None
        self._restarts = 0
        self._asked_first: KernelConfig | None = None

    def ask(self) -> list[KernelConfig]:
        """The design, then one generation at a time; repeats are likely once it converges."""
        if self._optimizer is None:
            return opening(self._space, self._start_from, self._rng)
        if self.converged:
            around = unseen(self._space, self._seen, self._rng) or self._space.sample(self._rng)
            # Two starts in a row that led to nothing new: little is left, and drawing near it may miss it for ever.
            self._asked_first = around if self._restarts else None
            self._barren, self._restarts, self._degenerate = 0, self._restarts + 1, False
            self._optimizer = self._start(around)
        self._asked = [self._propose(self._optimizer) for _ in range(self._optimizer.population_size)]
        if self._asked_first is not None:
            self._asked[0] = self._asked_first, self._encode(self._asked_first)
            self._asked_first = None
        configs = [config for config, _ in self._asked]
        fresh = set(configs) - self._seen
        self._barren, self._restarts = (0, 0) if fresh else (self._barren + 1, self._restarts)
        self._seen |= fresh
        return configs

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Learns from the design or the generation asked for last."""
        losses = _losses(measurements)
        if self._optimizer is None:
            if self._ordered or self._categorical:
                self._seen |= set(configs)
                self._optimizer = self._start(configs[int(np.argmin(losses))])
            return
        # cmaes divides by the length of a step that is zero when a whole generation agrees in every category.
        with np.errstate(divide="ignore", invalid="ignore"):
            solutions = [solution for _, solution in self._asked]
            try:
                self._optimizer.tell(list(zip(solutions, losses, strict=True)))
            except np.linalg.LinAlgError:
                self._degenerate = True  # a covariance that has collapsed: there is nothing more to be had from it

    @property
    def converged(self) -> bool:
        """Whether the present distribution has stopped finding anything new: the next ask begins elsewhere."""
        if self._optimizer is None:
            return False
        return (
            self._degenerate
            or self._barren >= BARREN_GENERATIONS
            or bool(self._ordered and self._optimizer.should_stop())
        )

    def sample(self, count: int) -> list[KernelConfig]:
        """Configs drawn from the present distribution, legal, repeats allowed; none before there is one."""
        return [] if self._optimizer is None else [self._propose(self._optimizer)[0] for _ in range(count)]

    def _start(self, around: KernelConfig) -> CatCMAwM:
        """A new optimiser with its mean at a config."""
        sizes = [len(self._space.knobs[i].values) for i in self._ordered]
        mean = cov = None
        if sizes:
            indices = self._space.encode(around)
            mean = np.array([float(indices[i]) for i in self._ordered])
            # The widths that the package starts with at the centre: a fifth of the way to the edge.
            cov = np.diag([((size - 1) / 2 / 5) ** 2 for size in sizes])
        return CatCMAwM(
            z_space=[list(range(size)) for size in sizes] or None,
            c_space=[len(self._space.knobs[i].values) for i in self._categorical] or None,
            mean=mean,
            cov=cov,
            seed=int(self._rng.integers(2**31)),
        )

    def _propose(self, optimizer: CatCMAwM) -> tuple[KernelConfig, CatCMAwM.Solution]:
        for count in AT_ONCE:
            draws = draw(optimizer, count, self._rng)
            points = np.tile(self._fixed, (count, 1))
            points[:, self._ordered], points[:, self._categorical] = draws.ordered, draws.categories
            row = self._space.first_legal(points)
            if row is not None:
                return self._space.decode(points[row].tolist()), self._solution(points[row], draws.raw[row])
        config = self._space.sample(self._rng)
        return config, self._encode(config)

    def _encode(self, config: KernelConfig) -> CatCMAwM.Solution:
        """A solution for a config that was not drawn."""
        indices = np.array(self._space.encode(config))
        return self._solution(indices, indices[self._ordered].astype(float))

    def _solution(self, indices: NDArray[np.intp], raw: NDArray[np.float64]) -> CatCMAwM.Solution:
        """What the optimiser is told of a point. `_v_raw` is private: a test watches over it."""
        z = indices[self._ordered].astype(float)
        most = max((len(self._space.knobs[i].values) for i in self._categorical), default=0)
        c = indices[self._categorical][:, None] == np.arange(most)
        gaussian = {"z": z, "_v_raw": raw} if self._ordered else {}
        return CatCMAwM.Solution(**gaussian, **({"c": c} if self._categorical else {}))


def _losses(measurements: Sequence[Measurement]) -> list[float]:
    """The logarithm of each cost, with failures worse than all of the generation; never NaN or infinite."""
    costs = [measurement.cost for measurement in measurements]
    logs = [math.log(cost) if cost is not None and cost > 0 and math.isfinite(cost) else None for cost in costs]
    worst = max((loss for loss in logs if loss is not None), default=0.0) + 1.0
    return [worst if loss is None else loss for loss in logs]
