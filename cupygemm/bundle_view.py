"""A bundle as a table for a person."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cupygemm.bundle import Bundle, Entry

PIPED_COLUMNS = 200
"""Width where standard output is no terminal: wide enough that most lines are not broken."""


def show(bundle: Bundle) -> None:
    """Prints the entries, one a row, to standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_COLUMNS)
    table = Table("problem", "µs", "cuBLAS µs", "speedup", "found by", "config")
    for entry in bundle.entries:
        table.add_row(*_cells(entry))
    console.print(table)


def _cells(entry: Entry) -> tuple[str, ...]:
    measured, search = entry.measured, entry.search
    return (
        str(entry.problem),
        f"{measured.us:.2f}",
        "–" if measured.cublas_us is None else f"{measured.cublas_us:.2f}",
        "–" if measured.speedup is None else f"{measured.speedup:.3f}",
        f"{search.strategy}, {search.evaluations} evaluations",
        " ".join(f"{name}={value}" for name, value in entry.config.to_dict().items()),
    )
