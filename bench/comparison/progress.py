"""Searches that are done, a line each in a file that is only added to: a comparison goes on where it was ended."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from bench.comparison.contenders import Outcome
from cupygemm.errors import FileError


class Key(NamedTuple):
    """What makes one search another."""

    digest: str
    strategy: str
    seed: int
    budget: int
    version: str


class Progress:
    """The file, and others that are only read.

    Attributes:
        done: what they hold.
    """

    def __init__(self, path: Path, *others: Path) -> None:
        """Reads them; drops a last line of the file that was cut off, and passes over one of the others.

        Args:
            path: of the file; it is made where there is none.
            others: of files with searches that were done elsewhere; what ends in .gz is unpacked.

        Raises:
            FileError: the file ends in .gz, another line is no record of a search, or one of the others cannot be read.
        """
        if path.suffix == ".gz":
            raise FileError(f"{path}: named first, and what is packed cannot be added to: name it after a first file")
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("rb+") as file:
                file.truncate(whole)
        self.done = _read(path)
        for other in others:
            self.done.update(_read(other))

    def add(self, key: Key, outcome: Outcome) -> None:
        """Takes note of a search."""
        line = json.dumps({**key._asdict(), **asdict(outcome)}, separators=(",", ":"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self.done[key] = outcome


def _read(path: Path) -> dict[Key, Outcome]:
    """What the whole lines of a file hold."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    lines = data[: data.rfind(b"\n") + 1].decode().splitlines()
    return dict(_parsed(path, number, line) for number, line in enumerate(lines, start=1))


def _parsed(path: Path, number: int, line: str) -> tuple[Key, Outcome]:
    try:
        entry = json.loads(line)
        improvements = tuple((int(index), float(us)) for index, us in entry["improvements"])
        outcome = Outcome(improvements, entry["evaluations"], entry["seconds"])
        return Key(*(entry[field] for field in Key._fields)), outcome
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path}, line {number}: no record of a search ({error!r}): delete the line") from error
