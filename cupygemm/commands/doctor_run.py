"""What `cupygemm doctor` does: the checks of `doctor`, as a table on a terminal, in lines elsewhere, or in JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cupygemm.machine.checks import Check, State
from cupygemm.machine.doctor import broken, examine
from cupygemm.names import SEARCH_PACKAGES
from cupygemm.text import count, printable

SCHEMA = "cupygemm.doctor/1"

_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.ABSENT: "dim"}


def run_doctor(as_json: bool) -> bool:
    """Examines the machine and says what was found; whether nothing is broken.

    Args:
        as_json: one JSON object in place of words.
    """
    checks = examine(SEARCH_PACKAGES)
    console = Console()
    if as_json:
        document = {"schema": SCHEMA, "ok": not broken(checks), "checks": [asdict(check) for check in checks]}
        click.echo(json.dumps(document, indent=2))
    elif console.is_terminal:
        console.print(_table(checks))
        click.echo(_summary(checks))
    else:
        for line in (*_lines(checks), _summary(checks)):
            click.echo(line)
    return not broken(checks)


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    width = max(map(len, State))
    for check in checks:
        yield printable(f"{check.state:{width}}  {check.name}: {check.found}")
        if check.remedy:
            yield printable(f"{'':{width}}  what to do: {check.remedy}")


def _table(checks: Sequence[Check]) -> Table:
    table = Table("state", "what", "found", box=None, pad_edge=False)
    for check in checks:
        style, found = _STYLES[check.state], escape(printable(check.found))
        if check.remedy:
            found += f"\n[italic]what to do: {escape(printable(check.remedy))}[/italic]"
        table.add_row(f"[{style}]{check.state}[/{style}]", escape(check.name), found)
    return table


def _summary(checks: Sequence[Check]) -> str:
    states = Counter(check.state for check in checks)
    if states[State.PROBLEM]:
        return f"{count(states[State.PROBLEM], 'problem')}: see what to do above"
    if any(check.name.startswith("GPU ") and check.state is State.OK for check in checks):
        return "nothing stops matmul from running its own kernels"
    return "nothing is broken; own kernels need a Hopper GPU, and there is none here"
