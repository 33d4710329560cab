"""A policy that serves many problems: features, file, NumPy against Flax, training, suggestions, and the search."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp

from cupygemm import cli
from cupygemm.config import KernelSpec
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import ConfigError
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Status
from cupygemm.names import FAMILIES
from cupygemm.problem import Problem
from cupygemm.reports.report import render_transfer
from cupygemm.search.policy.families import family
from cupygemm.search.policy.features import BEHIND, FEATURES, features
from cupygemm.search.policy.suggest import Guide, suggestions
from cupygemm.search.policy.transfer import (
    Batch,
    Drawn,
    ScoreNet,
    create,
    draw,
    log_probs,
    optimizer_state,
    params_of,
    refit,
    update,
    weights_of,
)
from cupygemm.search.policy.transfer_options import RefitOptions, TrainingOptions
from cupygemm.search.policy.transfer_training import train
from cupygemm.search.policy.weights import PolicyWeights, Standard, shipped_weights
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.strategies import StrategyContext, guided, make_strategy
from cupygemm.search.strategies.guided import Guided
from tests.commands import SMALL, failed
from tests.quick_training import QUICK

OTHER = DeviceSpec("NVIDIA H100 PCIe", (9, 0), sm_count=114, shared_bytes=232448, l2_bytes=52428800, clock_mhz=1755)
EXTREMES = ((8, 8, 8), (1, 16384, 65536), (65536, 65536, 8), (131072, 8, 131072), (7, 16, 100000))


# features


@pytest.mark.parametrize("shape", EXTREMES)
@pytest.mark.parametrize("device", [H200, OTHER], ids=lambda device: device.name)
def test_features_are_finite_and_of_like_size(shape, device, toy_table, weights):
    problem = Problem(*shape)
    configs = [c for c in toy_table.rows if illegal_reason(c, KernelSpec.of(problem), device) is None]
    found = features(problem, device, configs)
    assert found.shape == (len(configs), len(FEATURES))
    assert configs
    assert np.isfinite(found).all()
    assert np.abs(weights.standard(found)).max() <= 4
    assert np.isfinite(weights.scores(found)).all()
    assert found[:, BEHIND].min() == 0


def test_features_do_not_depend_on_the_company(toy_table):
    configs = list(toy_table.rows)[:20]
    together = features(toy_table.problem, H200, configs, least_us=30.0)
    alone = [features(toy_table.problem, H200, [config], least_us=30.0)[0] for config in configs]
    np.testing.assert_array_equal(together, alone)


def test_features_of_no_configs_are_an_empty_table(toy_table):
    assert features(toy_table.problem, H200, []).shape == (0, len(FEATURES))


def test_copied_stages_are_seen(toy_table):
    config = next(iter(toy_table.rows))
    seen = features(toy_table.problem, H200, [replace(config, cp_async_stages=count) for count in (0, 1, 3)])
    assert seen[:, FEATURES.index("log2 copied stages")].tolist() == [0, 1, 2]
    assert (seen == seen[0]).all(axis=0).sum() == len(FEATURES) - 1


# members, NumPy and Flax


def scored(weights: PolicyWeights, seen) -> Any:
    """What Flax makes of features with each member: (members, n)."""
    net = ScoreNet(weights.hidden, 0.0)
    return jax.vmap(lambda policy: net.apply(policy, weights.standard(seen), seen[:, BEHIND]))(params_of(weights))


def member(weights: PolicyWeights, index: int) -> PolicyWeights:
    """A policy that is one of the members."""
    layers = tuple((kernel[[index]], bias[[index]]) for kernel, bias in weights.layers)
    return replace(weights, layers=layers, prior=weights.prior[[index]])


def test_numpy_scores_what_flax_does(weights, toy_table):
    seen = features(toy_table.problem, H200, list(toy_table.rows))
    each = np.asarray(scored(weights, seen))
    assert len(each) == QUICK.members
    np.testing.assert_allclose(weights.scores(seen), each.mean(0), rtol=1e-4, atol=1e-4)
    batch = Batch(weights.standard(seen)[None], seen[None, :, BEHIND], np.ones((1, len(seen)), bool), None, None)
    found = np.asarray(log_probs(QUICK, params_of(weights), batch))[0]
    np.testing.assert_allclose(found, jax.nn.log_softmax(each.mean(0)), rtol=1e-4, atol=1e-4)


def test_the_score_of_two_members_is_their_mean():
    """One unit a layer that sees one feature; the estimate weighs -1 and -3 in them."""
    first = np.zeros((2, len(FEATURES), 1), np.float32)
    first[:, 0, 0] = 1.0, -2.0
    layers = (
        (first, np.zeros((2, 1), np.float32)),
        (np.array([[[3.0]], [[5.0]]], np.float32), np.array([[10.0], [20.0]], np.float32)),
    )
    standard = Standard(np.zeros(len(FEATURES), np.float32), np.ones(len(FEATURES), np.float32))
    both = PolicyWeights(standard, layers, np.array([-1.0, -3.0], np.float32), (), {}, {"sources": []})
    seen = np.zeros((1, 2, len(FEATURES)), np.float32)
    seen[0, :, 0] = 0.0, 0.5
    seen[0, :, BEHIND] = 0.0, 2.0
    said = [10 + 3 * np.tanh(0.5) - 1 * 2, 20 + 5 * np.tanh(-1.0) - 3 * 2]
    np.testing.assert_allclose(both.scores(seen), [[15.0, sum(said) / 2]], rtol=1e-6)
    np.testing.assert_allclose([member(both, i).scores(seen)[0, 1] for i in range(2)], said, rtol=1e-6)


def test_members_differ_and_are_refitted_each_for_itself(weights, toy_table):
    seen = features(toy_table.problem, H200, list(toy_table.rows)[:6])
    behind, measured = seen[:, BEHIND], np.array([0.7, 0.3, 0, 0, -1, -1], np.float32)
    options = RefitOptions(weights.hidden, steps=5)

    def refitted(policy: PolicyWeights) -> PolicyWeights:
        return weights_of(policy, refit(options, params_of(policy), policy.standard(seen), behind, measured))

    both, alone = refitted(weights), [refitted(member(weights, index)) for index in range(weights.members)]
    assert weights.members == both.members == 2
    for index, single in enumerate(alone):
        assert not np.array_equal(both.layers[0][0][index], weights.layers[0][0][index])
        for found, expected in zip(member(both, index).layers, single.layers, strict=True):
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(both.layers[0][0][0], both.layers[0][0][1])


# training


def test_the_same_seed_gives_the_same_file(learnt, weights, tmp_path):
    one, two, other = tmp_path / "one.npz", tmp_path / "two.npz", tmp_path / "other.npz"
    weights.write(one)
    train(learnt, QUICK, seed=5).write(two)
    train(learnt, QUICK, seed=6).write(other)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != other.read_bytes()


def test_training_ranks_what_was_fast_first(learnt, weights):
    for table in learnt:
        first = Guide(weights, table.problem, table.device, table.space).ranked(8)
        assert table.optimum_us / min(table.times_us[config] or 1e9 for config in first) > 0.97


def test_training_on_nothing_is_refused():
    with pytest.raises(ConfigError, match="no tables"):
        train([])


def one_problem(hidden: int = 4) -> tuple[TrainingOptions, Batch]:
    """Three candidates and a padded row."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(1, 4, 5)).astype(np.float32)
    legal = np.array([[True, True, True, False]])
    batch = Batch(seen, np.zeros((1, 4), np.float32), legal, np.full((1, 4), 0.25, np.float32), seen[:, 0, :2])
    return TrainingOptions(members=2, hidden=hidden, draws=6, entropy=0.0, ppo_rate=1e-2), batch


