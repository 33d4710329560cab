"""Files under bench/results/: what a program measured, in the two schemas that reports and checks read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cupygemm.atomic import write_atomically

RESULTS_SCHEMA = "cupygemm.results/1"
REPORT_SCHEMA = "cupygemm.report/1"


def write_results(
    path: Path, name: str, command: str, provenance: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Writes rows of times, whole or not at all.

    Raises:
        OSError: the file cannot be written.
        ValueError: a number is not finite.
    """
    _write(path, {"schema": RESULTS_SCHEMA, "name": name, "command": command, "provenance": provenance, "rows": rows})


def write_report(
    path: Path,
    name: str,
    command: str,
    provenance: Mapping[str, Any],
    summary: Mapping[str, Any],
    failures: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes counts and figures, whole or not at all.

    Raises:
        OSError: the file cannot be written.
        ValueError: a number is not finite.
    """
    head = {"schema": REPORT_SCHEMA, "name": name, "command": command, "provenance": provenance}
    _write(path, {**head, "summary": summary, "failures": failures})


def _write(path: Path, document: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
