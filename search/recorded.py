"""Where recorded tables lie: those that ship with the package, or a folder of one's own."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from cupygemm.device import DeviceSpec
from cupygemm.errors import BundleError
from cupygemm.problem import Problem
from cupygemm.search.table import Table, problem_of

SUFFIX = ".jsonl.gz"


def recorded_tables(folder: Traversable | None = None) -> dict[Problem, Traversable]:
    """The tables in a folder by problem; only their headers are read.

    Args:
        folder: where they lie; None for those that ship with the package.

    Raises:
        BundleError: there is no such folder, a file with the suffix of a table is none, or two are of the same problem.
    """
    folder = files("cupygemm.search").joinpath("tables") if folder is None else folder
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder of recorded tables")
    found: dict[Problem, Traversable] = {}
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not path.name.endswith(SUFFIX):
            continue
        problem = problem_of(path)
        if problem in found:
            raise BundleError(f"{path}: a second table of {problem}, beside {found[problem].name}")
        found[problem] = path
    return found


def find_table(problem: Problem, folder: Traversable | None = None) -> Table:
    """The recorded table of exactly this problem.

    Raises:
        BundleError: there is none; the message names the problems that have one.
    """
    tables = recorded_tables(folder)
    if problem not in tables:
        known = ", ".join(str(recorded) for recorded in sorted(tables)) or "none"
        raise BundleError(f"no recorded table of {problem}; recorded: {known}")
    return Table.read(tables[problem])


def file_name(problem: Problem, device: DeviceSpec) -> str:
    """What a table of this problem on this device is called."""
    gpu = device.name.removeprefix("NVIDIA ").lower().replace(" ", "-")
    out = "" if problem.out_dtype == problem.a_dtype else f"-{problem.out_dtype}"
    return f"{gpu}-{problem.shape}-{problem.a_dtype}{out}-{problem.layout}{SUFFIX}"