def test_padding_is_never_drawn():
    options, batch = one_problem()
    networks = create(options, batch, jnp.array([0, 1], jnp.uint32))
    probabilities = np.exp(np.asarray(log_probs(options, networks.policy, batch)))
    assert probabilities[0, 3] == 0
    assert probabilities.sum() == pytest.approx(1)
    drawn = draw(options, networks.policy, batch, jnp.array([0, 2], jnp.uint32))
    assert drawn.choices.shape == drawn.log_probs.shape == (options.members, 1, options.draws)
    assert drawn.choices.max() < 3


def test_an_update_moves_probability_to_what_paid():
    options, batch = one_problem()
    networks = create(options, batch, jnp.array([0, 1], jnp.uint32))
    before = log_probs(options, networks.policy, batch)
    choices = jnp.array([[0, 0, 1, 1, 2, 2]])
    drawn = Drawn(*(jnp.stack([each, each]) for each in (choices, jnp.take_along_axis(before, choices, -1))))
    rewards = jnp.array([[[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0, 1.0, 1.0]]])
    networks, _, steps = update(options, networks, optimizer_state(options, networks), batch, drawn, rewards)
    assert steps.shape == (2,)
    assert 1 <= steps.min() <= steps.max() <= options.epochs
    # Each member goes by what its own draws brought.
    for index, paid in enumerate((1, 2)):
        alone = jax.tree.map(lambda each, index=index: each[index : index + 1], networks.policy)
        moved = np.asarray(log_probs(options, alone, batch) - before)[0]
        assert moved[:3].argmax() == paid
        assert moved[paid] > 0 > moved[3 - paid]


