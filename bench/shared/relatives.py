"""Configs for a problem that were the fastest of those measured for the problems most like it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.learning.forecasting import SURVEY
from cupygemm.config import KernelConfig
from cupygemm.errors import FileError
from cupygemm.problem import Problem


class Best(NamedTuple):
    """What was fastest for a problem."""

    problem: Problem
    config: KernelConfig


def bests(surveys: Iterable[Path]) -> list[Best]:
    """The fastest configs that surveys hold (bench/survey.py).

    Raises:
        FileError: a file cannot be read, or is no survey.
    """
    return [best for survey in surveys for best in _surveyed(survey)]


def _surveyed(path: Path) -> Iterator[Best]:
    try:
        head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: no survey: {error}") from error
    if head.get("schema") != SURVEY:
        raise FileError(f"{path}: schema is {head.get('schema')!r}: legal is {SURVEY}")
    for line in lines:
        measured = [row for row in line["rows"] if row["status"] == "ok"]
        if measured:
            best = min(measured, key=lambda row: row["us"])
            config = KernelConfig.from_ints(head["fields"], best["config"])
            yield Best(Problem.from_dict(line["problem"]), config)


def relatives(problem: Problem, known: Iterable[Best], most: int) -> list[KernelConfig]:
    """Different configs, those of the problem itself first, then of the nearest ones."""
    ordered = sorted(known, key=lambda best: distance(problem, best.problem))
    return list(dict.fromkeys(best.config for best in ordered))[:most]


def distance(one: Problem, other: Problem) -> float:
    """In octaves of the sizes; what lies otherwise, or has other dtypes, is half an octave off."""
    sizes = ((one.m, other.m), (one.n, other.n), (one.k, other.k))
    apart = sum(abs(math.log2(x / y)) for x, y in sizes)
    return apart + 0.5 * (one.layout != other.layout) + 0.5 * (one.a_dtype != other.a_dtype)
