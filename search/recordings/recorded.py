"""Where recorded tables lie: those that ship with the package, or a folder of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from cupygemm.device import DeviceSpec
from cupygemm.epilogue import NONE
from cupygemm.errors import FileError
from cupygemm.names import TABLE_SUFFIX
from cupygemm.problem import Problem
from cupygemm.search.recordings.table import Table, read_head


class Recorded(NamedTuple):
    """A table in a folder: what it is of, and where it lies."""

    problem: Problem
    device: DeviceSpec
    path: Traversable


def recorded_tables(folder: Traversable | None = None) -> list[Recorded]:
    """The tables in a folder, by name; only their headers are read.

    Args:
        folder: where they lie; None for those that ship with the package.

    Raises:
        FileError: there is no such folder, a file with the suffix of a table is none, or two are of the same problem
            on the same device.
    """
    folder = files("cupygemm.search").joinpath("tables") if folder is None else folder
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder of recorded tables")
    found: dict[tuple[Problem, str], Recorded] = {}
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not path.name.endswith(TABLE_SUFFIX):
            continue
        table = Recorded(*read_head(path), path)
        first = found.setdefault((table.problem, table.device.name), table)
        if first is not table:
            raise FileError(f"{path}: a second table of {table.problem}, beside {first.path.name}")
    return list(found.values())


def find_table(problem: Problem, folder: Traversable | None = None) -> Table:
    """The recorded table of exactly this problem.

    Raises:
        FileError: there is none, and the message names the problems that have one; or there are several, of
            different devices.
    """
    tables = recorded_tables(folder)
    if not tables:
        raise FileError(no_tables(folder))
    found = [table for table in tables if table.problem == problem]
    if not found:
        raise FileError(f"no recorded table of {problem}; recorded: {_words(table.problem for table in tables)}")
    if len(found) > 1:
        devices = ", ".join(table.device.name for table in found)
        raise FileError(f"tables of {problem} on several devices ({devices}): name a folder with one of them")
    return Table.read(found[0].path)


def no_tables(folder: Traversable | None) -> str:
    """What to say of a folder without a table."""
    where = "the package" if folder is None else folder
    return f"{where}: no recorded tables: names end in {TABLE_SUFFIX}, and `cupygemm record -o FOLDER` writes them"


def _words(problems: Iterable[Problem]) -> str:
    """Problems, smallest first; where all are of one kind, that is said once."""
    ordered = sorted(set(problems), key=lambda problem: (problem.flops, problem))
    kinds = {str(problem).removeprefix(problem.shape) for problem in ordered if problem.batch == 1}
    if len(ordered) > 1 and len(kinds) == 1 and all(problem.batch == 1 for problem in ordered):
        return ", ".join(problem.shape for problem in ordered) + f", all{kinds.pop()}"
    return ", ".join(map(str, ordered))


def file_name(problem: Problem, device: DeviceSpec) -> str:
    """What a table of this problem on this device is called."""
    gpu = device.name.removeprefix("NVIDIA ").lower().replace(" ", "-")
    out = "" if problem.out_dtype == problem.a_dtype else f"-{problem.out_dtype}"
    batch = "" if problem.batch == 1 else f"-batch{problem.batch}"
    epilogue = "" if problem.epilogue == NONE else f"-{problem.epilogue}"
    return f"{gpu}-{problem.shape}{batch}-{problem.a_dtype}{out}-{problem.layout}{epilogue}{TABLE_SUFFIX}"
