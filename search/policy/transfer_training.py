"""Trains the policy that serves many problems on recorded tables: the same seed and tables give the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from cupygemm import __version__
from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError
from cupygemm.search.learners.networks import Networks, cpu
from cupygemm.search.policy.features import BEHIND, PROBLEM_FEATURES, features
from cupygemm.search.policy.transfer import Batch, clone, create, draw, layers_of, log_probs, optimizer_state, update
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.policy.weights import PolicyWeights, Standard
from cupygemm.search.recordings.table import Table
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.spaces.space import FIELD_NAMES

FIRST = (8, 32)
"""Lengths of a ranking whose best is told."""
FAILED = 9.0
"""Stands for log(time / least time) of what did not run."""

Say = Callable[[str], None]


def train(
    tables: Sequence[Table],
    options: TrainingOptions | None = None,
    seed: int = 0,
    rewards: RewardWeights | None = None,
    say: Say = lambda text: None,
) -> PolicyWeights:
    """A policy that has learnt from tables.

    Args:
        tables: of different problems.
        options: None for the defaults.
        seed: of all that is random.
        rewards: what PPO maximises; None for the defaults.
        say: told of each stage, a line at a time.

    Raises:
        ConfigError: no tables, or one without a config that ran.
    """
    if not tables:
        raise ConfigError("no tables to train on")
    options = options or TrainingOptions()
    data = _Data(tables, options)
    with jax.default_device(cpu()):
        first, drawing = jax.random.split(jax.random.key(seed))
        networks = clone(options, create(options, data.batch, first), data.batch)
        say(f"imitated: {data.found(options, networks)}")
        networks = _improve(options, networks, data, _Replay(tables, rewards or RewardWeights()), drawing)
        say(f"after PPO: {data.found(options, networks)}")
        layers, prior = layers_of(networks.policy)
    header = {
        "sources": [_source(table) for table in tables],
        "versions": {"cupygemm": __version__, **{name: version(name) for name in ("jax", "flax", "optax", "numpy")}},
        "seed": seed,
        "options": asdict(options),
    }
    return PolicyWeights(data.standard, layers, prior, _kept(tables, options.kept), _values(tables), header)


def _improve(options: TrainingOptions, networks: Networks, data: _Data, replay: _Replay, key: jax.Array) -> Networks:
    """PPO of each member on all problems together, answered from their tables."""
    state = optimizer_state(options, networks)
    for index in range(options.updates):
        drawn = draw(options, networks.policy, data.batch, jax.random.fold_in(key, index))
        rewards = np.array([replay.rewards(each) for each in np.asarray(drawn.choices)])
        worths = np.exp(rewards / options.reward_temperature).astype(np.float32)
        networks, state, _ = update(options, networks, state, data.batch, drawn, worths)
    return networks


class _Data:
    """Tables as arrays.

    Attributes:
        standard: of their features.
        batch: what is learnt from.
    """

    def __init__(self, tables: Sequence[Table], options: TrainingOptions) -> None:
        self._lost = [_lost(table) for table in tables]
        seen = [features(table.problem, table.device, tuple(table.rows)) for table in tables]
        self.standard = Standard.of(np.concatenate(seen))
        most = max(map(len, seen))
        padded = np.array([_padded(each, most) for each in seen])
        standard = self.standard(padded)
        weights = np.array([_padded(np.exp(-each / options.temperature), most) for each in self._lost])
        self.batch = Batch(
            seen=standard,
            behind=padded[..., BEHIND],
            legal=np.array([np.arange(most) < len(each) for each in seen]),
            weights=(weights / weights.sum(-1, keepdims=True)).astype(np.float32),
            problems=standard[:, 0, : len(PROBLEM_FEATURES)],
        )

    def found(self, options: TrainingOptions, networks: Networks) -> str:
        """What the ranking finds of the optimum's speed, at the median of the problems learnt from."""
        ranked = np.argsort(-np.asarray(log_probs(options, networks.policy, self.batch)), axis=-1, kind="stable")
        best = [
            [np.exp(-lost[row[:count]].min()) for count in FIRST] for lost, row in zip(self._lost, ranked, strict=True)
        ]
        return ", ".join(
            f"{value:.3f} with the first {count}" for count, value in zip(FIRST, np.median(best, axis=0), strict=True)
        )


class _Replay:
    """Rewards as tables answer, less that of the fastest config of the table."""

    def __init__(self, tables: Sequence[Table], weights: RewardWeights) -> None:
        self._runners = [ReplayRunner(table) for table in tables]
        self._configs = [tuple(table.rows) for table in tables]
        self._weights = weights
        self._known: dict[tuple[int, int], float] = {}
        self._best = [self._reward(index, int(np.argmin(_lost(table)))) for index, table in enumerate(tables)]

    def rewards(self, choices: NDArray[np.int32]) -> NDArray[np.float32]:
        """Of the candidates with these indices: (problems, draws) to the same."""
        found = [
            [self._reward(index, choice) - self._best[index] for choice in row]
            for index, row in enumerate(choices.tolist())
        ]
        return np.array(found, dtype=np.float32)

    def _reward(self, index: int, choice: int) -> float:
        if (index, choice) not in self._known:
            runner, config = self._runners[index], self._configs[index][choice]
            (measurement,) = runner.run(runner.table.problem, [config])
            self._known[index, choice] = self._weights.reward(measurement, runner.table.optimum_us)
        return self._known[index, choice]


def _lost(table: Table) -> NDArray[np.float32]:
    """log(time / least time) of each row; of what did not run `FAILED`."""
    times = (table.times_us[config] for config in table.rows)
    return np.array([FAILED if us is None else math.log(us / table.optimum_us) for us in times], dtype=np.float32)


def _padded(rows: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    return np.pad(rows, ((0, length - len(rows)), *[(0, 0)] * (rows.ndim - 1)))


def _kept(tables: Sequence[Table], count: int) -> tuple[KernelConfig, ...]:
    """The fastest configs of each table that ran, each once."""
    ordered = [sorted((us, config) for config, us in table.times_us.items() if us is not None) for table in tables]
    return tuple(sorted({config for each in ordered for _, config in each[:count]}))


def _values(tables: Sequence[Table]) -> dict[str, tuple[int, ...]]:
    """The values of each field in any table."""
    configs = [config for table in tables for config in table.rows]
    return {name: tuple(sorted({int(getattr(config, name)) for config in configs})) for name in FIELD_NAMES}


def _source(table: Table) -> dict[str, Any]:
    return {
        "problem": table.problem.to_dict(),
        "device": table.device.name,
        "subspace": table.subspace,
        "points": len(table.rows),
        "recorded": table.provenance.get("date"),
    }
