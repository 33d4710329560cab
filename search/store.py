"""`TrialStore`: every measurement as it ends, in an SQLite file that several processes may append to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from cupygemm import settings
from cupygemm.config import KernelConfig
from cupygemm.errors import FileError
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.problem import Problem

VERSION = 1
"""Of the tables below, kept in SQLite's user_version."""
BUSY_S = 60.0
"""How long to wait for another process's write."""

ALIKE = ("device", "driver", "cuda", "cublas", "cupy", "nvrtc")
"""Fields of a provenance that times which stand side by side have in common, beside the digest of the kernel."""

ELSEWHERE = "another place: --store FILE or CUPYGEMM_DATA_DIR"

_CREATE = """
CREATE TABLE IF NOT EXISTS trials (
    id INTEGER PRIMARY KEY,
    ended TEXT NOT NULL,
    runner TEXT NOT NULL,
    problem TEXT NOT NULL,
    config TEXT NOT NULL,
    status TEXT NOT NULL,
    us REAL,
    measurement TEXT NOT NULL,
    provenance TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS trials_by_problem ON trials (problem);
"""


def default_store() -> Path:
    """The file in the user's data folder."""
    return settings.data_dir() / "trials.sqlite"


class TrialStore:
    """An append-only record of trials: one row each, written when it ends, so that nothing measured is lost."""

    def __init__(self, path: Path) -> None:
        """Opens the store, making it where it does not exist.

        Args:
            path: the file; its folder is made.

        Raises:
            FileError: the file is no store, one of another version, or cannot be written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Autocommit: a trial is on disk before the next one starts.
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            # SQLite does not wait its turn when two processes switch one new file to WAL.
            with FileLock(f"{path}.lock"):
                self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise self._error("cannot be opened", error) from error

    def append(self, record: Record, runner: str) -> None:
        """Adds one trial.

        Args:
            record: what was measured.
            runner: label of who measured it: "cuda:0" or "replay".

        Raises:
            FileError: the row cannot be written.
        """
        measurement = record.measurement
        row = (
            datetime.now(UTC).isoformat(),
            runner,
            json.dumps(record.problem.to_dict()),
            json.dumps(record.config.to_dict()),
            measurement.status.value,
            measurement.us,
            json.dumps(measurement.to_dict()),
            json.dumps(record.provenance),
        )
        columns = "ended, runner, problem, config, status, us, measurement, provenance"
        try:
            self._connection.execute(f"INSERT INTO trials ({columns}) VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.Error as error:
            raise self._error("takes no more trials", error) from error

    def records(self, problem: Problem | None = None) -> Iterator[Record]:
        """The trials in the order they were stored, of one problem or of all."""
        query = "SELECT problem, config, measurement, provenance FROM trials"
        where, values = ("", ()) if problem is None else (" WHERE problem = ?", (json.dumps(problem.to_dict()),))
        for texts in self._connection.execute(f"{query}{where} ORDER BY id", values):
            found, config, measurement, provenance = map(json.loads, texts)
            yield Record(
                Problem.from_dict(found),
                KernelConfig.from_dict(config),
                Measurement.from_dict(measurement),
                provenance,
            )

    def alike(self, problem: Problem, facts: Mapping[str, Any]) -> dict[KernelConfig, Measurement]:
        """What was measured of a problem, and ran, on such a GPU with such software and kernels: each config's last.

        Args:
            facts: of now, as `provenance.collect` gives them.
        """
        return {
            record.config: record.measurement
            for record in self.records(problem)
            if record.measurement.status is Status.OK
            and all(record.provenance.get(name) == facts.get(name) for name in (*ALIKE, _digest_name(record.config)))
        }

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0])

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _error(self, what: str, error: Exception) -> FileError:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return FileError(f"trial store {self.path} {what}: {reason} ({ELSEWHERE})")

    def _prepare(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            reason = f"is of version {version}, and this version of cupygemm reads {VERSION}"
            raise FileError(f"trial store {self.path} {reason} ({ELSEWHERE})")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_CREATE)
        self._connection.execute(f"PRAGMA user_version = {VERSION}")


def _digest_name(config: KernelConfig) -> str:
    """The field of a provenance that says which sources a config's kernel is made of."""
    return "cp_async_source_digest" if config.cp_async_stages else "source_digest"
