"""How tests run `cupygemm bench`, and read the file that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from cupygemm import cli


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["bench", *map(str, arguments)])


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
