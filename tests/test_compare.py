"""The comparison with other people's optimisers: the same points, times and count for all, and figures by hand."""

from __future__ import annotations

import gzip
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import compare
from bench.comparison import cases, contenders, kernel_tuner_runs, optuna_runs, own, picture, policies, summary
from bench.comparison.contenders import Outcome
from bench.comparison.progress import Key, Progress
from cupygemm.errors import ConfigError, FileError
from cupygemm.measuring.results import COMPARISON_SCHEMA, SEARCH_SCHEMA
from cupygemm.reports import report
from cupygemm.reports.comparison_report import _level
from cupygemm.reports.report import render
from cupygemm.search.families import family
from cupygemm.search.seeds import SUGGESTED, by_turns
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.suggest import Guide
from cupygemm.search.transfer_options import TrainingOptions

ROOT = Path(__file__).parent.parent
PARAMS = {"MWG": [16, 32, 64], "KWG": [32], "SA": [0, 1], "VWM": [1, 2, 4]}
LEAST_MS = 5.0


def result(mwg: int, sa: int, vwm: int, slower: float) -> dict[str, Any]:
    values = {"MWG": mwg, "KWG": 32, "SA": sa, "VWM": vwm}
    if (mwg, vwm) == (16, 4):
        return {**values, "time": "RuntimeFailedConfig"}
    return {**values, "time": LEAST_MS + abs(mwg - 32) / 16 + sa * slower + vwm, "times": [1.0], "compile_time": 3.0}


