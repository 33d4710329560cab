"""A population with a policy that knows other problems: the one proposes, the other says what is worth measuring.

The population are the best configs so far; its offspring differ from one of them in one knob. Half of a batch are
those of its offspring that the policy thinks most of, half are what it thinks most of elsewhere, both drawn with some
noise. After each batch the policy learns anew what was measured, from where its training left it. What JAX compiles
for that is compiled by a thread, beside the measuring: the first configs are suggested with NumPy alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement
from cupygemm.search.learners.networks import cpu
from cupygemm.search.policy.features import BEHIND
from cupygemm.search.policy.transfer import params_of, refit, weights_of
from cupygemm.search.policy.transfer_options import RefitOptions
from cupygemm.search.policy.weights import PolicyWeights
from cupygemm.search.rewards import WORST
from cupygemm.search.strategies import MOST_STARTS, StrategyContext, unseen

BATCH = 8
"""Configs asked for at once."""
ELITES = 4
"""Configs whose neighbours are the offspring."""
NOISE = 0.3
"""Scale of the Gumbel noise on scores: a temperature, under which configs are drawn without replacement."""
ROWS = 64
"""Arrays of what was measured are padded to multiples of it, so that little is compiled."""
AHEAD = 2 * BATCH
"""Configs before more rows are needed that compiling for those begins."""
_compiling: dict[Hashable, threading.Thread] = {}
"""By what is compiled: once for all searches of a process."""


class Guided:
    """Asks for offspring of the best and for what the policy ranks highest; the policy learns from the answers."""

    def __init__(self, context: StrategyContext, options: RefitOptions | None = None) -> None:
        """Prepares the first batch: the configs to start from that are legal here, or else the policy's first.

        Raises:
            ConfigError: the context has no guide.
        """
        if context.guide is None:
            raise ConfigError("a guided search needs a policy: train one with `cupygemm train`")
        self._space, self._guide = context.space, context.guide
        self._weights = context.guide.weights
        self._options = options or RefitOptions(self._weights.hidden)
        self._rng = np.random.default_rng(context.seed)
        self._rewards = context.rewards
        self._baseline_us: float | None = None
        self._costs: dict[KernelConfig, float] = {}  # e to the power of minus the reward
        self._known: dict[KernelConfig, NDArray[np.float32]] = {}
        legal = [config for config in context.start if context.space.is_legal(config)]
        self._first = list(dict.fromkeys(legal or self._guide.ranked(MOST_STARTS)))[:MOST_STARTS]
        _compile_ahead(self._options, self._weights, ROWS)

    def ask(self) -> list[KernelConfig]:
        """The next configs, none of them twice; empty when nothing new is found."""
        if self._first:
            asked, self._first = self._first, []
            return asked
        near = self._most_promising(self._offspring(), BATCH // 2)
        far = self._most_promising((c for c in self._guide.candidates if c not in near), BATCH - len(near))
        asked = [*near, *far]
        if not asked:
            other = unseen(self._space, self._costs, self._rng)
            asked = [] if other is None else [other]
        return asked

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Keeps the rewards, and lets the policy learn them."""
        self._baseline_us = self._baseline_us or next((each.us for each in measurements if each.us), None)
        for config, measurement in zip(configs, measurements, strict=True):
            reward = self._rewards.reward(measurement, self._baseline_us or 1.0)
            self._costs[config] = math.exp(-reward) if reward > WORST else math.inf
        if min(self._costs.values(), default=math.inf) < math.inf:
            self._learn()

    def _offspring(self) -> list[KernelConfig]:
        """Neighbours of the best configs."""
        ran = sorted((cost, config) for config, cost in self._costs.items() if cost < math.inf)
        found = (each for _, elite in ran[:ELITES] for each in self._space.neighbours(elite, any_value=True))
        return list(dict.fromkeys(found))

    def _most_promising(self, configs: Iterable[KernelConfig], count: int) -> list[KernelConfig]:
        """Draws from those that were not measured, by the policy, without replacement."""
        fresh = [config for config in configs if config not in self._costs]
        if not fresh:
            return []
        scores = self._weights.scores(self._features(fresh)) + NOISE * self._rng.gumbel(size=len(fresh))
        return [fresh[i] for i in np.argsort(-scores, kind="stable")[:count]]

    def _features(self, configs: Sequence[KernelConfig]) -> NDArray[np.float32]:
        unknown = [config for config in configs if config not in self._known]
        if unknown:
            self._known.update(zip(unknown, self._guide.features(unknown), strict=True))
        return np.array([self._known[config] for config in configs])

    def _learn(self) -> None:
        """Fits the policy to all that was measured."""
        trained, options = self._guide.weights, self._options
        costs = np.array(list(self._costs.values()))
        rows = -(-len(costs) // ROWS) * ROWS
        compiling = _compile_ahead(self._options, trained, rows)
        if len(costs) + AHEAD > rows:
            _compile_ahead(self._options, trained, rows + ROWS)
        weights = np.full(rows, -1.0, dtype=np.float32)
        worths = np.exp(-np.log(costs / costs.min()) / options.temperature)
        weights[: len(costs)] = worths / worths.sum()
        features = np.zeros((rows, len(trained.standard.mean)), dtype=np.float32)
        features[: len(costs)] = self._features(list(self._costs))
        compiling.join()
        with jax.default_device(cpu()):
            seen = trained.standard(features)
            policy = refit(options, params_of(trained), seen, features[:, BEHIND], weights)
            self._weights = weights_of(trained, policy)


def _compile_ahead(options: RefitOptions, trained: PolicyWeights, rows: int) -> threading.Thread:
    """The thread in which JAX compiles `refit` for so many rows; it may have ended.

    It is no daemon: a process that ended meanwhile would unload the compiler at work.
    """
    key = options, tuple(kernel.shape for kernel, _ in trained.layers), rows
    if key not in _compiling:
        thread = threading.Thread(target=_refit_nothing, args=(options, trained, rows), name="cupygemm-jax")
        thread.start()
        _compiling[key] = thread
    return _compiling[key]


def _refit_nothing(options: RefitOptions, trained: PolicyWeights, rows: int) -> None:
    """One refit of made-up rows: JAX keeps what it compiles for it."""
    features = np.zeros((rows, len(trained.standard.mean)), dtype=np.float32)
    weights = np.full(rows, -1.0, dtype=np.float32)
    weights[0] = 1.0
    with jax.default_device(cpu()):
        refit(options, params_of(trained), trained.standard(features), features[:, BEHIND], weights)
