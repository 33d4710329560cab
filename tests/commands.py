"""What tests of several commands ask of a result."""

from __future__ import annotations

import json

from click.testing import Result

from cupygemm.problem import Problem

PROBLEM = Problem(2048, 2048, 4096)
SMALL = Problem(512, 512, 8192)
"""The two problems that the fixture `tables` has tables of."""


def events(result: Result) -> list[dict]:
    """The JSON objects of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def failed(result: Result, what: str) -> None:
    """Exit status 1, with one clear line on standard error and nothing on standard output."""
    assert result.exit_code == 1, result.output
    assert what in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
