"""Configs that a trained policy suggests for a problem: NumPy alone, so that it runs wherever a kernel does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cupygemm.choosing.estimate import estimated_us
from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.errors import FileError
from cupygemm.problem import Problem
from cupygemm.search.policy.features import features
from cupygemm.search.policy.weights import PolicyWeights, shipped_weights
from cupygemm.search.spaces.space import SearchSpace


class Guide:
    """A policy that is told a problem: it says which configs of a space are the most promising.

    Attributes:
        weights: of the policy.
        problem, device: what it was told.
        candidates: the configs that it chooses from: all of the space where those are known, else what was among the
            fastest somewhere and is legal here.
    """

    def __init__(self, weights: PolicyWeights, problem: Problem, device: DeviceSpec, space: SearchSpace) -> None:
        self.weights, self.problem, self.device = weights, problem, device
        known = space.members if space.members is not None else filter(space.is_legal, weights.configs)
        self.candidates = tuple(known)

    def features(self, configs: Sequence[KernelConfig]) -> NDArray[np.float32]:
        """What the policy sees of legal configs, its candidates or not: (n, len(FEATURES))."""
        return features(self.problem, self.device, configs, self._least_us)

    def scores(self, configs: Sequence[KernelConfig]) -> NDArray[np.float32]:
        """Logits of legal configs, (n,): the policy takes each with a probability of exp(score), up to a factor."""
        return self.weights.scores(self.features(configs))

    def ranked(self, count: int) -> list[KernelConfig]:
        """The candidates with the highest scores, the highest first."""
        scores = self.scores(self.candidates) if self.candidates else np.zeros(0)
        return [self.candidates[i] for i in np.argsort(-scores, kind="stable")[:count]]

    @cached_property
    def _least_us(self) -> float | None:
        """The least estimate of the candidates, which all estimates are compared with."""
        return min(estimated_us(self.problem, self.candidates, self.device), default=None)


def suggestions(
    problem: Problem,
    device: DeviceSpec,
    count: int,
    space: SearchSpace | None = None,
    weights: PolicyWeights | None = None,
) -> list[KernelConfig]:
    """Different legal configs of a problem, the most promising first: the same each time.

    Args:
        problem, device: what is to be computed, and where.
        count: how many at most.
        space: to choose from; None for all that is legal.
        weights: of the policy; None for the one that ships with the package.

    Raises:
        FileError: the package has no policy, or one that does not fit this version.
    """
    weights = weights or shipped_weights()
    if weights is None:
        raise FileError("no policy ships with this package: train one with `cupygemm train`")
    space = space or SearchSpace.for_problem(problem, device)
    return Guide(weights, problem, device, space).ranked(count)
