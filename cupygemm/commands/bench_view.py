"""What `cupygemm bench` shows: a table that grows on a terminal, a line a row elsewhere, and the balance at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cupygemm.commands.view import View, Write
from cupygemm.reports.report import BASELINES, balances, mode_name, origin, ratio, row_name, shown_columns
from cupygemm.text import count, printable

Row = Mapping[str, Any]

NAMING = {"M×N×K", "dtype", "layout", "with", "call"}
"""Columns of `report` that `row_name` says in one."""
LEFT_OUT = {"spread of cuBLAS / cupygemm"}
"""For width: it is in the results file, and in `report`'s tables."""
WORDS = {"mode", "kernel"}
FRAME_LINES = 8
"""Lines of a terminal that the heading of the table, the count and the prompt take."""
WIDTH = 88
"""Columns of a terminal below which the name of a problem takes two lines."""


def make_view(write: Write, total: int) -> View[Row]:
    """The view for where standard output goes.

    Args:
        write: puts a line there.
        total: rows to expect.
    """
    console = Console()
    return TableView(console, write, total) if console.is_terminal else PlainView(write, total)


class PlainView:
    """A line a row, for logs and pipes."""

    def __init__(self, write: Write, total: int) -> None:
        self._write, self._total, self._num_rows = write, total, 0

    def running(self) -> AbstractContextManager[Any]:
        """Nothing to set up."""
        return nullcontext()

    def add(self, row: Row) -> None:
        """Writes its line."""
        self._num_rows += 1
        self._write(f"{self._num_rows}/{self._total} {line(row)}")

    def end(self, document: Mapping[str, Any]) -> None:
        """Writes the balance."""
        for text in summary(document):
            self._write(text)


class TableView:
    """A table that grows in place; the whole of it, and the balance, stay when it is done."""

    def __init__(self, console: Console, write: Write, total: int) -> None:
        self._console, self._write, self._total = console, write, total
        self._rows: list[Row] = []
        # Without its thread, which would take the processor from the measuring. What goes to standard error is shown
        # above the table, unless it goes elsewhere.
        self._live = Live(
            console=console,
            get_renderable=self._newest,
            auto_refresh=False,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )

    def running(self) -> AbstractContextManager[Any]:
        """Draws the table as long as it is entered."""
        return self._live

    def add(self, row: Row) -> None:
        """Adds it."""
        self._rows.append(row)
        self._live.refresh()

    def end(self, document: Mapping[str, Any]) -> None:
        """Writes the whole table and the balance."""
        if document["rows"]:
            self._console.print(table(document["rows"]))
        for text in summary(document):
            self._write(text)

    def _newest(self) -> Table:
        """As much of the end of the table as the terminal has room for."""
        lines = self._console.height - FRAME_LINES
        shown = table(self._rows[-max(1, lines if self._console.width >= WIDTH else lines // 2) :])
        shown.caption = f"{len(self._rows)} of {count(self._total, 'row')}"
        return shown


def table(rows: Sequence[Row]) -> Table:
    """The columns of `report`, narrow enough for a terminal: what names a problem is one column, which may wrap."""
    columns = [column for column in shown_columns(rows) if column.title not in NAMING | LEFT_OUT]
    made = Table(box=box.SIMPLE_HEAD, padding=0)
    made.add_column("problem")
    for column in columns:
        # "best cublasLt, µs" and "cublasLt / cupygemm" in lines of one word.
        title = column.title.replace(",", "").replace(" / ", " /").replace(" ", "\n")
        made.add_column(title, justify="left" if column.title in WORDS else "right", no_wrap=True)
    for row in rows:
        made.add_row(printable(row_name(row)), *(printable(column.cell(row)) for column in columns))
    return made


def line(row: Row) -> str:
    """A row in words."""
    ours = f"{row['cupygemm_us']:.2f} µs" + (" by cuBLAS" if row.get("kernel") == "cublas" else "")
    ratios = [f"{over:.3f}× {name}" for key, name in BASELINES.items() if (over := ratio(row, key)) is not None]
    return f"{row_name(row)}, {mode_name(row)}: {', '.join([ours, *ratios])}"


def summary(document: Mapping[str, Any]) -> list[str]:
    """The balance of each mode, what was left to cuBLAS, and where the times come from."""
    rows = document["rows"]
    names = {row_name(row) for row in rows}
    left = {row_name(row) for row in rows if row.get("kernel") == "cublas"}
    lines = balances(rows)
    if left:
        left_to_cublas = f"{len(left)} of {count(len(names), 'problem')} left to cuBLAS"
        lines.append(f"{left_to_cublas}: no config is known, or expected, to be faster")
    return [printable(text) for text in (*lines, origin(document))]
