"""bench/compare.py: searches that are kept and not made again, figures worked out by hand, and what is left out."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import compare
from bench.comparison import cases, contenders, picture, summary
from bench.comparison.contenders import Outcome
from bench.comparison.progress import Key, Progress
from cupygemm.errors import FileError
from cupygemm.measuring.results import COMPARISON_SCHEMA, SEARCH_SCHEMA
from cupygemm.reports import report
from cupygemm.reports.comparison_report import _level
from cupygemm.reports.report import render
from tests.cache_files import cache_file, first_of, two_files

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the published searches would lie; none are."""
    path = tmp_path / "searches.jsonl.gz"
    monkeypatch.setattr(compare, "SEARCHES", path)
    return path


@pytest.fixture
def others(tmp_path: Path) -> Path:
    return two_files(tmp_path / "others")


@pytest.fixture
def other(others: Path) -> cases.Case:
    return first_of(others)


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


def test_the_published_comparison_is_of_the_tables_of_the_package() -> None:
    published = json.loads((ROOT / "bench" / "results" / "compare.json").read_text(encoding="utf-8"))
    tables = {each["name"]: each["digest"] for each in published["groups"][0]["tables"]}
    assert tables == {str(cases.load(source).problem): source.digest for source in cases.sources()}
