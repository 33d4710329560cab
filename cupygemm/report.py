"""Recorded results as Markdown: what stands between `<!-- results:NAME -->` and `<!-- /results -->` in a document.

Every row of a file is shown, won or lost, in the order recorded; nothing is chosen here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cupygemm.atomic import write_atomically
from cupygemm.errors import BundleError, CupygemmError
from cupygemm.results import REPORT_SCHEMA, RESULTS_SCHEMA
from cupygemm.text import count, one_line

DIRECTORY = Path("bench/results")
"""Where the recorded files lie in a checkout; they are not installed with the package."""

NOTHING = "Nothing is recorded under this name yet."
MISSING = "–"
CLOSE = "<!-- /results -->"

_MARKER = re.compile(r"<!-- results:(?P<name>\w+) -->|" + re.escape(CLOSE))
_VERSIONS = {"driver": "driver", "cuda": "CUDA", "nvrtc": "NVRTC", "cublas": "cuBLAS", "cupy": "CuPy"}
_BASELINES = {"cublas_us": "cuBLAS", "cublaslt_us": "best cublasLt"}


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
        BundleError: there is no such directory, or a file is no JSON object or has a schema that this version
            cannot render.
    """
    if not directory.is_dir():
        raise BundleError(f"{directory}: no such folder: run this at the root of a checkout, or name it with --results")
    return {path.stem: _read(path) for path in sorted(directory.glob("*.json"))}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{path}: not JSON: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in RENDERERS:
        raise BundleError(f"{path}: schema is {schema!r}: legal values are {', '.join(RENDERERS)}")
    return dict(document)


