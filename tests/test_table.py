"""Recorded tables: round trip, determinism, exhaustiveness, and errors that say what is wrong."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import FileError
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import file_name, find_table, recorded_tables
from cupygemm.search.recordings.recording import record, tables_of
from cupygemm.search.recordings.table import COLUMNS, Row, Table

PROBLEM = Problem(2048, 2048, 4096)
STATUS = len(KernelConfig.__dataclass_fields__)
"""Where the outcome of a row starts: behind an index for each knob."""
SMALL = Problem(512, 512, 8192)


@pytest.fixture
def path(tmp_path, toy_table):
    path = tmp_path / file_name(PROBLEM, H200)
    toy_table.write(path)
    return path


def lines_of(path) -> list:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def rewrite(path, change) -> None:
    lines = lines_of(path)
    changed = change(lines)
    lines = changed if isinstance(changed, list) else lines
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


def test_a_table_reads_as_it_was_written(path, toy_table):
    assert Table.read(path) == toy_table


def test_a_table_recorded_before_a_field_was_added_is_read(path, toy_table):
    """`ping_pong` came after the first tables; without it a table says nothing of that knob."""

    def forget(lines):
        lines[0]["knobs"] = [knob for knob in lines[0]["knobs"] if knob["name"] != "ping_pong"]
        lines[0]["columns"].remove("ping_pong")
        return [lines[0], *([*row[: STATUS - 1], *row[STATUS:]] for row in lines[1:])]

    rewrite(path, forget)
    assert Table.read(path) == toy_table


def test_the_same_table_gives_the_same_bytes(path, tmp_path, toy_table):
    shuffled = replace(toy_table, rows=dict(reversed(toy_table.rows.items())))
    shuffled.write(tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == path.read_bytes()


def test_the_header_says_what_the_rows_are(path, toy_table):
    header, *rows = lines_of(path)
    assert header["schema"] == "cupygemm.table/1"
    assert header["problem"] == PROBLEM.to_dict()
    assert header["spec"] == KernelSpec.of(PROBLEM).to_dict()
    assert header["device"]["name"] == H200.name
    assert header["provenance"]["source_digest"] == "d1"
    assert header["baselines"]["cublas_us"] > 0
    assert header["columns"] == [*(knob["name"] for knob in header["knobs"]), *COLUMNS]
    assert all(len(row) == len(header["columns"]) for row in rows)
    excluded = sum(exclusion["points"] for exclusion in header["restrictions"])
    assert len(rows) + excluded == toy_table.space.size_cartesian
    assert {exclusion["rule"] for exclusion in header["restrictions"]} >= {"block_m", "consumers by rows"}
    assert all(exclusion["reason"] for exclusion in header["restrictions"])


def test_every_status_is_kept(toy_table):
    assert toy_table.statuses["ok"] > 0
    assert toy_table.statuses["serialised"] > 0
    assert toy_table.statuses.total() == len(toy_table.rows)


def test_a_sound_table_is_exhaustive(path, core_table):
    Table.read(path).check_exhaustive()
    core_table.check_exhaustive()


def without(table: Table, config) -> dict:
    return {other: row for other, row in table.rows.items() if other != config}


def test_a_missing_row_is_noticed(toy_table):
    config = sorted(toy_table.rows)[10]
    with pytest.raises(FileError, match="1 legal points have no row"):
        replace(toy_table, rows=without(toy_table, config)).check_exhaustive()


def test_a_row_of_an_excluded_point_is_noticed(toy_table):
    legal = next(iter(toy_table.rows))
    illegal = legal.swapped(block_m=64, consumers=2)
    assert illegal not in toy_table.rows
    with pytest.raises(FileError, match="1 rows are of excluded points"):
        replace(toy_table, rows={**toy_table.rows, illegal: toy_table.rows[legal]}).check_exhaustive()


def test_wrong_counts_are_noticed(toy_table):
    first, *rest = toy_table.restrictions
    wrong = (replace(first, points=first.points + 1), *rest)
    with pytest.raises(FileError, match="do not make"):
        replace(toy_table, restrictions=wrong).check_exhaustive()


def test_a_declared_restriction_is_part_of_the_proof(toy_table):
    undeclared = tuple(e for e in toy_table.restrictions if e.rule != "consumers by rows")
    with pytest.raises(FileError, match="have no row"):
        replace(toy_table, restrictions=undeclared).check_exhaustive()


def test_an_unfinished_sweep_makes_no_table(toy, toy_table):
    few = {config: Measurement(Status.CRASHED) for config in list(toy_table.rows)[:5]}
    with pytest.raises(FileError, match="have no row"):
        Table.of(PROBLEM, H200, toy, few, {}, {})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda lines: lines[0].update(schema="cupygemm.table/9"), "schema is 'cupygemm.table/9'"),
        (lambda lines: lines[0].pop("device"), "the key 'device' is missing"),
        (lambda lines: lines[0]["problem"].update(m=0), "m is 0"),
        (lambda lines: lines[0]["spec"].update(b_major="k"), "spec does not follow"),
        (lambda lines: lines[0]["knobs"][0].update(name="block_x"), "block_x"),
        (lambda lines: lines[0]["columns"].append("energy"), "columns are"),
        (lambda lines: lines[0]["columns"].remove("us"), "columns are"),
        (lambda lines: lines[0]["columns"].pop(), "line 2"),
        (lambda lines: lines[:-1], "not whole"),
        (lambda lines: lines[:1], "no rows"),
        (lambda lines: lines[1].__setitem__(0, 99), r"line 2: index 99 of knob block_m"),
        (lambda lines: lines[3].pop(), "line 4"),
        (lambda lines: lines[3].__setitem__(STATUS, "fine"), "line 4: 'fine' is not a valid Status"),
        (lambda lines: lines[3].__setitem__(slice(STATUS, STATUS + 2), ["ok", -1.0]), "line 4: us is -1.0"),
        (lambda lines: lines[3].__setitem__(slice(STATUS, STATUS + 2), ["ok", None]), "line 4: status ok"),
        (lambda lines: lines[3].__setitem__(slice(STATUS, STATUS + 2), ["crashed", 1.0]), "line 4: status crashed"),
        (lambda lines: lines[3].__setitem__(STATUS + 3, "many"), "line 4: registers is 'many'"),
        (lambda lines: lines + lines[1:2], "a second row"),
        (lambda lines: [lines], "schema is 'list'"),
        (lambda lines: [*lines[:1], 5], "line 2"),
    ],
)
def test_what_is_wrong_is_named(path, change, what):
    rewrite(path, change)
    with pytest.raises(FileError, match=what):
        Table.read(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"text", gzip.compress(b""), gzip.compress(b"{}")[:-9], gzip.compress(b"not json")],
    ids=["empty", "text", "nothing packed", "cut short", "not JSON"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, data):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"x\.jsonl\.gz"):
        Table.read(path)


def test_a_file_that_unpacks_without_end_is_refused(path, monkeypatch):
    monkeypatch.setattr("cupygemm.search.recordings.table.MAX_BYTES", 1000)
    with pytest.raises(FileError, match="unpacks to more than"):
        Table.read(path)


def test_a_write_that_fails_leaves_the_old_file(path, toy_table, monkeypatch):
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        replace(toy_table, provenance={}).write(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_optimum_needs_a_time(toy_table):
    failed = {config: Row(Status.CRASHED) for config in toy_table.rows}
    with pytest.raises(FileError, match="no config has a time"):
        _ = replace(toy_table, rows=failed).optimum


def test_tables_are_found_by_problem(path, toy_table, make_table, toy):
    small = make_table(SMALL, toy)
    small.write(path.parent / file_name(SMALL, H200))
    (path.parent / "notes.txt").write_text("no table")
    found = {table.problem: table.path for table in recorded_tables(path.parent)}
    assert found == {PROBLEM: path, SMALL: path.parent / file_name(SMALL, H200)}
    assert find_table(SMALL, path.parent) == small


def test_a_problem_without_a_table_names_those_with_one(path):
    with pytest.raises(FileError, match=r"no recorded table of 512x512x8192.*recorded: 2048x2048x4096 float16 nn"):
        find_table(SMALL, path.parent)
    with pytest.raises(FileError, match="no such folder of recorded tables"):
        find_table(SMALL, path.parent / "nowhere")
    empty = path.parent / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match=r"empty: no recorded tables: names end in \.jsonl\.gz"):
        find_table(SMALL, empty)


def test_two_tables_of_one_problem_are_refused(path, toy_table):
    toy_table.write(path.parent / "other.jsonl.gz")
    with pytest.raises(FileError, match="a second table"):
        recorded_tables(path.parent)


def test_tables_that_ship_are_sound():
    for problem, _, path in recorded_tables():
        table = Table.read(path)
        table.check_exhaustive()
        assert table.problem == problem
        assert len(table.rows) >= 500
        assert table.provenance["source_digest"]


class Sweeper:
    """A GPU that exists in this file only."""

    device = "cuda:0"

    def __init__(self, model, stop_at=None):
        self.model, self.stop_at, self.swept = model, stop_at, 0

    def sweep(self, problems, configs):
        for config in configs:
            for problem in problems:
                if self.swept == self.stop_at:
                    raise KeyboardInterrupt
                self.swept += 1
                yield Record(problem, config, self.model(config))

    def compile_ahead(self, problems, configs):
        assert self.swept == 0, "compiling belongs before the measuring"
        return len(configs)


def test_a_sweep_becomes_a_table_a_problem(toy, toy_table, model):
    seen = []
    recording = record([PROBLEM, SMALL], toy, Sweeper(model), H200, on_record=lambda found, _: seen.append(found))
    assert recording.complete
    assert recording.stopped_by == "done"
    assert len(seen) == recording.measured == 2 * len(toy_table.rows)
    provenance, baselines = toy_table.provenance, toy_table.baselines
    tables = tables_of(recording, toy, H200, provenance, {PROBLEM: baselines, SMALL: baselines})
    assert [table.problem for table in tables] == [PROBLEM, SMALL]
    assert tables[0] == toy_table


def test_problems_of_different_specs_are_swept_apart(toy, model):
    other = Problem(512, 512, 8192, out_dtype="float32")
    sweeper = Sweeper(model)
    recording = record([PROBLEM, other], toy, sweeper, H200)
    assert recording.complete
    assert recording.pairs[other].keys() == set(toy.configs(KernelSpec.of(other), H200))


def test_the_summary_counts(toy, toy_table, model):
    recording = record([PROBLEM], toy, Sweeper(model), H200)
    summary = recording.summary()
    assert summary["pairs"] == summary["pairs_wanted"] == summary["configs"] == len(toy_table.rows)
    assert summary["statuses"] == dict(toy_table.statuses)
    assert summary["pairs_per_minute"] > 0
    assert summary["compiles"] == len(toy_table.rows)
    assert summary["compiles_per_minute"] > 0
    assert len(recording.failures()) == toy_table.statuses["serialised"]
    assert {failure["status"] for failure in recording.failures()} == {"serialised"}


def test_an_interrupted_sweep_is_not_complete(toy, model):
    recording = record([PROBLEM, SMALL], toy, Sweeper(model, stop_at=9), H200)
    assert recording.stopped_by == "interrupted"
    assert recording.measured == 9
    assert not recording.complete


def test_a_sweep_stops_at_its_limit(toy, model):
    recording = record([PROBLEM], toy, Sweeper(model), H200, limit_s=1e-9)
    assert recording.stopped_by == "seconds"
    assert recording.measured == 1
