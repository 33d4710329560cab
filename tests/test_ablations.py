"""The guided search without its parts: each variant leaves out what it says, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

from bench import ablations
from bench.comparison import ablated, cases, own, policies
from bench.comparison.ablated import VARIANTS, WHOLE
from bench.comparison.progress import Key
from cupygemm.device import H200
from cupygemm.problem import Problem
from cupygemm.reports.report import render
from cupygemm.search.policy import transfer_training
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.recordings.table import Table
from cupygemm.search.rewards import RewardWeights
from tests.commands import PROBLEM

BUDGET = 30


@pytest.fixture
def recorded(tables: Path, monkeypatch: pytest.MonkeyPatch) -> cases.Case:
    """A case whose policies are trained in a moment."""
    quick = {
        each: replace(each.training, members=2, hidden=8, cloning_steps=30, updates=1, kept=16)
        if each.training
        else None
        for each in VARIANTS.values()
    }
    monkeypatch.setattr(
        ablated, "VARIANTS", {name: replace(each, training=quick[each]) for name, each in VARIANTS.items()}
    )
    ablated._guide.cache_clear()
    monkeypatch.setattr(policies, "TRAINED", ablated.VARIANTS[WHOLE].training)
    return cases.load(cases.sources([tables])[0])


class Watched:
    """A runner that remembers what it was asked for."""

    device = "replay"

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.asked: list[Any] = []

    def run(self, problem: Any, configs: Any) -> Any:
        for config in configs:
            self.asked.append(config)
            yield from self._runner.run(problem, [config])

    def close(self) -> None:
        pass


def asked(case: cases.Case, name: str, work: Path) -> list[Any]:
    watched = Watched(case.runner)
    ablated.run(replace(case, runner=watched), name, 0, BUDGET, work)
    return watched.asked


def test_the_whole_is_what_the_comparison_searches_with(recorded: cases.Case, tmp_path: Path) -> None:
    for name, same in ((WHOLE, "hybrid+"), ("no policy, cold", "hybrid")):
        times = ablated.run(recorded, name, 1, BUDGET, tmp_path)
        assert times == own.run(recorded, same, 1, BUDGET, tmp_path)


def test_the_ranking_alone_is_the_policys_after_the_start(recorded: cases.Case, tmp_path: Path) -> None:
    guide = ablated._guide(recorded, WHOLE, 0, tmp_path)
    found = asked(recorded, "neither, the ranking alone", tmp_path)
    whole = asked(recorded, WHOLE, tmp_path)
    assert len(set(found)) == len(found) == BUDGET
    assert found[:8] == whole[:8]
    assert found != whole
    # Drawn with noise, and still far above what is drawn blindly.
    scores = dict(zip(guide.candidates, guide.scores(guide.candidates), strict=True))
    mean = sum(scores[config] for config in found) / BUDGET
    assert mean > sum(scores.values()) / len(scores)


def test_a_policy_that_does_not_learn_stays_as_it_was_trained(
    recorded: cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupygemm.search.strategies import guided

    trained = ablated._guide(recorded, WHOLE, 0, tmp_path).weights
    moved: list[float] = []
    weights_of = guided.weights_of

    def watched(before: Any, policy: Any) -> Any:
        found = weights_of(before, policy)
        moved.append(max(abs(a - b).max() for (a, _), (b, _) in zip(found.layers, trained.layers, strict=True)))
        return found

    monkeypatch.setattr(guided, "weights_of", watched)
    ablated.run(recorded, "no learning in the search", 0, BUDGET, tmp_path)
    assert moved
    assert max(moved) == 0.0
    moved.clear()
    ablated.run(recorded, WHOLE, 0, BUDGET, tmp_path)
    assert min(moved) > 0.0


@pytest.mark.parametrize("name", ["no masks", "ppo, cold, no masks"])
def test_without_masks_illegal_configs_cost_evaluations(recorded: cases.Case, tmp_path: Path, name: str) -> None:
    times = ablated.run(recorded, name, 0, BUDGET, tmp_path)
    assert len(times) == BUDGET
    configs = asked(recorded, name, tmp_path)
    illegal = [config for config in configs if not recorded.space.is_legal(config)]
    assert illegal
    assert sum(map(math.isinf, times)) >= len(illegal)
    assert all(
        recorded.space.is_legal(config)
        for config in asked(recorded, name.replace("no masks", "").rstrip(", ") or WHOLE, tmp_path)
    )


def test_rewards_without_a_term_train_a_policy_of_their_own(
    recorded: cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[RewardWeights | None] = []
    train = transfer_training.train
    monkeypatch.setattr(
        transfer_training,
        "train",
        lambda tables, options, seed, *more: asked_for.append(*more or [None]) or train(tables, options, seed, *more),
    )
    for name in (WHOLE, "no L2 term", "no L2 term", "no spill term"):
        ablated.run(recorded, name, 0, BUDGET, tmp_path)
    spills = ablated._spills(policies.Training(recorded.folder, "square", 0, TrainingOptions()))
    expected = [None, RewardWeights(l2=0.0), *([RewardWeights(spill=0.0)] if spills else [])]
    assert asked_for == expected


def test_what_begins_cold_is_kept_when_a_table_is_added_beside(tables: Path, toy_table: Table) -> None:
    def keys() -> dict[str, Key]:
        source = next(each for each in cases.sources([tables]) if each.path.name == file_name(PROBLEM, H200))
        return {name: ablations._key(source, name, 0, BUDGET) for name in VARIANTS}

    before = keys()
    another = replace(toy_table, problem=Problem(1024, 1024, 4096))
    another.write(tables / file_name(another.problem, H200))
    kept = [name for name, key in keys().items() if key == before[name]]
    assert kept == ["no policy, cold", "ppo, cold", "ppo, cold, no masks"]


def test_the_program_goes_on_where_it_ended_and_writes_a_table(recorded: cases.Case, tmp_path: Path) -> None:
    del recorded
    output, progress = tmp_path / "ablations.json", tmp_path / "progress.jsonl"
    options = ["--tables", str(tmp_path / "tables"), "--work", str(tmp_path), "--progress", str(progress)]
    options += ["--seeds", "2", "--processes", "1", "--budgets", "5", "20", "-o", str(output)]
    variants = ["no policy, cold", "no policy, from the nearest problems"]
    assert ablations.main([*options, "--variants", variants[0]]) == 0
    before = progress.read_text()
    assert ablations.main([*options, "--variants", *variants]) == 0
    assert progress.read_text().startswith(before)
    document = json.loads(output.read_text())
    assert list(document["summary"]) == variants
    assert [row["searches"] for row in document["summary"].values()] == [4, 4]
    lines = render(document).splitlines()
    assert lines[0] == "|  | score after 5 | ± 5 | score after 20 | ± 20 | optimum after 20 | searches |"
    assert [line.split(" | ")[0] for line in lines[2:4]] == [f"| {name}" for name in variants]
