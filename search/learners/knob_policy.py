"""The networks of the learning strategies: a policy that fills in one knob after the other, and a value network.

A state is the knobs chosen so far and which knob is next. The policy gives logits over the values of the next knob;
values that lead to no legal config are masked before the softmax, where configs are drawn and where the policy is
updated alike, so that both mean the same distribution. All arrays live on the CPU: the networks are small, and the GPU
is being measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from cupygemm.search.learners.networks import MASKED, Mlp, Networks


@dataclass(frozen=True)
class PolicyModel:
    """The shapes of the networks for knobs with so many values each, and what is computed with them.

    It is hashable, so that it can be a static argument of jitted functions.

    Attributes:
        sizes: number of values of each knob, in the order in which they are chosen.
    """

    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Length of the logits: the most values that a knob has."""
        return max(self.sizes)

    @property
    def depth(self) -> int:
        """Number of knobs, so of choices."""
        return len(self.sizes)

    @property
    def features(self) -> int:
        """Length of a state: a one-hot of each knob chosen, and one of which knob is next."""
        return sum(self.sizes) + self.depth

    def create(self, key: jax.Array) -> Networks:
        """Fresh networks."""
        policy, value = jax.random.split(key)
        state = jnp.zeros((1, self.features))
        return Networks(self._policy.init(policy, state), self._value.init(value, state))

    def logits(self, networks: Networks, states: jax.Array, masks: jax.Array) -> jax.Array:
        """States (..., features) and masks (..., width) to logits (..., width), `MASKED` where the mask is False."""
        return jnp.where(masks, self._policy.apply(networks.policy, states), MASKED)

    def values(self, networks: Networks, states: jax.Array) -> jax.Array:
        """States (..., features) to the rewards expected from there (...)."""
        return self._value.apply(networks.value, states)[..., 0]

    def states(self, choices: NDArray[np.int32]) -> NDArray[np.float32]:
        """Choices (n, depth) to the states before each of them (n, depth, features)."""
        count, depth = len(choices), self.depth
        offsets = np.cumsum([0, *self.sizes[:-1]])
        states = np.zeros((count, depth, self.features), dtype=np.float32)
        rows = np.arange(count)
        for position in range(depth):
            states[rows, position + 1 :, offsets[position] + choices[:, position]] = 1.0
            states[:, position, sum(self.sizes) + position] = 1.0
        return states

    @property
    def _policy(self) -> Mlp:
        return Mlp(self.width)

    @property
    def _value(self) -> Mlp:
        return Mlp(1, output_scale=1.0)


class HostPolicy:
    """The policy of one moment in NumPy. For one state at a time a call of JAX takes longer than what it computes."""

    def __init__(self, model: PolicyModel, networks: Networks) -> None:
        layers = networks.policy["params"]
        self._layers = [
            (np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in sorted(layers)
        ]
        self._offsets = (0, *accumulate(model.sizes))

    def logits(self, choices: Sequence[int]) -> NDArray[np.float32]:
        """Of the values of the knob after these choices (width,), unmasked; the same as `PolicyModel.logits`."""
        (kernel, hidden), *later = self._layers
        # A state has ones where something was chosen, and one for which knob is next: their rows alone count.
        ones = [offset + choice for offset, choice in zip(self._offsets, choices, strict=False)]
        found: NDArray[np.float32] = kernel[[*ones, self._offsets[-1] + len(choices)]].sum(axis=0) + hidden
        for kernel, bias in later:
            found = np.tanh(found) @ kernel + bias
        return found

    def draw(self, choices: Sequence[int], mask: NDArray[np.bool_], rng: np.random.Generator) -> int:
        """The next choice, drawn from the softmax over the values in the mask (width,): the Gumbel-max trick."""
        noisy = self.logits(choices) + rng.gumbel(size=len(mask))
        return int(np.argmax(np.where(mask, noisy, -np.inf)))
