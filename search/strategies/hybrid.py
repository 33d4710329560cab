"""A population and a policy. With a policy that knows other problems the two take turns: `Guided`. Without one,
population search, then PPO: the one finds where it is good, the other is warm-started there and goes on."""

from __future__ import annotations

from collections.abc import Sequence

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement
from cupygemm.names import POPULATION_EVALUATIONS
from cupygemm.search.strategies import Strategy, StrategyContext
from cupygemm.search.strategies.cma import CmaEs
from cupygemm.search.strategies.guided import Guided
from cupygemm.search.strategies.ppo import Ppo

SAMPLED = 48
"""Configs drawn from the population's distribution that the policy imitates beside the measured ones."""


def hybrid(context: StrategyContext) -> Strategy:
    """What `--strategy hybrid` is: it depends on whether there is a guide."""
    return Hybrid(context) if context.guide is None else Guided(context)


class Hybrid:
    """`CmaEs` until it has measured enough, then `Ppo` warm-started from its elites and its distribution."""

    def __init__(self, context: StrategyContext) -> None:
        """Prepares both.

        Args:
            context: what is searched; the configs to start from are the population's.
        """
        self._population = CmaEs(context)
        self._policy = Ppo(context.without_start())
        self._rewarded: dict[KernelConfig, float] = {}
        self._learning = False

    def ask(self) -> list[KernelConfig]:
        """The population's generations, then the policy's batches."""
        return self._policy.ask() if self._learning else self._population.ask()

    def tell(self, configs: Sequence[KernelConfig], measurements: Sequence[Measurement]) -> None:
        """Tells whoever asked; the policy also learns of what the population found."""
        if self._learning:
            self._policy.tell(configs, measurements)
            return
        self._population.tell(configs, measurements)
        rewards = self._policy.observe(configs, measurements)
        self._rewarded.update(zip(configs, rewards.tolist(), strict=True))
        if len(self._rewarded) >= POPULATION_EVALUATIONS or self._population.converged:
            self._hand_over()

    def _hand_over(self) -> None:
        """The policy learns from the population's measurements, in whole batches, then imitates its elites."""
        rewarded = list(self._rewarded.items())
        self._policy.learn(rewarded)
        self._policy.imitate(rewarded, self._population.sample(SAMPLED))
        self._learning = True
