"""The trial store: append-only, complete, and shared by processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig
from cupygemm.errors import FileError
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.problem import Problem
from cupygemm.search.store import TrialStore

PROBLEM = Problem(2048, 2048, 4096)
CONFIG = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 8, 40, 1, 2)
OK = Measurement(Status.OK, (50.0, 51.5), (52.0, 52.5), error=1e-4, registers=168, spill_bytes=0, clock_mhz=1980)
HUNG = Measurement(Status.TIMED_OUT, detail="no answer in 20 s")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "trials.sqlite"


def records() -> list[Record]:
    return [
        Record(PROBLEM, CONFIG, OK, {"date": "2026-11-29", "device": "x"}),
        Record(PROBLEM, CONFIG.swapped(group=1), HUNG),
        Record(Problem(8, 8, 8), CONFIG, OK),
        Record(Problem(8, 8, 8, 4, epilogue="bias_n+residual+gelu_tanh"), CONFIG, OK),
        Record(Problem(8, 8, 8, 4), CONFIG, OK),
    ]


def test_what_is_stored_comes_back(path):
    with TrialStore(path) as store:
        for record in records():
            store.append(record, "cuda:0")
        assert len(store) == 5
        assert list(store.records()) == records()
        assert list(store.records(PROBLEM)) == records()[:2]
        assert [list(store.records(each.problem)) for each in records()[2:]] == [[each] for each in records()[2:]]


def test_a_trial_is_on_disk_as_soon_as_it_ends(path):
    store = TrialStore(path)
    store.append(records()[0], "replay")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as other:
        row = other.execute("SELECT runner, status, us FROM trials").fetchone()
    other.close()
    store.close()
    assert row == ("replay", "ok", 50.75)


def test_opening_again_appends(path):
    for record in records():
        with TrialStore(path) as store:
            store.append(record, "cuda:0")
    with TrialStore(path) as store:
        assert list(store.records()) == records()


def test_the_journal_is_a_write_ahead_log(path):
    TrialStore(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


APPEND = """
import sys
from pathlib import Path
from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.problem import Problem
from cupygemm.search.store import TrialStore
path, group = Path(sys.argv[1]), int(sys.argv[2])
config = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, group, 40, 1, 2)
with TrialStore(path) as store:
    for _ in range(100):
        store.append(Record(Problem(8, 8, 8), config, Measurement(Status.OK, (1.0,))), "cuda:0")
"""


def test_two_processes_append_side_by_side(path):
    command = [sys.executable, "-c", APPEND, str(path)]
    writers = [subprocess.Popen([*command, group]) for group in ("1", "2")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    with TrialStore(path) as store:
        found = [record.config.group for record in store.records()]
    assert sorted(found) == [1] * 100 + [2] * 100


def test_a_file_that_is_no_store_is_refused(path):
    path.parent.mkdir()
    path.write_text("this is no database, and long enough for SQLite to see that" * 10)
    with pytest.raises(FileError, match=r"trial store .* cannot be opened: file is not a database .*--store FILE"):
        TrialStore(path)


def test_a_store_of_a_later_version_is_refused(path):
    TrialStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FileError, match="version 99"):
        TrialStore(path)


def test_a_folder_that_cannot_be_made_is_said_of_the_store(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match=r"trial store .*: (Not a directory|File exists) .*CUPYGEMM_DATA_DIR"):
        TrialStore(tmp_path / "file" / "trials.sqlite")


def test_a_store_that_is_read_only_is_said(path, monkeypatch):
    TrialStore(path).close()
    connect = sqlite3.connect

    def read_only(name, **options):
        return connect(f"file:{name}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(FileError, match=r"trial store .*: attempt to write a readonly database .*--store FILE"):
        TrialStore(path)
