"""Each term of PPO on numbers worked out by hand, the networks, and the whole on a problem with a known answer."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement, Status
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.strategies import StrategyContext
from cupygemm.search.tune import Budget, tune

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

from cupygemm.search.learners.cloning import CloningOptions, Examples, clone  # noqa: E402
from cupygemm.search.learners.knob_policy import HostPolicy, PolicyModel  # noqa: E402
from cupygemm.search.learners.networks import MASKED, cpu  # noqa: E402
from cupygemm.search.learners.ppo import (  # noqa: E402
    PpoOptions,
    advantages,
    approximate_kl,
    entropy,
    new_learner,
    policy_loss,
    rollout_of,
    update,
)
from cupygemm.search.strategies import hybrid as hybrid_module  # noqa: E402
from cupygemm.search.strategies.hybrid import Hybrid  # noqa: E402
from cupygemm.search.strategies.ppo import Ppo  # noqa: E402

MODEL = PolicyModel((3, 2, 4))


def test_advantages_with_lambda_1_are_reward_minus_value():
    found = advantages(jnp.array([[0.5, 1.0, 2.0]]), jnp.array([3.0]), 1.0)
    np.testing.assert_allclose(found, [[2.5, 2.0, 1.0]])


def test_advantages_with_lambda_0_are_one_step():
    found = advantages(jnp.array([[0.5, 1.0, 2.0]]), jnp.array([3.0]), 0.0)
    np.testing.assert_allclose(found, [[0.5, 1.0, 1.0]])


def test_advantages_in_between():
    # deltas 0.5, 1, 1; A2 = 1, A1 = 1 + 0.5 · 1, A0 = 0.5 + 0.5 · 1.5
    found = advantages(jnp.array([[0.5, 1.0, 2.0]]), jnp.array([3.0]), 0.5)
    np.testing.assert_allclose(found, [[1.25, 1.5, 1.0]])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped at 1.2: no more to gain
        (0.5, 2.0, -1.0),  # moved the wrong way: not clipped
        (1.5, -2.0, 3.0),
        (0.5, -2.0, 1.6),  # clipped at 0.8
    ],
)
def test_the_clipped_surrogate(ratio, advantage, loss):
    assert policy_loss(jnp.log(jnp.array([ratio])), jnp.zeros(1), jnp.array([advantage]), 0.2) == pytest.approx(loss)


def test_a_clipped_ratio_has_no_gradient():
    slope = jax.grad(lambda log_prob: policy_loss(log_prob, jnp.zeros(()), jnp.ones(()), 0.2))
    assert slope(jnp.log(1.5)) == 0.0
    assert slope(jnp.log(1.1)) == pytest.approx(-1.1)


def test_the_divergence_estimate():
    old = jnp.log(jnp.array([0.5, 0.25]))
    new = jnp.log(jnp.array([0.25, 0.5]))
    by_hand = ((0.5 - 1) - math.log(0.5) + (2 - 1) - math.log(2)) / 2
    assert approximate_kl(new, old) == pytest.approx(by_hand)
    assert approximate_kl(old, old) == 0.0


def test_entropy_of_masked_distributions():
    logits = jnp.array([[0.0, 0.0, MASKED], [5.0, MASKED, MASKED]])
    assert entropy(jax.nn.log_softmax(logits)) == pytest.approx(math.log(2) / 2)


def test_options_that_cannot_be_batched_are_refused():
    with pytest.raises(ConfigError, match="3 minibatches"):
        PpoOptions(batch=16, minibatches=3)


def test_states_say_what_was_chosen_and_what_is_next():
    states = MODEL.states(np.array([[2, 0, 3]], dtype=np.int32))[0]
    one_hots = [[0, 0, 1], [1, 0], [0, 0, 0, 0]]
    assert states[0].tolist() == [0] * 9 + [1, 0, 0]
    assert states[1].tolist() == [0, 0, 1] + [0] * 6 + [0, 1, 0]
    assert states[2].tolist() == [*itertools.chain(*one_hots), 0, 0, 1]


def drawn(learner, masks, count: int):
    """Choices of a batch by hand, as the strategy draws them."""
    policy, rng = HostPolicy(MODEL, learner.networks), np.random.default_rng(count)
    choices: list[list[int]] = [[] for _ in range(count)]
    for chosen, mask in zip(choices, masks, strict=True):
        for position in range(MODEL.depth):
            chosen.append(policy.draw(chosen, mask[position], rng))
    return np.array(choices, dtype=np.int32)


def test_the_policy_on_the_host_is_the_same():
    networks = new_learner(MODEL, PpoOptions(), 5).networks
    # Untrained outputs are nearly 0: larger ones, so that a difference would show.
    networks = networks._replace(policy=jax.tree.map(lambda part: part * 3 + 0.1, networks.policy))
    host, choices = HostPolicy(MODEL, networks), np.array([[2, 1, 3]], dtype=np.int32)
    whole = MODEL.logits(networks, MODEL.states(choices), np.ones((1, MODEL.depth, MODEL.width), dtype=bool))[0]
    assert np.abs(whole).max() > 0.1
    for position in range(MODEL.depth):
        np.testing.assert_allclose(host.logits(choices[0, :position]), whole[position], rtol=1e-5)


def test_draws_are_of_the_softmax_over_what_is_open():
    networks = new_learner(MODEL, PpoOptions(), 0).networks
    networks.policy["params"]["Dense_2"]["bias"] = np.log(np.array([0.4, 0.1, 0.3, 0.2], np.float32))
    networks.policy["params"]["Dense_2"]["kernel"] *= 0
    policy, rng = HostPolicy(MODEL, networks), np.random.default_rng(0)
    mask = np.array([True, True, False, True])
    shares = np.bincount([policy.draw([0, 1], mask, rng) for _ in range(8000)], minlength=4) / 8000
    assert shares == pytest.approx(np.array([4, 1, 0, 2]) / 7, abs=0.02)
    assert shares[2] == 0


def masks(count: int) -> np.ndarray:
    """All values that a knob has, but for the second of the first knob."""
    rows = np.zeros((MODEL.depth, MODEL.width), dtype=bool)
    for position, size in enumerate(MODEL.sizes):
        rows[position, :size] = True
    rows[0, 1] = False
    return np.repeat(rows[None], count, axis=0)


def test_what_is_masked_is_never_drawn_and_is_no_part_of_the_distribution():
    options = PpoOptions(batch=64)
    learner = new_learner(MODEL, options, 0)
    choices = drawn(learner, masks(64), 64)
    assert 1 not in choices[:, 0]
    assert set(choices[:, 0]) == {0, 2}
    rollout = rollout_of(MODEL, learner.networks, MODEL.states(choices), masks(64), choices)
    everything = rollout_of(MODEL, learner.networks, rollout.states, np.ones_like(rollout.masks), choices)
    # Where values are masked the others share all of the probability: the policy that is updated is the one that drew.
    fewer = ~masks(64).all(axis=-1)
    assert (rollout.log_probs > everything.log_probs)[fewer].all()
    np.testing.assert_array_equal(rollout.log_probs[~fewer], everything.log_probs[~fewer])


def test_a_value_that_is_always_masked_is_never_updated():
    """Its logit has no gradient, whatever the rewards: with the mask forgotten in the update it would get one."""
    options = PpoOptions(batch=64)
    learner = new_learner(MODEL, options, 0)
    hidden = masks(64)
    hidden[:, :, 3] = False  # the fourth value of the last knob
    choices = drawn(learner, hidden, 64)
    rollout = rollout_of(MODEL, learner.networks, MODEL.states(choices), hidden, choices)
    after, _ = update(MODEL, options, learner, rollout, (choices[:, 2] == 0).astype(np.float32))
    old, new = (each.networks.policy["params"]["Dense_2"]["bias"] for each in (learner, after))
    assert old[3] == new[3]
    assert (old[:3] != new[:3]).all()


def test_an_update_makes_what_was_good_likelier_and_values_truer():
    # Not ended early: after the first few steps alone values may be farther off than before.
    options = PpoOptions(batch=64, target_kl=1e9)
    learner = new_learner(MODEL, options, 1)
    choices = drawn(learner, masks(64), 64)
    rewards = (choices[:, 2] == 3).astype(np.float32)
    before = rollout_of(MODEL, learner.networks, MODEL.states(choices), masks(64), choices)
    learner, progress = update(MODEL, options, learner, before, rewards)
    after = rollout_of(MODEL, learner.networks, MODEL.states(choices), masks(64), choices)
    good = rewards == 1
    assert (after.log_probs - before.log_probs)[good, 2].min() > 0
    assert jnp.square(after.values[:, 2] - rewards).mean() < jnp.square(before.values[:, 2] - rewards).mean()
    assert progress.steps == options.steps_per_batch
    assert learner.batches == 1


def test_an_update_ends_early_where_the_policy_has_moved_far():
    calm, hasty = PpoOptions(batch=64, target_kl=1e9), PpoOptions(batch=64, target_kl=1e-6)
    steps = {}
    for options in (calm, hasty):
        learner = new_learner(MODEL, options, 1)
        choices = drawn(learner, masks(64), 64)
        rollout = rollout_of(MODEL, learner.networks, MODEL.states(choices), masks(64), choices)
        _, progress = update(MODEL, options, learner, rollout, (choices[:, 2] == 3).astype(np.float32))
        steps[options] = progress.steps
    assert steps[calm] == calm.steps_per_batch
    assert steps[hasty] == 1


def test_equal_rewards_teach_nothing_but_their_value():
    options = PpoOptions(batch=64, entropy=0.0)
    learner = new_learner(MODEL, options, 2)
    choices = drawn(learner, masks(64), 64)
    rollout = rollout_of(MODEL, learner.networks, MODEL.states(choices), masks(64), choices)
    flat = rollout._replace(values=jnp.full_like(rollout.values, 0.5))
    new, _ = update(MODEL, options, learner, flat, np.full(64, 0.5, np.float32))
    jax.tree.map(np.testing.assert_array_equal, new.networks.policy, learner.networks.policy)


def test_cloning_makes_the_examples_likely_by_their_weights():
    options = CloningOptions(rows=4, steps=200, learning_rate=1e-2, entropy=0.0)
    learner = new_learner(MODEL, PpoOptions(), 0)
    choices = np.array([[0, 1, 2], [2, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=np.int32)
    weights, measured = np.array([0.75, 0.25, 0, 0], np.float32), np.array([1, 0, 0, 0], np.float32)
    examples = Examples(MODEL.states(choices), masks(4), choices, weights, np.array([1.5, 9, 9, 9]), measured)
    networks = clone(MODEL, options, learner.networks, examples)
    rollout = rollout_of(MODEL, networks, MODEL.states(choices), masks(4), choices)
    assert jnp.exp(rollout.log_probs[0, 0]) == pytest.approx(0.75, abs=0.03)
    assert jnp.exp(rollout.log_probs[:2, 1:]).min() > 0.9
    assert rollout.values[0] == pytest.approx(np.full(3, 1.5), abs=0.1)


def worth(config: KernelConfig, space) -> float:
    """A time that falls with each index from its best: one optimum, and every knob counts."""
    indices = space.encode(config)
    return 10.0 + sum(abs(i - len(knob.values) // 2) for i, knob in zip(indices, space.knobs, strict=True))


@pytest.mark.parametrize("kind", [Ppo, Hybrid])
def test_a_known_problem_is_learnt(kind, toy_table):
    """Within half of a toy space its optimum is found, from several seeds, and the later batches are better."""
    space = toy_table.space
    best = min(worth(config, space) for config in space.members)
    for seed in range(3):
        strategy = kind(StrategyContext(space, seed))
        found: list[list[float]] = []
        while sum(map(len, found)) < space.size // 2:
            configs = strategy.ask()
            times = [worth(config, space) for config in configs]
            strategy.tell(configs, [Measurement(Status.OK, samples_us=(us,)) for us in times])
            found.append(times)
        assert min(map(min, found)) == best
        assert np.mean(found[2]) < np.mean(found[0])


def test_a_batch_is_drawn_without_replacement(toy_table, model):
    strategy = Ppo(StrategyContext(toy_table.space, 0))
    left = toy_table.space.size
    while left:
        configs = strategy.ask()
        assert len(configs) == len(set(configs)) == min(PpoOptions().batch, left)
        strategy.tell(configs, [model(config) for config in configs])
        left -= len(configs)
    assert strategy.ask() == []


def test_values_are_learnt_in_the_units_of_the_updates(toy_table):
    """After a warm start the value network expects what an update would call these rewards."""
    strategy = Ppo(StrategyContext(toy_table.space, 0), cloning=CloningOptions(steps=300, learning_rate=1e-2))
    configs = list(toy_table.space.members)[:8]
    strategy.observe(configs, [Measurement(Status.OK, samples_us=(10.0,), baseline_us=(5.0,))] * 8)
    strategy.imitate([(config, strategy._best_reward) for config in configs])
    rows, _ = strategy._encoded(configs)
    values = strategy._model.values(strategy._learner.networks, strategy._model.states(rows))
    assert float(values.mean()) == pytest.approx(1.0, abs=0.1)


def test_padding_counts_nothing_in_cloning():
    options = CloningOptions(steps=20, learning_rate=1e-2, entropy=0.5)
    learner = new_learner(MODEL, PpoOptions(), 0)
    rows = np.array([[0, 1, 2], [2, 0, 0]], dtype=np.int32)

    def cloned(padding: int):
        choices = np.concatenate([rows, np.zeros((padding, 3), np.int32)])
        weights = np.array([0.5, 0.5] + [0] * padding, np.float32)
        count = np.array([1, 1] + [0] * padding, np.float32)
        allowed = np.concatenate([masks(2), np.ones((padding, *masks(1).shape[1:]), bool)])
        return clone(
            MODEL, options, learner.networks, Examples(MODEL.states(choices), allowed, choices, weights, count, count)
        )

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), cloned(0), cloned(6))


@pytest.mark.parametrize("kind", [Ppo, Hybrid])
def test_no_config_is_proposed_twice_by_the_policy_and_the_space_is_emptied(kind, toy_table, monkeypatch):
    monkeypatch.setattr(hybrid_module, "POPULATION_EVALUATIONS", 1)
    result = tune(
        toy_table.problem,
        toy_table.space,
        kind(StrategyContext(toy_table.space)),
        ReplayRunner(toy_table),
        Budget(evaluations=None),
    )
    assert result.stopped_by == "exhausted"
    assert len(result.trials) == toy_table.space.size


def test_ppo_measures_what_it_starts_from_first_and_imitates_it(toy_table):
    space = toy_table.space
    start = list(space.members)[5:9]
    strategy = Ppo(StrategyContext(space, 0, start))
    asked = strategy.ask()
    assert asked == start
    before = strategy._learner.networks
    strategy.tell(asked, [Measurement(Status.OK, samples_us=(10.0,))] * len(asked))
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, strategy._learner.networks)
    assert all(jax.tree.leaves(changed.policy["params"]["Dense_2"]))
    assert not set(strategy.ask()) & set(start)


def test_the_hybrid_hands_over_once_it_has_measured_enough(toy_table, model, monkeypatch):
    monkeypatch.setattr(hybrid_module, "POPULATION_EVALUATIONS", 12)
    strategy = Hybrid(StrategyContext(toy_table.space))
    measured: set[KernelConfig] = set()
    while not strategy._learning:
        assert len(measured) < 12
        configs = strategy.ask()
        measured |= set(configs)
        strategy.tell(configs, [model(config) for config in configs])
    assert not set(strategy.ask()) & measured


def test_nothing_is_compiled_again_in_the_loop(toy_table, model):
    strategy = Ppo(StrategyContext(toy_table.space, 1))

    def batch() -> None:
        configs = strategy.ask()
        strategy.tell(configs, [model(config) for config in configs])

    batch()
    sizes = [function._cache_size() for function in (rollout_of, update)]
    for _ in range(3):
        batch()
    assert [function._cache_size() for function in (rollout_of, update)] == sizes


def test_everything_lives_on_the_cpu(toy_table):
    strategy = Ppo(StrategyContext(toy_table.space))
    devices = {leaf.devices().pop() for leaf in jax.tree.leaves(strategy._learner.networks)}
    assert devices == {cpu()}
    assert cpu().platform == "cpu"
