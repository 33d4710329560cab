"""Files under bench/results/: what a program measured, in the schemas that reports and checks read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cupygemm.atomic import write_atomically

RESULTS_SCHEMA = "cupygemm.results/1"
REPORT_SCHEMA = "cupygemm.report/1"
COMPARISON_SCHEMA = "cupygemm.comparison/1"
SEARCH_SCHEMA = "cupygemm.search/1"
"""Of a comparison, the scores on our own tables alone, for other programs."""
TRANSFER_SCHEMA = "cupygemm.transfer/1"

_NAMED = ("m", "n", "k", "a_dtype", "b_dtype", "out_dtype", "layout")
_NUMBERS = ("cupygemm_us", "cublas_us", "cublaslt_us", "torch_us", "spread")


def times_document(
    name: str, command: str, provenance: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """What a file of times holds.

    Args:
        rows: of `benchmark`.
        **more: further fields of the document.
    """
    head = {"schema": RESULTS_SCHEMA, "name": name, "command": command}
    return {**head, **more, "provenance": dict(provenance), "rows": [dict(row) for row in rows]}


def write_results(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a `times_document`, or one of another schema, whole or not at all.

    Raises:
        OSError: the file cannot be written.
        ValueError: a number is not finite.
    """
    _write(path, document)


def times_finding(document: Mapping[str, Any]) -> str | None:
    """What keeps a file of times from being read as one, with where it is; None where nothing does."""
    if not isinstance(document.get("provenance"), dict):
        return "provenance: a mapping belongs here"
    for field in ("rows", "failures"):
        entries = document.get(field, [] if field == "failures" else None)
        if not isinstance(entries, list):
            return f"{field}: a list belongs here"
        for index, entry in enumerate(entries):
            finding = _entry_finding(entry, (*_NAMED, "detail" if field == "failures" else "mode"))
            if finding is not None:
                return f"{field}[{index}]: {finding}"
    return None


def _entry_finding(entry: Any, required: Sequence[str]) -> str | None:
    if not isinstance(entry, dict):
        return "a mapping belongs here"
    missing = [key for key in required if key not in entry]
    if missing:
        return f"missing {', '.join(missing)}"
    wrong = [key for key in _NUMBERS if not _is_amount(entry.get(key))]
    return f"{', '.join(wrong)}: a number that is not negative, or null, belongs here" if wrong else None


def _is_amount(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value < math.inf)


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
