"""What the networks of the learning strategies and of the policy for many problems have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

MASKED = -1e9
"""Logit of a value that may not be chosen: its probability is exactly 0 in float32."""

Params = Any
"""A tree of arrays, as Flax makes it."""


class Mlp(nn.Module):
    """Two hidden layers of tanh, and a linear output whose weights start small.

    Attributes:
        outputs: length of the output.
        hidden: length of each hidden layer.
        output_scale: standard deviation of the first output weights, by orthogonal initialisation: 0.01 begins with an
            almost uniform policy (Andrychowicz et al. 2021, arXiv 2006.05990).
    """

    outputs: int
    hidden: int = 64
    output_scale: float = 0.01

    @nn.compact
    def __call__(self, state: jax.Array) -> jax.Array:
        """State (..., features) to output (..., outputs)."""
        hidden = state
        for _ in range(2):
            hidden = jnp.tanh(nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5))(hidden))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.output_scale))(hidden)


class Networks(NamedTuple):
    """The parameters of a policy network and of a value network: trees of arrays."""

    policy: Params
    value: Params


def cpu() -> jax.Device:
    """The device that all networks run on, whatever else the machine has."""
    return jax.devices("cpu")[0]
