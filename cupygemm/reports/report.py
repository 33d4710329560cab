"""Recorded results as Markdown: the blocks `results:NAME` of the documents, and `scores:NAME`, of a comparison.

Every row of a file is shown, won or lost, in the order recorded; nothing is chosen here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupygemm.errors import FileError
from cupygemm.measuring.results import (
    COMPARISON_SCHEMA,
    REPORT_SCHEMA,
    RESULTS_SCHEMA,
    SEARCH_SCHEMA,
    TRANSFER_SCHEMA,
    times_finding,
)
from cupygemm.reports import comparison_report, transfer_report
from cupygemm.reports.blocks import table
from cupygemm.text import count

DIRECTORY = Path("bench/results")
"""Where the recorded files lie in a checkout; they are not installed with the package."""

NOTHING = "Nothing is recorded under this name yet."
MISSING = "–"
DEPENDENT, GIVEN = "dependent launch", "the start"
"""How rows with programmatic dependent launch are marked."""

VERSIONS = {"driver": "driver", "cuda": "CUDA", "nvrtc": "NVRTC", "cublas": "cuBLAS", "cupy": "CuPy"}
"""Of what a measurement ran on, by the field of its provenance."""
BASELINES = {"cublas_us": "cuBLAS", "cublaslt_us": "best cublasLt"}
"""What rows compare with, by the field of its time."""


@dataclass(frozen=True)
class Column:
    """A column of a table of times.

    Attributes:
        title: its heading.
        cell: a row's text.
        shown: whether a row has something to say here; a column that no row has anything for is left out.
    """

    title: str
    cell: Callable[[Mapping[str, Any]], str]
    shown: Callable[[Mapping[str, Any]], bool] = lambda row: True


def read_results(directory: Path = DIRECTORY) -> dict[str, dict[str, Any]]:
    """The recorded files of a directory by name, without ".json".

    Raises:
        FileError: there is no such directory, or a file is no JSON object or has a schema that this version
            cannot render.
    """
    if not directory.is_dir():
        raise FileError(f"{directory}: no such folder: run this at the root of a checkout, or name it with --results")
    return {path.stem: read_file(path) for path in sorted(directory.glob("*.json"))}


def read_file(path: Path, schemas: Collection[str] = ()) -> dict[str, Any]:
    """One recorded file.

    Args:
        schemas: those that will do; all that this version renders where none is named.

    Raises:
        FileError: it cannot be read, is no JSON object, has another schema, or its rows are none of times.
    """
    legal = schemas or RENDERERS
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "name a file that is there: `cupygemm bench -o FILE` writes one"
        raise FileError(f"{path}: {error.strerror or error}; {remedy}") from error
    except ValueError as error:
        raise FileError(f"{path}: not JSON, as recorded results are: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in legal:
        raise FileError(f"{path}: schema is {schema!r}: legal values are {', '.join(legal)}")
    finding = times_finding(document) if schema == RESULTS_SCHEMA else None
    if finding is not None:
        raise FileError(f"{path}: {finding}")
    return dict(document)


def documents() -> list[Path]:
    """The documents of a checkout, from its root."""
    return [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(Path("docs").glob("*.md"))]


def render(document: Mapping[str, Any] | None) -> str:
    """One recorded file as Markdown, without a final newline; a sentence where there is none."""
    return NOTHING if document is None else RENDERERS[document["schema"]](document)


def render_scores(document: Mapping[str, Any] | None) -> str:
    """A comparison of strategies without what each found on each table; a sentence where there is none."""
    if document is None:
        return NOTHING
    return "\n\n".join([*comparison_report.scores(document), origin(document)])


def render_times(document: Mapping[str, Any]) -> str:
    """A table with a row for each recorded row, the balance by mode, what it comes to, what failed, and where from."""
    rows = document["rows"]
    columns = shown_columns(rows)
    times = table([column.title for column in columns], [[column.cell(row) for column in columns] for row in rows])
    failures = [f"not measured: {failure_line(failure)}" for failure in document.get("failures", ())]
    figures = [f"{name}: {_value(value)}" for name, value in document.get("summary", {}).items()]
    lines = [f"- {line}" for line in (*balances(rows), *figures, *failures)]
    return "\n\n".join([times, "\n".join(lines), origin(document)])


def shown_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns that these rows have something for."""
    return [column for column in COLUMNS if any(column.shown(row) for row in rows)]


def failure_line(failure: Mapping[str, Any]) -> str:
    """What could not be measured, and why."""
    step = f", {failure['step']}" if "step" in failure else ""
    return f"{row_name(failure)}{step}: {failure['detail']}"


