"""`Check`: one thing that `cupygemm doctor` looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # works, and not as well as it could
    PROBLEM = "problem"  # broken: something that this machine should do, it does not
    ABSENT = "not here"  # not broken: there is nothing to check


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        state: how it is.
        found: what was found, one line.
        remedy: what to do about it; empty where nothing is to be done.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
