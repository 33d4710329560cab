"""The contenders of bench/compare.py and the cases that they search: the same points, times and count for all."""

from __future__ import annotations

import gzip
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bench.comparison import cases, contenders, kernel_tuner_runs, optuna_runs, own, policies
from bench.comparison.contenders import Outcome
from cupygemm.errors import ConfigError, FileError
from cupygemm.search.policy.families import family
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.seeds import SUGGESTED, by_turns
from cupygemm.search.strategies import StrategyContext, make_strategy
from tests.cache_files import LEAST_MS, first_of, two_files


@pytest.fixture
def others(tmp_path: Path) -> Path:
    return two_files(tmp_path / "others")


@pytest.fixture
def other(others: Path) -> cases.Case:
    return first_of(others)


@pytest.fixture
def recorded(tables: Path) -> cases.Case:
    return cases.load(cases.sources([tables])[0])


def test_a_folder_of_ours_stands_for_the_package_and_one_of_others_comes_beside(tables: Path, others: Path) -> None:
    package = cases.sources()
    assert {each.group for each in package} == {cases.RECORDED}
    assert [each.group for each in cases.sources([others])] == [cases.RECORDED] * len(package) + ["Xgemm"] * 2
    assert [each.group for each in cases.sources([others, tables])] == [cases.RECORDED] * 2 + ["Xgemm"] * 2


def test_both_forms_of_a_case_have_the_same_points_and_times(recorded: cases.Case, other: cases.Case) -> None:
    for case in (recorded, other):
        members = list(case.space.enumerate())
        found = [measured.us for measured in case.runner.run(case.problem, members)]
        times = sorted(math.inf if us is None else us for us in found)
        assert times == pytest.approx(sorted(case.times_us.values()))
        assert case.optimum_us == pytest.approx(times[0])
        varying = [knob for knob in case.space.knobs if knob.varies]
        assert len(case.document["tune_params"]) == len(varying)
        assert all(len(values) > 1 for values in case.document["tune_params"].values())


def test_a_file_of_others_keeps_its_failures_and_begins_with_the_best_of_those_beside_it(other: cases.Case) -> None:
    assert (other.name, len(other.times_us)) == ("Xgemm One", 15)
    assert sum(math.isinf(us) for us in other.times_us.values()) == 2
    assert other.optimum_us == 1000 * (LEAST_MS + 1)
    # The best of the other file, where SA makes it faster, for each pair of the first two parameters.
    starts = [(config.block_m, config.split_n, config.block_n) for config in other.nearest]
    assert starts == [(32, True, 1), (32, False, 1), (16, True, 1)]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds neither"):
        cases.sources([tmp_path])
    (tmp_path / "odd.json").write_text('{"cache": {}}')
    with pytest.raises(FileError, match=r"odd\.json: no cache file of Kernel Tuner: device_name"):
        cases.sources([tmp_path])


def test_a_file_that_was_left_open_is_read(others: Path) -> None:
    text = gzip.decompress((others / "one.json.gz").read_bytes()).decode()
    (others / "open.json").write_text(text.removesuffix("}}") + ",\n")
    assert len(cases.sources([others])) == len(cases.sources()) + 3


def check_outcome(case: cases.Case, outcome: Outcome, budget: int) -> None:
    times = [us for _, us in outcome.improvements]
    assert times == sorted(times, reverse=True)
    known = sorted(case.times_us.values())
    assert all(any(us == pytest.approx(each) for each in known) for us in times)
    assert 0 < outcome.improvements[0][0] <= outcome.improvements[-1][0] <= outcome.evaluations <= budget


NAMES = [
    "local",
    "cma+",
    *(pytest.param(name, marks=pytest.mark.kernel_tuner) for name in contenders.KERNEL_TUNER),
    *(pytest.param(name, marks=pytest.mark.optuna) for name in contenders.OPTUNA),
]


@pytest.mark.parametrize("name", NAMES)
def test_everybody_keeps_the_budget_and_is_told_by_the_seed(
    name: str, recorded: cases.Case, other: cases.Case, tmp_path: Path
) -> None:
    # On as few points as the other has diff_evo ends in an IndexError (Kernel Tuner 1.5.0).
    tried = [(recorded, 30), (other, 10)][: 1 if name == "kernel_tuner:diff_evo" else 2]
    for case, budget in tried:
        outcome = contenders.run(case, name, 1, budget, tmp_path)
        again = contenders.run(case, name, 1, budget, tmp_path)
        check_outcome(case, outcome, budget)
        # diff_evo's first population is seeded by the system, and nobody can say otherwise.
        if name != "kernel_tuner:diff_evo":
            assert (outcome.improvements, outcome.evaluations) == (again.improvements, again.evaluations)


