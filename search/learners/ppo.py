"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) of a policy that fills in one knob at a time.

An episode is one config: a step chooses a value for one knob, and the only reward comes at the end, when the config was
measured. Everything here is a pure function of arrays of fixed shapes, compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cupygemm.errors import ConfigError
from cupygemm.search.learners.knob_policy import PolicyModel
from cupygemm.search.learners.networks import Networks


@dataclass(frozen=True)
class PpoOptions:
    """How the policy is updated.

    The defaults are from some twenty combinations tried on the recorded H200 tables, 2026-11: the same tables that
    docs/tuning.md compares strategies on, so the comparison is not of unseen problems.

    Attributes:
        batch: configs drawn between two updates.
        epochs: passes over a batch in one update.
        minibatches: parts of a batch, each with its own step; they divide it.
        clip: how far the ratio of probabilities may move before its gradient ends (epsilon).
        entropy: weight of the entropy bonus in the first update; annealed like the learning rate.
        value: weight of the value network's squared error.
        gae_lambda: of generalised advantage estimation (arXiv 1506.02438); the discount is 1, episodes are short.
        learning_rate: of Adam, in the first step.
        annealed_batches: batches over which learning rate and entropy fall in a line to `final_fraction` of it.
        final_fraction: what is left of them from then on.
        max_gradient: norm that gradients are clipped to.
        target_kl: divergence from the policy that drew the batch, mean over knobs, at which the update ends early.
        temperature: rewards enter as exp((reward - best so far) / temperature).

    Raises:
        ConfigError: minibatches do not divide the batch.
    """

    batch: int = 16
    epochs: int = 8
    minibatches: int = 2
    clip: float = 0.2
    entropy: float = 0.02
    value: float = 0.5
    gae_lambda: float = 0.95
    learning_rate: float = 1e-2
    annealed_batches: int = 40
    final_fraction: float = 0.1
    max_gradient: float = 0.5
    target_kl: float = 0.1
    temperature: float = 0.2

    def __post_init__(self) -> None:
        if self.batch % self.minibatches:
            raise ConfigError(f"ppo: {self.minibatches} minibatches do not divide a batch of {self.batch}")

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps of an update that is not ended early."""
        return self.epochs * self.minibatches


class Rollout(NamedTuple):
    """A batch of configs as the policy drew them.

    Attributes:
        states: (batch, depth, features).
        masks: (batch, depth, width), what might be chosen.
        choices: (batch, depth).
        log_probs: (batch, depth), of the choices, by the policy that made them.
        values: (batch, depth), the rewards that the value network expected.
    """

    states: Any
    masks: Any
    choices: Any
    log_probs: Any
    values: Any


class Learner(NamedTuple):
    """Networks under training.

    Attributes:
        networks: parameters.
        state: of the optimiser.
        key: of the randomness to come.
        batches: updates made.
    """

    networks: Networks
    state: Any
    key: jax.Array
    batches: jax.Array


class Progress(NamedTuple):
    """What an update did, averaged over the steps that were taken: scalars."""

    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array
    kl: jax.Array
    steps: jax.Array


def new_learner(model: PolicyModel, options: PpoOptions, seed: int) -> Learner:
    """A learner with fresh networks."""
    key, networks = jax.random.split(jax.random.key(seed))
    return with_networks(options, model.create(networks), key)


def with_networks(options: PpoOptions, networks: Networks, key: jax.Array) -> Learner:
    """A learner that goes on from given networks, with a fresh optimiser."""
    return Learner(networks, _optimizer(options).init(networks), key, jnp.zeros((), jnp.int32))


@partial(jax.jit, static_argnums=0)
def rollout_of(
    model: PolicyModel, networks: Networks, states: jax.Array, masks: jax.Array, choices: jax.Array
) -> Rollout:
    """The rollout of choices that these networks made."""
    log_probs = _log_probs(model, networks, states, masks)
    chosen = jnp.take_along_axis(log_probs, choices[..., None], -1)[..., 0]
    return Rollout(states, masks, choices, chosen, model.values(networks, states))


def advantages(values: jax.Array, rewards: jax.Array, gae_lambda: float) -> jax.Array:
    """Generalised advantage estimates of episodes with one reward, at the end, and a discount of 1.

    A_t = sum over l of lambda^l · delta_(t+l), with delta_t = V_(t+1) - V_t, and R - V_t in the last step.

    Args:
        values: (batch, depth).
        rewards: (batch,).
        gae_lambda: in [0, 1].

    Returns:
        (batch, depth).
    """
    following = jnp.concatenate([values[:, 1:], rewards[:, None]], axis=1)
    deltas = following - values

    def back(advantage: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
        advantage = delta + gae_lambda * advantage
        return advantage, advantage

    _, found = jax.lax.scan(back, jnp.zeros_like(rewards), deltas.T, reverse=True)
    return found.T


def policy_loss(log_probs: jax.Array, old_log_probs: jax.Array, advantage: jax.Array, clip: float) -> jax.Array:
    """The clipped surrogate of equation 7, negated: -mean(min(r·A, clip(r, 1 - eps, 1 + eps)·A))."""
    ratio = jnp.exp(log_probs - old_log_probs)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()


def approximate_kl(log_probs: jax.Array, old_log_probs: jax.Array) -> jax.Array:
    """KL(old || new) from samples of old: mean((r - 1) - log r), which is never negative."""
    log_ratio = log_probs - old_log_probs
    return (jnp.expm1(log_ratio) - log_ratio).mean()


def entropy(log_probs: jax.Array) -> jax.Array:
    """Mean entropy of distributions (..., width), in nats; a masked value adds nothing."""
    return -jnp.where(log_probs > -1e8, jnp.exp(log_probs) * log_probs, 0.0).sum(-1).mean()


@partial(jax.jit, static_argnums=(0, 1))
def update(
    model: PolicyModel, options: PpoOptions, learner: Learner, rollout: Rollout, rewards: jax.Array
) -> tuple[Learner, Progress]:
    """One PPO update from a batch.

    Args:
        model: shapes.
        options: how.
        learner: what to update.
        rollout: drawn by the learner's policy.
        rewards: (batch,), finite.
    """
    found = advantages(rollout.values, rewards, options.gae_lambda)
    returns = found + rollout.values
    normalised = (found - found.mean()) / (found.std() + 1e-6)
    annealed = _annealed(options)(learner.batches)

    def loss(networks: Networks, rows: jax.Array) -> tuple[jax.Array, Progress]:
        states, masks = rollout.states[rows], rollout.masks[rows]
        log_probs = _log_probs(model, networks, states, masks)
        chosen = jnp.take_along_axis(log_probs, rollout.choices[rows][..., None], -1)[..., 0]
        policy = policy_loss(chosen, rollout.log_probs[rows], normalised[rows], options.clip)
        value = jnp.square(model.values(networks, states) - returns[rows]).mean()
        spread = entropy(log_probs)
        kl = approximate_kl(chosen, rollout.log_probs[rows])
        total = policy + options.value * value - options.entropy * annealed * spread
        return total, Progress(policy, value, spread, kl, jnp.ones(()))

    key, shuffles = jax.random.split(learner.key)
    orders = jax.vmap(lambda each: jax.random.permutation(each, options.batch))(
        jax.random.split(shuffles, options.epochs)
    )
    carry = (learner.networks, learner.state, jnp.zeros((), bool))
    step = partial(_step, _optimizer(options), loss, options.target_kl, options.learning_rate * annealed)
    (networks, state, _), taken = jax.lax.scan(step, carry, orders.reshape(options.steps_per_batch, -1))
    steps = taken.steps.sum()
    # The first step is always taken: there the divergence is 0.
    means = jax.tree.map(lambda part: part.sum() / steps, taken)._replace(steps=steps)
    return Learner(networks, state, key, learner.batches + 1), means


def _step(
    optimizer: optax.GradientTransformation,
    loss: Callable[..., Any],
    target_kl: float,
    rate: jax.Array,
    carry: Any,
    rows: jax.Array,
) -> Any:
    """One optimiser step on a minibatch; nothing once the policy has moved too far from the one that drew it."""
    networks, state, stopped = carry
    (_, progress), gradients = jax.value_and_grad(loss, has_aux=True)(networks, rows)
    stopped = stopped | (progress.kl > target_kl)
    updates, new_state = optimizer.update(gradients, state, networks)
    moved = (optax.apply_updates(networks, jax.tree.map(lambda part: -rate * part, updates)), new_state)
    kept = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), (networks, state), moved)
    return (*kept, stopped), jax.tree.map(lambda part: jnp.where(stopped, 0.0, part), progress)


def _log_probs(model: PolicyModel, networks: Networks, states: jax.Array, masks: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(model.logits(networks, states, masks))


def _annealed(options: PpoOptions) -> optax.Schedule:
    """The factor on learning rate and entropy after so many batches."""
    return optax.linear_schedule(1.0, options.final_fraction, options.annealed_batches)


def _optimizer(options: PpoOptions) -> optax.GradientTransformation:
    """Adam's direction after clipping; the rate, which depends on the batch, is applied to it in the step."""
    return optax.chain(optax.clip_by_global_norm(options.max_gradient), optax.scale_by_adam())
