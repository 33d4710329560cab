"""PPO as a strategy: a policy draws batches of configs, and is updated by what they were worth.

Configs are drawn without replacement: what was measured, or drawn before in the same batch, is masked out, in the draw
and in the update alike. So a batch is always new, however sure the policy has become.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.search.learners.cloning import CloningOptions, Examples, clone
from cupygemm.search.learners.knob_policy import HostPolicy, PolicyModel
from cupygemm.search.learners.networks import cpu
from cupygemm.search.learners.ppo import Learner, PpoOptions, Rollout, new_learner, rollout_of, update, with_networks
from cupygemm.search.spaces.choices import Choices, Indices
from cupygemm.search.strategies import StrategyContext


class Ppo:
    """Draws from a policy over one knob after the other.

    Where it is given configs to start from, it measures those first and imitates them, weighted by what they were worth
    here; the policy begins almost uniform otherwise.
    """

    def __init__(
        self,
        context: StrategyContext,
        options: PpoOptions | None = None,
        cloning: CloningOptions | None = None,
    ) -> None:
        """Makes fresh networks.

        Args:
            context: what is searched.
            options: of the updates; None for the defaults.
            cloning: of the warm start; None for the defaults.
        """
        self._context, self._options, self._cloning = context, options or PpoOptions(), cloning or CloningOptions()
        self._choices = Choices(context.space)
        self._model = PolicyModel(self._choices.sizes)
        self._first = [config for config in context.start if context.space.is_legal(config)][: self._options.batch]
        self._baseline_us: float | None = None
        self._best_reward = -np.inf
        self._rollout: Rollout | None = None
        self._rng = np.random.default_rng(context.seed)
        with jax.default_device(cpu()):
            self._learner: Learner = new_learner(self._model, self._options, context.seed)

    def ask(self) -> list[KernelConfig]:
        """The configs to start from, then a batch at a time; empty when all have been measured."""
        self._rollout = None
        if self._first:
            return self._first
        if not self._choices.open(()).any():
            return []
        drawn = self._draw()
        return [self._choices.decode(tuple(row)) for row in drawn.tolist()]

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Updates the policy by the batch that it drew, or imitates the configs it started from."""
        rewards = self.observe(configs, measurements)
        if self._rollout is not None:
            self._update(self._rollout, rewards)
        elif self._first:
            self.imitate(zip(configs, rewards.tolist(), strict=True))
            self._first = []

    def observe(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> NDArray[np.float32]:
        """Takes note that configs were measured, whoever proposed them; their rewards."""
        for config in configs:
            self._choices.take(self._choices.encode(config))
        times = (measurement.us for measurement in measurements)
        self._baseline_us = self._baseline_us or next((us for us in times if us), None)
        weights, baseline_us = self._context.rewards, self._baseline_us or 1.0
        rewards = np.array([weights.reward(each, baseline_us) for each in measurements], dtype=np.float32)
        self._best_reward = max(self._best_reward, float(rewards.max(initial=-np.inf)))
        return rewards

    def learn(self, rewarded: Sequence[tuple[KernelConfig, float]]) -> None:
        """Updates the policy by configs that somebody else proposed, as if it had drawn them, in whole batches.

        Args:
            rewarded: measured configs with their rewards; what is left over from the last whole batch is not used.
        """
        batch = self._options.batch
        for first in range(0, len(rewarded) - batch + 1, batch):
            part = rewarded[first : first + batch]
            choices, masks = self._encoded([config for config, _ in part])
            with jax.default_device(cpu()):
                states = self._model.states(choices)
                rollout = rollout_of(self._model, self._learner.networks, states, masks, choices)
            self._update(rollout, np.array([reward for _, reward in part], dtype=np.float32))

    def imitate(self, rewarded: Iterable[tuple[KernelConfig, float]], sampled: Sequence[KernelConfig] = ()) -> None:
        """Warm-starts the networks, and begins with a fresh optimiser.

        Args:
            rewarded: measured configs with their rewards; the best of them are imitated most.
            sampled: configs drawn from a distribution that is worth imitating, not measured.
        """
        examples = self._examples(sorted(rewarded, key=lambda pair: -pair[1]), sampled)
        with jax.default_device(cpu()):
            networks = clone(self._model, self._cloning, self._learner.networks, examples)
            self._learner = with_networks(self._options, networks, self._learner.key)

    def _draw(self) -> NDArray[np.int32]:
        """Up to a batch of choices (n, depth) by the policy, without replacement; remembers the rollout."""
        rows: list[list[int]] = []
        masks: list[NDArray[np.bool_]] = []
        policy = HostPolicy(self._model, self._learner.networks)
        while len(rows) < self._options.batch and self._choices.open(()).any():
            row, mask = self._draw_one(policy)
            self._choices.take(tuple(row))
            rows.append(row)
            masks.append(mask)
        choices = np.array(rows, dtype=np.int32)
        # A last batch that is not full teaches nothing: nothing comes after it.
        if len(rows) == self._options.batch:
            with jax.default_device(cpu()):
                states = self._model.states(choices)
                self._rollout = rollout_of(self._model, self._learner.networks, states, np.array(masks), choices)
        return choices

    def _draw_one(self, policy: HostPolicy) -> tuple[list[int], NDArray[np.bool_]]:
        """Choices among what is open, and the masks (depth, width) they were drawn under."""
        row: list[int] = []
        masks = np.zeros((self._model.depth, self._model.width), dtype=bool)
        for mask in masks:
            mask[:] = self._choices.open(tuple(row))
            row.append(policy.draw(row, mask, self._rng))
        return row, masks

    def _update(self, rollout: Rollout, rewards: NDArray[np.float32]) -> None:
        with jax.default_device(cpu()):
            self._learner, _ = update(self._model, self._options, self._learner, rollout, self._worths(rewards))

    def _worths(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rewards as the networks learn them: only what is near the best so far makes a difference, for a config that
        is five times slower is no worse than one that takes twice the time."""
        worths: NDArray[np.float32] = np.exp((rewards - self._best_reward) / self._options.temperature)
        return worths

    def _encoded(self, configs: Sequence[KernelConfig]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Choices (n, depth) and the legal values at each of them (n, depth, width)."""
        choices = np.array([self._choices.encode(config) for config in configs], dtype=np.int32)
        masks = [[self._choices.legal(_prefix(row, position)) for position in range(len(row))] for row in choices]
        return choices, np.array(masks)

    def _examples(self, rewarded: list[tuple[KernelConfig, float]], sampled: Sequence[KernelConfig]) -> Examples:
        options, model = self._cloning, self._model
        measured = rewarded[: options.rows - min(len(sampled), options.rows // 2)]
        configs = [*(config for config, _ in measured), *sampled][: options.rows]
        count, extra = len(measured), len(configs) - len(measured)
        rewards = np.array([reward for _, reward in measured], dtype=np.float32)
        weights = np.zeros(options.rows, dtype=np.float32)
        weights[:count] = _normalised(np.exp((rewards - rewards.max(initial=-np.inf)) / options.temperature))
        weights[count : count + extra] = options.sampled_weight / max(extra, 1)
        choices = np.zeros((options.rows, model.depth), dtype=np.int32)
        masks = np.ones((options.rows, model.depth, model.width), dtype=bool)
        choices[: len(configs)], masks[: len(configs)] = self._encoded(configs)
        known = np.pad(self._worths(rewards), (0, options.rows - count))
        return Examples(
            model.states(choices),
            masks,
            choices,
            _normalised(weights),
            known,
            (np.arange(options.rows) < count).astype(np.float32),
        )


def _prefix(row: NDArray[np.int32], length: int) -> Indices:
    return tuple(row[:length].tolist())


def _normalised(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    total = weights.sum()
    return weights / total if total > 0 else weights
