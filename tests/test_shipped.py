"""The bundle that ships, entry by entry, and bench/ship.py, which makes it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from bench import ship
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.bundles.bundle_check import findings
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.reports import bundle_report
from cupygemm.views.reading import unposed_reason
from tests.commands import PROBLEM, SMALL
from tests.fake_products import LARGE, bundle_of

ROOT = Path(__file__).parent.parent
PATH = ROOT / "cupygemm" / "bundles" / "h200.yaml"
ENTRY_MS = 1.0
"""Most that an entry may take to be read: 0.15 ms on an idle core, where YAML in blocks takes 0.9."""
TRIES = 5

each_entry = pytest.mark.parametrize("entry", shipped_bundle().entries, ids=lambda entry: str(entry.problem))


@each_entry
def test_every_entry_can_run_is_asked_for_and_wins(entry: Entry) -> None:
    assert illegal_reason(entry.config, KernelSpec.of(entry.problem), H200) is None
    assert unposed_reason(entry.problem) is None
    assert entry.speedup is not None
    assert entry.speedup > 1


@each_entry
def test_every_entry_says_where_its_times_are_from(entry: Entry) -> None:
    facts = entry.provenance
    assert {"date", "commit", "driver", "cuda", "cublas", "source_digest", "command"} <= facts.keys()
    assert facts["device"] == H200.name
    assert facts["dirty"] is False


def test_the_bundle_is_of_an_h200_and_in_order() -> None:
    bundle = shipped_bundle()
    assert bundle.device.difference(H200) is None
    assert findings(bundle) == []
    problems = [entry.problem for entry in bundle.entries]
    assert problems
    assert problems == sorted(problems)


def test_the_file_is_yaml_and_has_a_line_an_entry() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == json.loads(text)
    assert len(text.splitlines()) == len(shipped_bundle().entries) + 2
    assert text == shipped_bundle().to_json()


def read_ms() -> float:
    start = time.thread_time()
    Bundle.load(PATH)
    return (time.thread_time() - start) * 1e3


def test_reading_it_is_quick() -> None:
    # Of this thread, and the least of a few tries: a busy machine makes any of them late, and nothing makes one early.
    assert min(read_ms() for _ in range(TRIES)) < ENTRY_MS * len(shipped_bundle().entries)


def test_documents_say_how_many_were_measured_with_the_sources_at_hand() -> None:
    bundle = timed(bundle_of(PROBLEM, SMALL, digest="d1"), 1.25)
    fresh = bundle.entries[0].model_copy(
        update={"provenance": {"source_digest": "d2", "commit": "abc", "cuda": "13.0"}}
    )
    mixed = bundle.model_copy(update={"entries": [fresh, bundle.entries[1]]})
    old, new = bundle_report.summary(mixed, "d3"), bundle_report.summary(mixed, "d2")
    assert "kernel sources of this version: d3; measured with them: 0 of 2; 1 with d1, 1 with d2" in old
    assert "kernel sources of this version: d2; measured with them: 1 of 2; 1 with d1" in new
    kind = "products of two matrices"
    assert f"- {kind}, against cuBLAS: 2 faster, 0 not; 1.250 to 1.250, geometric mean of the ratio 1.250" in new
    assert f"- {kind}, against the best cublasLt algorithm: not measured" in new
    assert "stacks" not in new
    assert "- 1 of undated, commit abc, CUDA 13.0" in new
    rows = bundle_report.problems(mixed, "d2").splitlines()
    assert rows[2].startswith("| 2048×2048×4096 | float16 | nn | – | 10.00 | 12.50 | – | 1.250 | – | test | abc |")


def test_documents_keep_stacks_and_epilogues_apart() -> None:
    stack, fused = replace(PROBLEM, batch=4), replace(PROBLEM, epilogue="bias_n+gelu")
    bundle = timed(bundle_of(PROBLEM, stack, fused), 1.25)
    lines = bundle_report.summary(bundle, "d").splitlines()
    compared = [line for line in lines if "1 faster, 0 not; 1.250 to 1.250" in line]
    assert [line.split(",")[0] for line in compared] == ["- products of two matrices", "- stacks", "- epilogues"]
    rows = bundle_report.problems(bundle, "d").splitlines()[2:5]
    assert [row.split(" | ")[0] for row in rows] == ["| 2048×2048×4096", "| 4 of 2048×2048×4096", "| 2048×2048×4096"]
    assert "| nn | bias_n+gelu | 10.00" in rows[2]


def test_another_block_about_the_bundle_is_refused_with_those_there_are() -> None:
    with pytest.raises(FileError, match="bundle:all: there are bundle:summary, bundle:problems"):
        bundle_report.render("all")


def test_documents_have_the_blocks() -> None:
    text = (ROOT / "docs" / "shipped.md").read_text(encoding="utf-8")
    assert all(f"<!-- bundle:{name} -->" in text for name in ("summary", "problems"))


# bench/ship.py


def timed(bundle: Bundle, speedup: float | None) -> Bundle:
    """A bundle whose entries have this speedup."""
    times = {"us": 10.0, "cublas_us": None if speedup is None else 10.0 * speedup, "speedup": speedup}
    entries = [
        entry.model_copy(update={"measured": entry.measured.model_copy(update=times)}) for entry in bundle.entries
    ]
    return bundle.model_copy(update={"entries": entries})


def make(*args: object) -> Result:
    return CliRunner().invoke(ship.main, [*map(str, args)])


def test_the_better_of_two_entries_ships(tmp_path: Path) -> None:
    a, b, output = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "out.yaml"
    small = Problem(64, 64, 64)
    timed(bundle_of(PROBLEM, small, digest="d1"), 1.1).save(a)
    timed(bundle_of(PROBLEM, config=LARGE, digest="d2"), 1.2).save(b)
    for order in ((a, b), (b, a)):
        result = make(*order, "-o", output)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{output}: 2 entries of NVIDIA H200 (132 SMs)\n"
        bundle = Bundle.load(output)
        assert [entry.problem for entry in bundle.entries] == [small, PROBLEM]
        assert bundle.entries[1].config == LARGE
        assert [entry.provenance["source_digest"] for entry in bundle.entries] == ["d1", "d2"]


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (timed(bundle_of(PROBLEM), 0.97), "0.970 of cuBLAS's speed"),
        (timed(bundle_of(PROBLEM), 1.0), "1.000 of cuBLAS's speed"),
        (timed(bundle_of(PROBLEM), None), "never compared with cuBLAS"),
        (timed(bundle_of(PROBLEM, config=LARGE.swapped(stages=99)), 1.2), "99 stages"),
    ],
)
def test_what_does_not_ship_is_told_with_the_reason(tmp_path: Path, bundle: Bundle, reason: str) -> None:
    path, output = tmp_path / "a.yaml", tmp_path / "out.yaml"
    bundle.save(path)
    result = make(path, "-o", output)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"left out: {bundle.entries[0].problem}: ")
    assert reason in result.stdout
    assert Bundle.load(output).entries == []


def test_tables_ship_their_optimum(tmp_path: Path, tables: Path) -> None:
    output = tmp_path / "out.yaml"
    result = make("--tables", tables, "-o", output)
    assert result.exit_code == 0, result.output
    entries = {entry.problem: entry for entry in Bundle.load(output).entries}
    assert set(entries) == {PROBLEM, SMALL}
    for problem, entry in entries.items():
        table = ship.replay_target(problem, tables).recorded
        assert entry.measured.us == pytest.approx(table.optimum_us)
        assert (entry.search.strategy, entry.search.evaluations) == ("exhaustive", table.space.size)


def test_a_table_speaks_where_no_bundle_does(tmp_path: Path, tables: Path) -> None:
    named, output = tmp_path / "a.yaml", tmp_path / "out.yaml"
    timed(bundle_of(PROBLEM, config=LARGE), 1.01).save(named)
    assert make(named, "--tables", tables, "-o", output).exit_code == 0
    entries = {entry.problem: entry for entry in Bundle.load(output).entries}
    assert {problem: entry.search.strategy for problem, entry in entries.items()} == {
        PROBLEM: "test",
        SMALL: "exhaustive",
    }
    both = tmp_path / "b.yaml"
    timed(bundle_of(PROBLEM, SMALL), 1.01).save(both)
    assert make(both, "--tables", tables, "-o", output).exit_code == 0
    assert {entry.search.strategy for entry in Bundle.load(output).entries} == {"test"}


def test_nothing_named_is_wrong_usage(tmp_path: Path) -> None:
    assert make("-o", tmp_path / "out.yaml").exit_code == 2


def test_a_file_that_is_no_bundle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.yaml"
    path.write_text("my: notes\n")
    result = make(path, "-o", tmp_path / "out.yaml")
    assert result.exit_code == 1
    assert f"{path}: schema is None" in result.stderr