@pytest.mark.kernel_tuner
def test_kernel_tuner_is_started_again_until_the_budget_is_spent(recorded: cases.Case, tmp_path: Path) -> None:
    times = kernel_tuner_runs.run(recorded, "kernel_tuner:simulated_annealing", 0, 60, tmp_path)
    assert len(times) == 60
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.kernel_tuner
def test_kernel_tuner_is_told_to_stop_where_it_asks_for_ever(
    recorded: cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_tuner_runs, "ASKS", 3)
    monkeypatch.setattr(kernel_tuner_runs, "STARTS", 4)
    assert 0 < len(kernel_tuner_runs.run(recorded, "kernel_tuner:greedy_ils", 0, 60, tmp_path)) <= 12


@pytest.mark.parametrize("name", ["pso", "dual_annealing", "genetic_algorithm"])
def test_what_kernel_tuner_is_spared_changes_nothing_that_it_finds(
    name: str, recorded: cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = kernel_tuner_runs.run(recorded, f"kernel_tuner:{name}", 3, 60, tmp_path)
    monkeypatch.setattr(kernel_tuner_runs, "_without_waste", lambda case: nullcontext())
    assert kernel_tuner_runs.run(recorded, f"kernel_tuner:{name}", 3, 60, tmp_path) == spared


@pytest.mark.optuna
def test_optuna_is_offered_legal_configs_or_told_what_is_not(other: cases.Case) -> None:
    for name in (optuna_runs.CONDITIONAL, optuna_runs.PRUNED):
        times = optuna_runs.run(other, name, 0, 15)
        assert len(times) <= 15
        assert set(times) <= set(other.times_us.values())
    assert min(optuna_runs.run(other, optuna_runs.CONDITIONAL, 0, 15)) == other.optimum_us


def test_what_other_tables_give_by_itself(other: cases.Case, tmp_path: Path) -> None:
    times = {config: next(other.runner.run(other.problem, [config])).us for config in other.nearest}
    assert own.run(other, own.SEEDS, 0, 50, tmp_path) == list(times.values())
    assert own.run(other, own.NEAREST, 0, 50, tmp_path) == list(times.values())[:1]
    assert not contenders.applies(own.POLICY, other.group)
    with pytest.raises(ConfigError, match="no policy for Xgemm One"):
        own.run(other, own.POLICY, 0, 50, tmp_path)


def test_what_knows_other_problems_has_seen_none_of_the_family(
    recorded: cases.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    quick = TrainingOptions(members=2, hidden=8, cloning_steps=50, updates=1, kept=16)
    monkeypatch.setattr(policies, "TRAINED", quick)
    monkeypatch.setattr(policies, "IMITATING", replace(quick, updates=0))
    held = family(recorded.problem)
    trainings = policies.trainings(recorded.folder, quick)
    assert len(trainings) == 2 * policies.TRAININGS
    frozen = own.run(recorded, own.POLICY, 0, 40, tmp_path)
    (path,) = (tmp_path / "policies").iterdir()
    assert path == policies.path_of(policies.Training(recorded.folder, held, 0, quick), tmp_path)
    weights = policies.PolicyWeights.read(path)
    assert held not in {family(problem) for problem in weights.sources}
    guide = Guide(weights, recorded.problem, recorded.device, recorded.space)
    ranked = [found.us for found in recorded.runner.run(recorded.problem, guide.ranked(40))]
    assert frozen == [math.inf if us is None else us for us in ranked]
    # Seeds take turns with the trainings, and what was trained is not trained again.
    kept = path.stat().st_mtime_ns
    assert own.run(recorded, own.POLICY, policies.TRAININGS, 40, tmp_path) == frozen
    assert path.stat().st_mtime_ns == kept
    suggested = dict.fromkeys(by_turns(guide.ranked(SUGGESTED), recorded.nearest))
    legal = [config for config in suggested if recorded.space.is_legal(config)]
    seeds = own.run(recorded, own.SEEDS, 0, 500, tmp_path)
    assert len(seeds) == len(legal) > 0
    hybrid = make_strategy("hybrid", StrategyContext(recorded.space, 0, legal, guide=guide))
    asked = hybrid.ask()
    found = own.run(recorded, "hybrid+", 0, len(asked), tmp_path)
    times = [each.us for each in recorded.runner.run(recorded.problem, asked)]
    assert found == [math.inf if us is None else us for us in times]
    assert own.run(recorded, own.CLONED, 0, 40, tmp_path) != frozen
    assert len(list((tmp_path / "policies").iterdir())) == 2


@pytest.mark.parametrize("name", ["none", "none+", "pyatf:x", "random"])
def test_an_unknown_strategy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"strategy .?(none|pyatf|random)"):
        contenders.check(name)