def cache_file(path: Path, device: str, slower: float = 0.5) -> None:
    """A file of Kernel Tuner as the public ones are: SA without VWM of 2 is left out, a parameter has one value."""
    points = [(m, s, v) for m in PARAMS["MWG"] for s in PARAMS["SA"] for v in PARAMS["VWM"] if (s, v) != (1, 2)]
    document = {
        "device_name": f"NVIDIA {device}",
        "kernel_name": "Xgemm",
        "problem_size": [4096, 4096],
        "tune_params_keys": list(PARAMS),
        "tune_params": PARAMS,
        "cache": {f"{m},32,{s},{v}": result(m, s, v, slower) for m, s, v in points},
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the published searches would lie; none are."""
    path = tmp_path / "searches.jsonl.gz"
    monkeypatch.setattr(compare, "SEARCHES", path)
    return path


@pytest.fixture
def others(tmp_path: Path) -> Path:
    folder = tmp_path / "others"
    folder.mkdir()
    cache_file(folder / "one.json.gz", "One")
    cache_file(folder / "two.json.gz", "Two", slower=-0.5)
    return folder


@pytest.fixture
def other(others: Path) -> cases.Case:
    return next(cases.load(each) for each in cases.sources([others]) if each.path.name == "one.json.gz")


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


def test_progress_is_kept_and_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "build" / "progress.jsonl"
    first, second = (Key("d", "cma", seed, 10, "v") for seed in (0, 1))
    outcome = Outcome(((1, 2.5), (4, 1.5)), 10, 0.25)
    Progress(path).add(first, outcome)
    path.write_text(path.read_text() + '{"digest": "d", "str')
    progress = Progress(path)
    assert progress.done == {first: outcome}
    progress.add(second, outcome)
    assert Progress(path).done == {first: outcome, second: outcome}
    elsewhere = tmp_path / "elsewhere.jsonl"
    third = Key("d", "cma", 2, 10, "v")
    Progress(elsewhere).add(third, outcome)
    elsewhere.write_text(elsewhere.read_text() + '{"digest"')
    assert set(Progress(path, elsewhere).done) == {first, second, third}
    assert third not in Progress(path).done
    packed = tmp_path / "published.jsonl.gz"
    packed.write_bytes(gzip.compress(elsewhere.read_bytes()))
    assert set(Progress(path, packed).done) == {first, second, third}
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(FileError, match=r"published\.jsonl\.gz: Compressed file ended"):
        Progress(path, packed)
    with pytest.raises(FileError, match=r"nowhere\.jsonl: No such file"):
        Progress(path, tmp_path / "nowhere.jsonl")
    kept = packed.read_bytes()
    with pytest.raises(FileError, match=r"published\.jsonl\.gz: named first.*: name it after a first file"):
        Progress(packed)
    assert packed.read_bytes() == kept
    path.write_text("{}\n")
    with pytest.raises(FileError, match=r"progress\.jsonl, line 1: no record of a search"):
        Progress(path)


def test_the_figures_of_a_group_are_those_worked_out_by_hand(other: cases.Case) -> None:
    slowest = max(us for us in other.times_us.values() if math.isfinite(us))
    chance = summary._Chance(other, [1, 15])
    mean = sum(us for us in other.times_us.values() if math.isfinite(us)) / 13
    assert chance.expected_us == pytest.approx([mean, other.optimum_us])
    fast = sum(us <= mean for us in other.times_us.values())
    assert chance.reached[0][:2] == pytest.approx([fast / 15, 1 - (15 - fast) * (14 - fast) / (15 * 14)])
    halfway = (mean + other.optimum_us) / 2
    found = {
        0: {other.name: Outcome(((1, halfway),), 3, 1.0)},
        1: {other.name: Outcome(((3, other.optimum_us),), 5, 3.0)},
    }
    group = summary.group([other], {"cma": found}, [1, 15])
    searched = group["strategies"]["cma"]
    assert group["points"] == [1, 2, 5, 10, 15]
    assert [len(each) for each in searched["curve"].values()] == [5, 5]
    assert searched["curve"]["score"][0] == searched["score"]["1"]
    assert searched["curve"]["quartiles"][0] == searched["quartiles"]["1"]
    assert group["strategies"]["random"]["curve"] == {"score": [0.0] * 5}
    late = (mean - slowest) / (mean - other.optimum_us)
    assert searched["score"]["1"] == pytest.approx((0.5 + late) / 2, abs=1e-4)
    assert searched["quartiles"]["1"] == pytest.approx([0.25 * 0.5 + 0.75 * late, 0.75 * 0.5 + 0.25 * late], abs=1e-4)
    assert searched["evaluations_over_random"]["1"] == 2.0
    assert searched["evaluations_over_random"]["15"] is None
    assert (searched["seeds"], searched["evaluations"]) == (2, 4.0)
    enough = sum(us <= other.optimum_us / 0.99 for us in other.times_us.values())
    drawn = next(n for n in range(1, 16) if 1 - math.comb(15 - enough, n) / math.comb(15, n) >= 0.5)
    assert chance.levels[1] == drawn > 1
    # One of two searches never got there.
    assert searched["levels"]["99"] == {"evaluations": None, "over_random": None}
    both = summary.group([other], {"cma": {0: found[1], 1: found[1]}}, [1, 15])["strategies"]["cma"]
    assert both["levels"]["99"] == {"evaluations": 3.0, "over_random": round(3 / drawn, 4)}
    assert searched["seconds"] == {"median": 2.0, "most": 3.0}


def run(folder: Path, *more: str) -> dict[str, Any]:
    output = folder / "compare.json"
    options = ["--processes", "1", "--budgets", "5", "20", "--seeds", "2", "--work", str(folder)]
    options += ["--progress", str(folder / "progress.jsonl")]
    assert compare.main([*options, *more, "-o", str(output)]) == 0
    return json.loads(output.read_text())


def test_a_comparison_goes_on_where_it_ended_and_is_shown_whole(tmp_path: Path, tables: Path, others: Path) -> None:
    folders, drawn = ["--tables", str(tables), str(others)], tmp_path / "compare.svg"
    first = run(tmp_path, *folders, "--strategies", "local", "nearest+", "--picture", str(drawn))
    assert first["schema"] == COMPARISON_SCHEMA
    before = (tmp_path / "progress.jsonl").read_text()
    assert len(before.splitlines()) == 4 * (2 + 1)
    second = run(tmp_path, *folders, "--strategies", "local", "cma", "nearest+")
    assert (tmp_path / "progress.jsonl").read_text().startswith(before)
    assert len((tmp_path / "progress.jsonl").read_text().splitlines()) == 4 * (2 + 1 + 2)
    for old, new in zip(first["groups"], second["groups"], strict=True):
        assert list(new["strategies"]) == ["random", "local", "cma", "nearest+"]
        assert {**new["strategies"], "cma": None} == {**old["strategies"], "cma": None}
    text = render(second)
    assert all(text.count(f"| {name} |") >= 2 for name in second["groups"][0]["strategies"])
    assert "Searched with 2 of 30 seeds at the least" in text
    assert "Not run" not in text
    brief = report.read_file(tmp_path / "search.json")
    assert (brief["schema"], brief["seeds"], brief["budgets"]) == (SEARCH_SCHEMA, 2, [5, 20])
    assert brief["tables"] == [each["name"] for each in second["groups"][0]["tables"]]
    whole = second["groups"][0]["strategies"]
    assert {name: each["score"] for name, each in brief["strategies"].items()} == {
        name: each["score"] for name, each in whole.items()
    }
    assert set(brief["strategies"]["cma"]["per_table"]) == set(brief["tables"])
    assert render(brief).count("\n| ") >= len(whole)
    assert picture.digest(first) in drawn.read_text()
    assert picture.digest(second) not in drawn.read_text()


def test_published_searches_are_known_whatever_progress_names(
    tmp_path: Path, tables: Path, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tables", str(tables), "--strategies", "local"]
    whole = run(tmp_path, *options)
    progress = tmp_path / "progress.jsonl"
    published.write_bytes(gzip.compress(progress.read_bytes()))
    progress.unlink()
    assert run(tmp_path, *options)["groups"] == whole["groups"]
    assert progress.read_text() == ""
    with pytest.raises(SystemExit):
        run(tmp_path, *options, "--progress", str(published))
    assert "searches.jsonl.gz: named first" in capsys.readouterr().err


def test_another_table_beside_makes_seeded_searches_stale_and_no_cold_ones(others: Path) -> None:
    options = compare._parser().parse_args(["-o", "compare.json"])

    def keys() -> dict[str, Key]:
        one = next(each for each in cases.sources([others]) if each.path.name == "one.json.gz")
        return {name: compare._key(one, name, 0, options) for name in ("local", "local+")}

    before = keys()
    assert before["local"].digest != before["local+"].digest
    cache_file(others / "three.json.gz", "Three")
    assert keys()["local"] == before["local"]
    assert keys()["local+"].digest != before["local+"].digest
    assert keys()["local+"] == before["local+"]._replace(digest=keys()["local+"].digest)
    assert [name for name in contenders.ALL if contenders.is_seeded(name)] == list(contenders.SEEDED)


def test_when_the_time_is_over_no_search_is_begun(tmp_path: Path, tables: Path) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "--tables", str(tables), "--strategies", "local", "--seconds", "0")
    assert (tmp_path / "progress.jsonl").read_text() == ""


@pytest.mark.kernel_tuner
def test_a_search_that_fails_is_told_and_stops_no_other(
    tmp_path: Path, tables: Path, others: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, name = [tables, others], "kernel_tuner:mls"
    spoilt = [each for each in cases.sources(folders) if each.group == "Xgemm"]
    for source in spoilt:
        (tmp_path / f"{source.digest}.json").write_text("{")
    found = run(tmp_path, "--tables", *map(str, folders), "--seeds", "1", "--strategies", name, "local")
    assert [list(group["strategies"]) for group in found["groups"]] == [["random", name, "local"], ["random", "local"]]
    assert f"Not run on all of these tables: Kernel Tuner {name.partition(':')[2]}." in render(found)
    printed = capsys.readouterr()
    assert printed.out.count(f"{name}, seed 0: not done:") == len(spoilt)
    assert f"Xgemm: not run on all tables yet and left out: {name}" in printed.err


def test_levels_that_no_search_was_long_enough_for_are_bounds() -> None:
    level = {"evaluations": 46.0, "over_random": 0.2204}
    assert _level(level, "500") == "46 (22%)"
    assert _level({"evaluations": None, "over_random": None}, "500") == "> 500"


def test_trials_that_asked_again_are_told_of_optuna_alone(tmp_path: Path, tables: Path) -> None:
    document = run(tmp_path, "--tables", str(tables), "--strategies", "local", "nearest+")
    strategies = document["groups"][0]["strategies"]
    assert strategies["nearest+"]["evaluations"] == 1.0
    assert "asked again" not in render(document)
    strategies["optuna:tpe"] = {**strategies["local"], "package": "optuna", "evaluations": 12.0}
    assert "Optuna tpe measured 12 different configs in its 20 trials" in render(document)
    strategies["optuna:tpe"]["evaluations"] = 20.0
    assert "asked again" not in render(document)


def test_searches_of_other_sources_are_written_where_their_digest_is_named(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tables", str(tables), "--strategies", "local"]
    whole = run(tmp_path, *options)
    version = contenders.version_of("local")
    monkeypatch.setattr(contenders, "version_of", lambda name: "cupygemm other")
    with pytest.raises(SystemExit):
        run(tmp_path, *options, "--processes", "0")
    named = ["--sources", version.removeprefix("cupygemm ")]
    assert run(tmp_path, *options, *named, "--processes", "0")["groups"] == whole["groups"]
    with pytest.raises(SystemExit):
        run(tmp_path, *options, *named)
    assert "give --processes 0" in capsys.readouterr().err


def test_a_strategy_that_was_not_run_on_all_tables_is_left_out(
    tmp_path: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--tables", str(tables), "--strategies", "local", "--only", "2048x2048x4096")
    with pytest.raises(SystemExit):
        run(tmp_path, "--tables", str(tables), "--strategies", "local", "--processes", "0")
    assert "left out: local" in capsys.readouterr().err
