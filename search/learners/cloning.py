"""Warm start: a policy that imitates good configs before it draws its own.

Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177): the likelihood of the configs measured so far is
maximised, each weighted by how good it was, while the value network learns their rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cupygemm.search.learners.knob_policy import PolicyModel
from cupygemm.search.learners.networks import Networks
from cupygemm.search.learners.ppo import entropy


@dataclass(frozen=True)
class CloningOptions:
    """How a policy is warm-started: gently.

    What 32 evaluations know is as often a wrong basin as not, and a policy that imitates them well does not leave it
    (docs/status.md, "Tried and failed").

    Attributes:
        rows: configs to imitate at most; arrays are padded to it, so that it is compiled once.
        steps: full-batch Adam steps.
        learning_rate: of Adam.
        temperature: of the weights exp((reward - best) / temperature); rewards are logarithms of speed.
        entropy: weight of the entropy bonus, which keeps the policy from copying one config.
        sampled_weight: of all configs drawn from the population's distribution, beside 1 for all measured ones.
    """

    rows: int = 128
    steps: int = 10
    learning_rate: float = 3e-3
    temperature: float = 0.1
    entropy: float = 0.02
    sampled_weight: float = 0.3


class Examples(NamedTuple):
    """Configs to imitate; rows of weight 0 are padding.

    Attributes:
        states: (rows, depth, features).
        masks: (rows, depth, width).
        choices: (rows, depth).
        weights: (rows,), of the policy's likelihood; they sum to 1.
        worths: (rows,), in the units of PPO's updates, for the value network; what was not measured has `measured` 0.
        measured: (rows,), 1 or 0.
    """

    states: Any
    masks: Any
    choices: Any
    weights: Any
    worths: Any
    measured: Any


@partial(jax.jit, static_argnums=(0, 1))
def clone(model: PolicyModel, options: CloningOptions, networks: Networks, examples: Examples) -> Networks:
    """The networks after imitating the examples."""
    optimizer = optax.adam(options.learning_rate)
    counted = jnp.maximum(examples.measured.sum(), 1.0)

    def loss(networks: Networks) -> jax.Array:
        log_probs = jax.nn.log_softmax(model.logits(networks, examples.states, examples.masks))
        chosen = jnp.take_along_axis(log_probs, examples.choices[..., None], -1)[..., 0]
        likelihood = (examples.weights * chosen.sum(-1)).sum()
        errors = jnp.square(model.values(networks, examples.states) - examples.worths[:, None]).mean(-1)
        spread = (examples.weights * jax.vmap(entropy)(log_probs)).sum()
        return -likelihood - options.entropy * spread + (examples.measured * errors).sum() / counted

    def step(carry: Any, _: None) -> Any:
        networks, state = carry
        updates, state = optimizer.update(jax.grad(loss)(networks), state, networks)
        return (optax.apply_updates(networks, updates), state), None

    (networks, _), _ = jax.lax.scan(step, (networks, optimizer.init(networks)), None, length=options.steps)
    return networks