def balances(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Wins, losses and the geometric mean of the ratio against each baseline, a line a mode: modes do not average.

    Rows with programmatic dependent launch have lines of their own.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(mode_name(row), []).append(row)
    return [_balance(name, group) for name, group in groups.items()]


def mode_name(row: Mapping[str, Any]) -> str:
    """How a row was measured: rows that differ here are not averaged together."""
    return ", ".join([str(row["mode"]), *_marks(row)])


def _marks(row: Mapping[str, Any]) -> list[str]:
    """What sets a row apart: dependent launch, or a config that a search was given beside what it found."""
    return [mark for field, mark in (("pdl", DEPENDENT), ("given", GIVEN)) if row.get(field)]


def _balance(mode: str, rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{mode}, {count(len(rows), 'row')}"]
    for baseline, name in BASELINES.items():
        found = [over for row in rows if (over := ratio(row, baseline)) is not None]
        if not found:
            continue
        wins = sum(over > 1 for over in found)
        mean = math.exp(math.fsum(map(math.log, found)) / len(found))
        losses = len(found) - wins
        parts.append(f"against {name}: {wins} faster, {losses} not, geometric mean of the ratio {mean:.3f}")
    return "; ".join(parts)


def render_report(document: Mapping[str, Any]) -> str:
    """The summary of a report, the number of its failures, and where it comes from.

    A list; where each thing that was measured has fields of its own, a table of those that are numbers.
    """
    summary, failures = document["summary"], f"- failures: {len(document['failures'])}"
    if summary and all(isinstance(value, Mapping) for value in summary.values()):
        return "\n\n".join([_table_of_numbers(summary), failures, origin(document)])
    lines = [f"- {name}: {_value(value)}" for name, value in _flat(summary)]
    return "\n".join([*lines, failures, "", origin(document)])


def _table_of_numbers(summary: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [
        name
        for name in dict.fromkeys(name for fields in summary.values() for name in fields)
        if all(isinstance(fields.get(name), int | float | None) for fields in summary.values())
    ]
    cells = [[name, *(_value(fields.get(column)) for column in shown)] for name, fields in summary.items()]
    return table(["", *shown], cells)


def render_comparison(document: Mapping[str, Any]) -> str:
    """Our strategies and other people's, a row each, and where the figures come from."""
    return "\n\n".join([*comparison_report.parts(document), origin(document)])


def render_search(document: Mapping[str, Any]) -> str:
    """The scores of strategies on our own tables, and where they come from."""
    return "\n\n".join([comparison_report.brief(document), origin(document)])


def render_transfer(document: Mapping[str, Any]) -> str:
    """What suggestions for held-out problems find, and where the figures come from."""
    return "\n\n".join([*transfer_report.parts(document), origin(document)])


RENDERERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    RESULTS_SCHEMA: render_times,
    REPORT_SCHEMA: render_report,
    COMPARISON_SCHEMA: render_comparison,
    SEARCH_SCHEMA: render_search,
    TRANSFER_SCHEMA: render_transfer,
}


def row_name(row: Mapping[str, Any]) -> str:
    """The problem of a row and what is unusual about it, in one line; not its mode."""
    extras = [part for part in (_extras(row), str(row.get("call", MISSING))) if part != MISSING]
    return ", ".join([f"{_problem(row)} {_dtypes(row)} {row['layout']}", *extras])


def _problem(row: Mapping[str, Any]) -> str:
    shape = "×".join(str(row[size]) for size in "mnk")
    return shape if row.get("batch", 1) == 1 else f"{row['batch']} of {shape}"


def _dtypes(row: Mapping[str, Any]) -> str:
    operands = row["a_dtype"] if row["a_dtype"] == row["b_dtype"] else f"{row['a_dtype']}, {row['b_dtype']}"
    return operands if row["out_dtype"] == operands else f"{operands} → {row['out_dtype']}"


def _extras(row: Mapping[str, Any]) -> str:
    named = [row[key] for key in ("epilogue", "scales") if row.get(key) not in (None, "none")]
    return ", ".join([*named, *_marks(row)]) or MISSING


def ratio(row: Mapping[str, Any], baseline: str) -> float | None:
    """Their time over ours: above 1 is a win; None where either was not measured."""
    theirs, ours = row.get(baseline), row.get("cupygemm_us")
    return theirs / ours if theirs and ours else None


def _value(value: object, digits: str = ".4g") -> str:
    if value is None:
        return MISSING
    return format(value, digits) if isinstance(value, float) else str(value)


def _time(key: str, title: str) -> Column:
    return Column(
        f"{title}, µs",
        lambda row: _value(row.get(key), ".2f"),
        lambda row: key != "torch_us" or row.get(key) is not None,
    )


def _over(key: str, title: str) -> Column:
    return Column(f"{title} / cupygemm", lambda row: _value(ratio(row, key), ".3f"))


COLUMNS = (
    Column("M×N×K", _problem),
    Column("dtype", _dtypes),
    Column("layout", lambda row: str(row["layout"])),
    Column("with", _extras, lambda row: _extras(row) != MISSING),
    Column("mode", lambda row: str(row["mode"])),
    Column("step", lambda row: str(row.get("step", MISSING)), lambda row: "step" in row),
    Column("call", lambda row: str(row.get("call", MISSING)), lambda row: "call" in row),
    Column("kernel", lambda row: str(row.get("kernel", "own")), lambda row: row.get("kernel", "own") != "own"),
    _time("cupygemm_us", "cupygemm"),
    _time("cublas_us", "cuBLAS"),
    _time("cublaslt_us", "best cublasLt"),
    _time("torch_us", "PyTorch"),
    _over("cublas_us", "cuBLAS"),
    _over("cublaslt_us", "cublasLt"),
    Column("spread", lambda row: _value(row.get("spread"), ".1%"), lambda row: row.get("spread") is not None),
    Column(
        "spread of cuBLAS / cupygemm",
        lambda row: _value(row.get("ratio_spread"), ".2%"),
        lambda row: row.get("ratio_spread") is not None,
    ),
)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def where_and_when(document: Mapping[str, Any]) -> tuple[str, str]:
    """Device and date."""
    facts = document["provenance"]
    return str(facts.get("device") or "no GPU"), str(facts.get("date") or "undated")[:10]


def origin(document: Mapping[str, Any]) -> str:
    """Device, date, commit, versions and command, as far as the file has them."""
    facts = document["provenance"]
    commit = f"commit {str(facts['commit'])[:10]}" if facts.get("commit") else "an unnamed commit"
    commit += " with uncommitted changes" if facts.get("dirty") else ""
    versions = [f"{name} {facts[key]}" for key, name in VERSIONS.items() if facts.get(key)]
    parts = [*where_and_when(document), commit, *versions]
    command = f" Command: `{document['command']}`." if document.get("command") else ""
    return f"{', '.join(parts)}.{command}"
