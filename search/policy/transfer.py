"""The policy that serves many problems, as Flax has it: what is computed with it, and how it learns.

A step of it is a whole config: a network scores each candidate of a problem by what is seen of both (`features`), and a
softmax over the candidates, which are legal, makes that a distribution. So what it learns of one problem's waves and
bytes holds for another's. To the network's say a score adds log2 of the estimate times a weight, which is learnt too.

A policy is several such networks, its members, and its score the mean of theirs: of problems unlike those learnt from
each errs in its own way (deep ensembles, Lakshminarayanan et al. 2017, arXiv 1612.01474). What a network adds to all
candidates of a problem alike moves the mean so too, and with it no probability. They learn apart, side by side: trees
of parameters have an axis of members in front.

Each learns twice from recorded tables: it imitates the fastest configs of each problem, weighted by their speed
(advantage-weighted regression, Peng et al. 2019, arXiv 1910.00177), and is then updated by proximal policy
optimisation on configs that it draws, all problems together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from cupygemm.search.learners.networks import MASKED, Mlp, Networks, Params
from cupygemm.search.learners.ppo import advantages, approximate_kl, entropy, policy_loss
from cupygemm.search.policy.transfer_options import RefitOptions, TrainingOptions
from cupygemm.search.policy.weights import PolicyWeights


class ScoreNet(nn.Module):
    """Standardised features (..., features) and what the estimate is behind (...) to scores (...).

    Attributes:
        hidden: length of each hidden layer.
        prior: weight of the estimate at the start.
    """

    hidden: int
    prior: float

    @nn.compact
    def __call__(self, seen: jax.Array, behind: jax.Array) -> jax.Array:
        """The sum of what the network says and what the estimate does."""
        weight = self.param("prior", nn.initializers.constant(self.prior), ())
        return Mlp(1, self.hidden)(seen)[..., 0] + weight * behind


class Batch(NamedTuple):
    """The problems learnt from, their candidates padded to the most of one.

    Attributes:
        seen: (problems, candidates, features), standardised.
        behind: (problems, candidates), log2 of the estimate over the least.
        legal: (problems, candidates), False where there is padding.
        weights: (problems, candidates), of imitation; they sum to 1 in each problem.
        problems: (problems, problem features), standardised.
    """

    seen: Any
    behind: Any
    legal: Any
    weights: Any
    problems: Any


class Drawn(NamedTuple):
    """Configs as each member drew them, each with the logarithm of its probability then: (members, problems, draws)."""

    choices: Any
    log_probs: Any


def score_net(options: TrainingOptions) -> ScoreNet:
    """The network of a member."""
    return ScoreNet(options.hidden, options.prior)


def create(options: TrainingOptions, batch: Batch, key: jax.Array) -> Networks:
    """Fresh networks of each member: its policy, and one that says how good its draws will be on a problem."""

    def fresh(key: jax.Array) -> Networks:
        policy, value = jax.random.split(key)
        seen, behind = batch.seen[:1, :1], batch.behind[:1, :1]
        scoring = score_net(options).init(policy, seen, behind)
        return Networks(scoring, _value_net(options).init(value, batch.problems[:1]))

    found: Networks = jax.vmap(fresh)(jax.random.split(key, options.members))
    return found


@partial(jax.jit, static_argnums=0)
def log_probs(options: TrainingOptions, policy: Params, batch: Batch) -> jax.Array:
    """Of each candidate of each problem, by the mean of the members: (problems, candidates); padding has none."""
    return _distribution(jax.vmap(partial(_scores, options, batch))(policy).mean(0), batch)


@partial(jax.jit, static_argnums=0)
def clone(options: TrainingOptions, networks: Networks, batch: Batch) -> Networks:
    """The members after imitating what was fast: full-batch steps of Adam with weight decay."""
    rate = optax.cosine_decay_schedule(options.cloning_rate, options.cloning_steps)
    optimizer = optax.adamw(rate, weight_decay=options.weight_decay)

    def loss(policy: Params) -> jax.Array:
        found = _distribution(_scores(options, batch, policy), batch)
        return -jnp.where(batch.legal, batch.weights * found, 0.0).sum(-1).mean()

    def step(carry: Any, _: None) -> Any:
        policy, state = carry
        updates, state = optimizer.update(jax.grad(loss)(policy), state, policy)
        return (optax.apply_updates(policy, updates), state), None

    def imitating(policy: Params) -> Params:
        return jax.lax.scan(step, (policy, optimizer.init(policy)), None, length=options.cloning_steps)[0][0]

    return networks._replace(policy=jax.vmap(imitating)(networks.policy))


@partial(jax.jit, static_argnums=0)
def refit(options: RefitOptions, start: Params, seen: jax.Array, behind: jax.Array, weights: jax.Array) -> Params:
    """The members after imitating what was measured of one problem, each held near where it starts.

    Args:
        options: how.
        start: parameters of the members, as they were trained.
        seen: (rows, features), standardised.
        behind: (rows,).
        weights: (rows,), of imitation; they sum to 1, and what is negative is padding.
    """
    optimizer, net = optax.adam(options.rate), ScoreNet(options.hidden, 0.0)
    measured = weights >= 0

    def loss(policy: Params, start: Params) -> jax.Array:
        found = jax.nn.log_softmax(jnp.where(measured, net.apply(policy, seen, behind), MASKED))
        moved = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(policy), jax.tree.leaves(start), strict=True))
        return -jnp.where(measured, weights * found, 0.0).sum() + options.tether * moved

    def imitating(start: Params) -> Params:
        def step(carry: Any, _: None) -> Any:
            policy, state = carry
            updates, state = optimizer.update(jax.grad(loss)(policy, start), state, policy)
            return (optax.apply_updates(policy, updates), state), None

        return jax.lax.scan(step, (start, optimizer.init(start)), None, length=options.steps)[0][0]

    return jax.vmap(imitating)(start)


@partial(jax.jit, static_argnums=0)
def draw(options: TrainingOptions, policy: Params, batch: Batch, key: jax.Array) -> Drawn:
    """Independent draws of candidates for each problem, by each member of its own."""

    def drawn(policy: Params, key: jax.Array) -> Drawn:
        found = _distribution(_scores(options, batch, policy), batch)
        choices = jax.random.categorical(key, found, axis=-1, shape=(options.draws, len(found))).T
        return Drawn(choices, jnp.take_along_axis(found, choices, -1))

    found: Drawn = jax.vmap(drawn)(policy, jax.random.split(key, options.members))
    return found


@partial(jax.jit, static_argnums=0)
def update(
    options: TrainingOptions, networks: Networks, state: Any, batch: Batch, drawn: Drawn, rewards: jax.Array
) -> tuple[Networks, Any, jax.Array]:
    """One PPO update of each member from its draws for all problems.

    Args:
        options: how.
        networks: of the members.
        state: of the optimiser, as `optimizer_state` makes it and updates change it.
        batch: what is learnt from.
        drawn: by the members.
        rewards: (members, problems, draws).

    Returns:
        Networks and the optimiser's state, and the steps that each member took (members,).
    """
    found: tuple[Networks, Any, jax.Array] = jax.vmap(partial(_updated, options, batch))(
        networks, state, drawn, rewards
    )
    return found


def optimizer_state(options: TrainingOptions, networks: Networks) -> Any:
    """Of the PPO updates, before the first, for each member."""
    return jax.vmap(_optimizer(options).init)(networks)


def layers_of(
    policy: Params,
) -> tuple[tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...], NDArray[np.float32]]:
    """Kernels and biases of the members, and their weights of the estimate, as `PolicyWeights` has them."""
    inner = policy["params"]["Mlp_0"]
    layers = [inner[f"Dense_{index}"] for index in range(len(inner))]
    found = tuple((np.asarray(each["kernel"]), np.asarray(each["bias"])) for each in layers)
    return found, np.asarray(policy["params"]["prior"])


def weights_of(trained: PolicyWeights, policy: Params) -> PolicyWeights:
    """The weights with other parameters of the members."""
    layers, prior = layers_of(policy)
    return replace(trained, layers=layers, prior=prior)


def params_of(weights: PolicyWeights) -> Params:
    """The inverse of `layers_of`: parameters of a `ScoreNet` for each member."""
    layers = {
        f"Dense_{index}": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
        for index, (kernel, bias) in enumerate(weights.layers)
    }
    return {"params": {"Mlp_0": layers, "prior": jnp.asarray(weights.prior)}}


def _scores(options: TrainingOptions, batch: Batch, policy: Params) -> jax.Array:
    """What one member says of each candidate of each problem: (problems, candidates)."""
    return score_net(options).apply(policy, batch.seen, batch.behind)


def _distribution(scores: jax.Array, batch: Batch) -> jax.Array:
    """Logarithms of the probabilities that scores (problems, candidates) make; padding has none."""
    return jax.nn.log_softmax(jnp.where(batch.legal, scores, MASKED))


def _updated(
    options: TrainingOptions, batch: Batch, networks: Networks, state: Any, drawn: Drawn, rewards: jax.Array
) -> tuple[Networks, Any, jax.Array]:
    """`update` of one member, whose arrays have no axis of members."""
    flat = rewards.reshape(-1)
    expected = jnp.broadcast_to(_values(options, networks.value, batch)[:, None], rewards.shape).reshape(-1)
    # An episode is one step, so its estimate of the advantage is reward less value whatever lambda is.
    found = advantages(expected[:, None], flat, options.gae_lambda).reshape(rewards.shape)
    normalised = (found - found.mean()) / (found.std() + 1e-6)

    def loss(networks: Networks) -> tuple[jax.Array, jax.Array]:
        every = _distribution(_scores(options, batch, networks.policy), batch)
        chosen = jnp.take_along_axis(every, drawn.choices, -1)
        policy = policy_loss(chosen, drawn.log_probs, normalised, options.clip)
        value = jnp.square(_values(options, networks.value, batch)[:, None] - rewards).mean()
        total = policy + options.value * value - options.entropy * entropy(every)
        return total, approximate_kl(chosen, drawn.log_probs)

    def step(carry: Any, _: None) -> Any:
        networks, state, stopped = carry
        (_, kl), gradients = jax.value_and_grad(loss, has_aux=True)(networks)
        stopped = stopped | (kl > options.target_kl)
        updates, new_state = _optimizer(options).update(gradients, state, networks)
        moved = optax.apply_updates(networks, updates), new_state
        kept = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), (networks, state), moved)
        return (*kept, stopped), ~stopped

    (networks, state, _), taken = jax.lax.scan(step, (networks, state, jnp.zeros((), bool)), None, options.epochs)
    return networks, state, taken.sum()


def _optimizer(options: TrainingOptions) -> optax.GradientTransformation:
    """Of the PPO updates: Adam on clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(options.max_gradient), optax.adam(options.ppo_rate))


def _value_net(options: TrainingOptions) -> Mlp:
    return Mlp(1, options.hidden, output_scale=1.0)


def _values(options: TrainingOptions, value: Params, batch: Batch) -> jax.Array:
    return _value_net(options).apply(value, batch.problems)[..., 0]
