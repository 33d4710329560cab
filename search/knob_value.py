"""What each knob is worth: how much slower the best config with a value of it is than the best of all, by table.

Times are taken over cuBLAS's of the same rounds, since the rows of a table were measured minutes apart and the GPU's
clock moved between them. How far cuBLAS alone moved is said too: smaller differences mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from statistics import median, quantiles

from cupygemm.config import KernelConfig
from cupygemm.errors import FileError
from cupygemm.reports import blocks
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces.declared import RESTRICTIONS
from cupygemm.search.spaces.space import FIELD_NAMES
from cupygemm.text import count

BLOCK = "knob_value"
"""The name of the block of this table."""
MISSING = "–"


def render(name: str, folder: Traversable | None = None) -> str:
    """The recorded tables as a Markdown table: a row for each value of each knob, a column for each problem.

    Args:
        name: `BLOCK`, the only one there is.
        folder: of the recorded tables; None for those that ship with the package.

    Raises:
        FileError: another name, no such folder, or a table that cannot be read.
    """
    if name != BLOCK:
        raise FileError(f"table:{name}: the one block of this kind is {BLOCK}")
    tables = [Table.read(found.path) for found in sorted(recorded_tables(folder), key=lambda found: found.problem)]
    if not tables:
        return "Nothing is recorded yet."
    times = [relative_times(table) for table in tables]
    rows = [[f"`{knob}`", _value(value), *(_cost(t, knob, value) for t in times)] for knob, value in _tried(tables)]
    rows.append(["best", "cuBLAS / cupygemm", *map(_best, times)])
    rows.append(["cuBLAS", "moved by", *map(_movement, tables)])
    header = ["knob", "value", *(table.problem.shape.replace("x", "×") for table in tables)]
    return f"{blocks.table(header, rows)}\n\n{_origin(tables)}"


def relative_times(table: Table) -> dict[KernelConfig, float]:
    """Time over cuBLAS's of the same rounds, of every config that has both."""
    timed = ((config, row.us, row.cublas_us) for config, row in table.rows.items())
    return {config: us / cublas_us for config, us, cublas_us in timed if us is not None and cublas_us is not None}


def cost(times: Mapping[KernelConfig, float], knob: str, value: int | bool) -> float | None:
    """How much slower the best config with this value is than the best: 0.1 for a tenth; None where there is none."""
    kept = [time for config, time in times.items() if getattr(config, knob) == value]
    return min(kept) / min(times.values()) - 1 if kept else None


def movement(table: Table) -> float | None:
    """Half the width of the middle nine tenths of cuBLAS's times in a table, over their median."""
    times = [row.cublas_us for row in table.rows.values() if row.cublas_us is not None]
    if len(times) < 2:
        return None
    parts = quantiles(times, n=20, method="inclusive")
    return (parts[-1] - parts[0]) / 2 / median(times)


def _tried(tables: Sequence[Table]) -> list[tuple[str, int | bool]]:
    """Knobs that vary in any table, with all values tried in any."""
    found = []
    for name in FIELD_NAMES:
        values = {value for table in tables for knob in table.knobs if knob.name == name for value in knob.values}
        found += [(name, value) for value in sorted(values)] if len(values) > 1 else []
    return found


def _value(value: int | bool) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _cost(times: Mapping[KernelConfig, float], knob: str, value: int | bool) -> str:
    found = cost(times, knob, value)
    if found is None:
        return MISSING
    return f"+{found:.1%}" if found else "best"


def _best(times: Mapping[KernelConfig, float]) -> str:
    return f"{1 / min(times.values()):.3f}" if times else MISSING


def _movement(table: Table) -> str:
    found = movement(table)
    return MISSING if found is None else f"±{found:.1%}"


def _origin(tables: Sequence[Table]) -> str:
    """Devices, dates and problems of the tables; then by sub-space their commits, and which points they leave out."""
    devices = dict.fromkeys(table.device.name for table in tables)
    dates = sorted({str(table.provenance.get("date") or "undated")[:10] for table in tables})
    problems = dict.fromkeys(str(table.problem).removeprefix(table.problem.shape).strip() for table in tables)
    points = sum(len(table.rows) for table in tables)
    recorded = Counter((table.subspace, str(table.provenance.get("commit") or "unnamed")[:10]) for table in tables)
    of = "; ".join(f"{number} of `{subspace}`, commit {commit}" for (subspace, commit), number in recorded.items())
    where = f"{', '.join(devices)}, {', '.join(dates)}; {', '.join(problems)}"
    head = f"{where}; {count(len(tables), 'table')} of search/tables, {count(points, 'point')}: {of}."
    return "\n\n".join([head, *_left_out(tables)])


def _left_out(tables: Sequence[Table]) -> list[str]:
    """The rules of each sub-space, as a list of its own."""
    found = []
    for subspace in dict.fromkeys(table.subspace for table in tables):
        own = [each.rule for table in tables if table.subspace == subspace for each in table.restrictions]
        rules = [f"- {rule}: {RESTRICTIONS[rule].reason}" for rule in dict.fromkeys(own) if rule in RESTRICTIONS]
        if rules:
            found += [f"Beside what is illegal, tables of `{subspace}` leave out:", "\n".join(rules)]
    return found