def fill(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The text with every block between markers rendered anew.

    Raises:
        BundleError: a marker is opened twice, closed without being open, or never closed.
    """
    parts: list[str] = []
    end, name = 0, None
    for marker in _MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        if (name is None) == (marker["name"] is None):
            raise BundleError(f"line {line}: {marker[0]} does not follow its counterpart: markers come in pairs")
        if name is None:
            parts.append(text[end : marker.end()])
        else:
            parts.append(f"\n{render(results.get(name))}\n{CLOSE}")
        end, name = marker.end(), marker["name"]
    if name is not None:
        raise BundleError(f"results:{name} is never closed: end the block with {CLOSE}")
    return "".join([*parts, text[end:]])


def render(document: Mapping[str, Any] | None) -> str:
    """One recorded file as Markdown, without a final newline; a sentence where there is none."""
    return NOTHING if document is None else RENDERERS[document["schema"]](document)


def render_times(document: Mapping[str, Any]) -> str:
    """A table with a row for each recorded row, the balance by mode, and where the times come from."""
    rows = document["rows"]
    columns = [column for column in COLUMNS if any(column.shown(row) for row in rows)]
    cells = [[column.cell(row) for column in columns] for row in rows]
    table = _table([column.title for column in columns], cells)
    modes = dict.fromkeys(row["mode"] for row in rows)
    balance = [_balance(mode, [row for row in rows if row["mode"] == mode]) for mode in modes]
    return "\n\n".join([table, "\n".join(balance), _origin(document)])


def _balance(mode: str, rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"- {mode}, {count(len(rows), 'row')}"]
    for baseline, name in _BASELINES.items():
        found = [ratio for row in rows if (ratio := _ratio(row, baseline)) is not None]
        if not found:
            continue
        wins = sum(ratio > 1 for ratio in found)
        mean = math.exp(math.fsum(map(math.log, found)) / len(found))
        losses = len(found) - wins
        parts.append(f"against {name}: {wins} faster, {losses} not, geometric mean of the ratio {mean:.3f}")
    return "; ".join(parts)


def render_report(document: Mapping[str, Any]) -> str:
    """The summary of a report as a list, the number of its failures, and where it comes from."""
    lines = [f"- {name}: {_value(value)}" for name, value in _flat(document["summary"])]
    lines.append(f"- failures: {len(document['failures'])}")
    return "\n".join([*lines, "", _origin(document)])


def render_search(document: Mapping[str, Any]) -> str:
    """A row a strategy: its score after each budget, with the standard error over seeds."""
    budgets = [str(budget) for budget in document["budgets"]]
    header = ["strategy", "seeded", *(f"score after {budget}" for budget in budgets), "evaluations to 99 %"]
    cells = []
    for name, result in document["strategies"].items():
        scores = [
            f"{_value(result['score'].get(budget))} ± {_value(result['stderr'].get(budget))}" for budget in budgets
        ]
        seeded = "yes" if result["seeded"] else "no"
        cells.append([name, seeded, *scores, _value(result.get("evals_to_99_median"))])
    return f"{_table(header, cells)}\n\n{_origin(document)}"


RENDERERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    RESULTS_SCHEMA: render_times,
    REPORT_SCHEMA: render_report,
    "cupygemm.search/1": render_search,
}


def _problem(row: Mapping[str, Any]) -> str:
    shape = "×".join(str(row[size]) for size in "mnk")
    return shape if row.get("batch", 1) == 1 else f"{row['batch']} of {shape}"


def _dtypes(row: Mapping[str, Any]) -> str:
    operands = row["a_dtype"] if row["a_dtype"] == row["b_dtype"] else f"{row['a_dtype']}, {row['b_dtype']}"
    return operands if row["out_dtype"] == operands else f"{operands} → {row['out_dtype']}"


def _extras(row: Mapping[str, Any]) -> str:
    named = [row[key] for key in ("epilogue", "scales") if row.get(key) not in (None, "none")]
    return ", ".join([*named, *(["dependent launch"] if row.get("pdl") else [])]) or MISSING


def _ratio(row: Mapping[str, Any], baseline: str) -> float | None:
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
    return Column(f"{title} / cupygemm", lambda row: _value(_ratio(row, key), ".3f"))


COLUMNS = (
    Column("M×N×K", _problem),
    Column("dtype", _dtypes),
    Column("layout", lambda row: str(row["layout"])),
    Column("with", _extras, lambda row: _extras(row) != MISSING),
    Column("mode", lambda row: str(row["mode"])),
    Column("call", lambda row: str(row.get("call", MISSING)), lambda row: "call" in row),
    Column("kernel", lambda row: str(row.get("kernel", "own")), lambda row: row.get("kernel", "own") != "own"),
    _time("cupygemm_us", "cupygemm"),
    _time("cublas_us", "cuBLAS"),
    _time("cublaslt_us", "best cublasLt"),
    _time("torch_us", "PyTorch"),
    _over("cublas_us", "cuBLAS"),
    _over("cublaslt_us", "cublasLt"),
    Column("spread", lambda row: _value(row.get("spread"), ".1%"), lambda row: row.get("spread") is not None),
)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _origin(document: Mapping[str, Any]) -> str:
    """Device, date, commit, versions and command, as far as the file has them."""
    origin = document["provenance"]
    commit = f"commit {str(origin['commit'])[:10]}" if origin.get("commit") else "an unnamed commit"
    commit += " with uncommitted changes" if origin.get("dirty") else ""
    versions = [f"{name} {origin[key]}" for key, name in _VERSIONS.items() if origin.get(key)]
    parts = [origin.get("device") or "no GPU", str(origin.get("date") or "undated")[:10], commit, *versions]
    command = f" Command: `{document['command']}`." if document.get("command") else ""
    return f"{', '.join(parts)}.{command}"


@click.command("report")
@click.argument("documents", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--results", default=DIRECTORY, show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--write/--check", default=True, help="Write the documents, or fail if one differs from what is recorded."
)
def report(documents: tuple[Path, ...], results: Path, write: bool) -> None:
    """Fill the results blocks of Markdown DOCUMENTS (README.md if none is named) from recorded JSON files."""
    try:
        recorded = read_results(results)
        for path in documents or (Path("README.md"),):
            click.echo(f"{path}: {_update(path, recorded, write)}")
    except (CupygemmError, OSError) as error:
        raise click.ClickException(one_line(error)) from error


def _update(path: Path, recorded: Mapping[str, Mapping[str, Any]], write: bool) -> str:
    """What was done."""
    old = path.read_text(encoding="utf-8")
    try:
        new = fill(old, recorded)
    except BundleError as error:
        raise BundleError(f"{path}, {error}") from error
    if old == new:
        return "up to date"
    if not write:
        raise BundleError(f"{path}: a results block differs from what is recorded: run `cupygemm report {path}`")
    write_atomically(path, new.encode())
    return "written"


if __name__ == "__main__":
    report()