def test_a_feature_that_never_varied_has_no_weight(weights, toy_table):
    seen = features(toy_table.problem, H200, list(toy_table.rows)[:4])
    changed = seen.copy()
    changed[:, FEATURES.index("log2 SMs")] = -0.5
    np.testing.assert_array_equal(weights.scores(seen), weights.scores(changed))


# suggestions


@pytest.mark.parametrize("shape", [(2048, 2048, 4096), (1, 4096, 4096), (1000, 1001, 1000), (64, 64, 65536)])
def test_suggestions_are_legal_different_and_the_same_each_time(shape):
    problem = Problem(*shape)
    found = suggestions(problem, H200, 32)
    assert len(set(found)) == len(found) == 32
    assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for config in found)
    assert found == suggestions(problem, H200, 32)
    assert found[:8] == suggestions(problem, H200, 8)


def test_suggestions_stay_in_the_space(weights, toy_table):
    found = suggestions(Problem(512, 512, 512), H200, 10**6, toy_table.space, weights)
    assert sorted(found) == sorted(toy_table.rows)


def test_the_shipped_policy_fits_this_version():
    weights = shipped_weights()
    assert weights is not None
    assert len(weights.sources) >= 8
    assert weights.configs


def test_suggesting_needs_no_jax():
    source = """
import sys
for name in ("jax", "flax", "optax", "cmaes", "cupy"):
    sys.modules[name] = None
from cupygemm.device import H200
from cupygemm.problem import Problem
from cupygemm.reports.report import render_transfer
from cupygemm.search.policy.suggest import suggestions
assert len(suggestions(Problem(2048, 2048, 4096), H200, 8)) == 8
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# the search


def test_hybrid_with_a_guide_is_guided_and_asks_for_nothing_twice(weights, toy_table, model):
    space, problem = toy_table.space, toy_table.problem
    strategy = make_strategy("hybrid", StrategyContext(space, 1, guide=Guide(weights, problem, H200, space)))
    assert isinstance(strategy, Guided)
    asked = []
    while configs := strategy.ask():
        asked += configs
        strategy.tell(configs, [model(config) for config in configs])
    assert sorted(asked) == sorted(toy_table.rows)


def test_the_guided_search_learns_that_the_policy_is_wrong(weights, toy_table, model):
    """With its first layer negated a policy ranks poorly; what is measured still leads to the optimum."""
    kernel, bias = weights.layers[-1]
    misled = replace(weights, layers=(*weights.layers[:-1], (-kernel, -bias)), prior=np.zeros_like(weights.prior))
    space = toy_table.space
    strategy = make_strategy("hybrid", StrategyContext(space, 1, guide=Guide(misled, toy_table.problem, H200, space)))
    best, asked = float("inf"), 0
    while asked < space.size / 3:
        configs = strategy.ask()
        found = [model(config) for config in configs]
        strategy.tell(configs, found)
        asked += len(configs)
        best = min(best, *(each.us or best for each in found))
    assert best < 1.03 * toy_table.optimum_us


def test_a_guided_search_goes_by_the_rewards_that_it_is_told(weights, toy_table):
    """Of configs that differ in spills alone, what is best depends on the weight of spills."""
    guide = Guide(weights, toy_table.problem, H200, toy_table.space)
    first, second = guide.ranked(2)
    measured = [
        Measurement(Status.OK, (1.0,), (1.0,), spill_bytes=512),
        Measurement(Status.OK, (1.02,), (1.0,), spill_bytes=0),
    ]
    for weight, best in ((0.0, first), (0.5, second)):
        strategy = Guided(StrategyContext(toy_table.space, 0, rewards=RewardWeights(spill=weight), guide=guide))
        strategy.ask()
        strategy.tell([first, second], measured)
        assert min(strategy._costs, key=strategy._costs.__getitem__) == best


def test_what_a_guided_search_learns_with_is_compiled_beside_the_measuring(weights, toy_table, model, monkeypatch):
    monkeypatch.setattr(guided, "_compiling", {})
    guide, before = Guide(weights, toy_table.problem, H200, toy_table.space), refit._cache_size()
    options = RefitOptions(hidden=QUICK.hidden, steps=2)  # which no other test has had compiled
    strategy, learnt = Guided(StrategyContext(toy_table.space, 0, guide=guide), options), 0
    while learnt <= guided.ROWS:
        asked = strategy.ask()
        strategy.tell(asked, [model(config) for config in asked])
        learnt += len(asked)
        for thread in guided._compiling.values():
            thread.join()
        rows = [rows for *_, rows in guided._compiling]
        assert rows == ([64, 128] if learnt + guided.AHEAD > guided.ROWS else [64])
        # The arrays of the search are just like those that it was compiled for: nothing is compiled twice.
        assert refit._cache_size() == before + len(rows)


def test_a_guided_search_starts_from_what_it_is_given(weights, toy_table):
    legal = sorted(toy_table.rows)[:5]
    guide = Guide(weights, toy_table.problem, H200, toy_table.space)
    assert Guided(StrategyContext(toy_table.space, 0, legal, guide=guide)).ask() == legal
    with pytest.raises(ConfigError, match="needs a policy"):
        Guided(StrategyContext(toy_table.space))


# families and the command


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((512, 512, 8192), "splitk"),
        ((64, 64, 4096), "splitk"),
        ((128, 4096, 4096), "skinny"),
        ((1, 4096, 14336), "skinny"),
        ((8192, 8192, 512), "short_k"),
        ((1024, 1024, 4096), "small"),
        ((4096, 4096, 4096), "square"),
    ],
)
def test_families(shape, name):
    assert family(Problem(*shape)) == name
    assert name in FAMILIES


def test_train_writes_weights_that_tune_takes(tables, tmp_path, run):
    path = tmp_path / "new" / "policy.npz"
    command = ["train", "--tables", str(tables), "--updates", "1", "--seed", "3", "-o", str(path)]
    done = CliRunner().invoke(cli.main, [*command, "--without", "square"])
    assert done.exit_code == 0, done.output
    assert "a policy of 1 problem" in done.output
    assert PolicyWeights.read(path).sources == (SMALL,)
    found = run("--device", "replay", "--strategy", "hybrid", "--budget", "24", "--policy", str(path))
    assert found.exit_code == 0, found.output


def test_tune_refuses_a_policy_that_knows_the_answer(weights, tmp_path, run):
    path = tmp_path / "policy.npz"
    weights.write(path)
    done = run("--device", "replay", "--strategy", "hybrid", "--policy", str(path))
    assert done.exit_code == 1
    assert "was trained on the table" in done.output


def test_train_names_the_families(tables, tmp_path):
    done = CliRunner().invoke(cli.main, ["train", "--without", "round", "-o", str(tmp_path / "policy.npz")])
    assert done.exit_code == 2
    assert "'round' is not one of 'small', 'splitk'" in done.output


def test_train_says_what_leaves_it_without_tables(tables, tmp_path):
    (tmp_path / "empty").mkdir()
    command = ["train", "-o", str(tmp_path / "policy.npz"), "--tables"]
    failed(CliRunner().invoke(cli.main, [*command, str(tmp_path / "empty")]), "empty: no recorded tables")
    left_out = ["--without", "square", "--without", "splitk"]
    failed(CliRunner().invoke(cli.main, [*command, str(tables), *left_out]), "--without splitk leaves no table")


def test_the_report_tells_medians_and_means_of_held_out_problems():
    def row(problem: str, fraction: float) -> dict:
        searched = {"local": {"fraction": [0.9], "score": [0.5], "optimum": [fraction]}}
        return {
            "problem": problem,
            "family": "small",
            "suggestions": {"policy": [0.5, fraction]},
            "strategies": searched,
        }

    rows = [row("a", 0.75), row("b", 0.9), row("c", 1.0)]
    document = {"first": [1, 8], "budgets": [50], "rows": rows, "provenance": {}, "command": "python x"}
    text = render_transfer(document)
    assert "| policy | 0.500, 0.500 | 0.900, 0.883 |" in text
    assert "| b | small | 0.900 |" in text
    assert "| local | 0.9000 | 0.5000 | 88.3% |" in text
