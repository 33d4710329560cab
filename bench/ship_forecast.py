"""Learns from a survey what `matmul` expects of shapes that nobody has tuned: the file that the package ships.

    python -m bench.ship_forecast bench/results/survey.jsonl -o cupygemm/bundles/h200_forecast.npz

It prints a cross validation first: with every shape left out once, and with every family, all products with one
weight matrix of a model being one. The same survey gives the same file on one machine, and nearly so on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import click

from bench.learning.forecasting import learn, outcomes, read_survey, rows_of, summary
from bench.portfolio import read_kernels
from bench.shared.command import Program, command_line
from bench.shared.shapes import LEARNT_PROJECTIONS
from cupygemm.choosing.forecast import LEAST, MARGIN
from cupygemm.measuring import provenance
from cupygemm.problem import Problem

MARGINS = ((1.0, 1.0), (1.015, 1.0), (MARGIN, LEAST), (1.03, 1.01), (1.04, 1.02), (1.05, 1.03), (1.07, 1.05))
"""What is told of: at the mean of both ways of asking, and by the one that says less."""
PAIRS = {pair for pairs in LEARNT_PROJECTIONS.values() for pair in pairs}


@click.command(cls=Program)
@click.argument("survey", type=click.Path(path_type=Path))
@click.option("--validate/--no-validate", default=True, show_default=True, help="Print a cross validation first.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(survey: Path, validate: bool, commit: str | None, output: Path) -> None:
    """Learns a forecast from SURVEY and writes it."""
    portfolio = read_kernels()
    device, surveyed, shapes = read_survey(survey, portfolio)
    for name, family in FAMILIES.items() if validate else ():
        found = outcomes(shapes, portfolio, device, family)
        for margin, least in MARGINS:
            click.echo(f"without its {name}: {summary(found, margin, least)}")
    facts = {
        **provenance.collect(None, command_line("bench.ship_forecast"), commit),
        "survey": surveyed,
        "survey_sha256": hashlib.sha256(survey.read_bytes()).hexdigest(),
        "shapes": len(shapes),
    }
    learn(rows_of(shapes, portfolio, device), portfolio, device, facts).save(output)
    click.echo(f"{output}: {len(shapes)} shapes, {output.stat().st_size} bytes")


def _by_weights(problem: Problem) -> str:
    return f"{problem.n}x{problem.k}" if (problem.n, problem.k) in PAIRS else str(problem)


FAMILIES: dict[str, Callable[[Problem], str]] = {"shape": str, "family": _by_weights}


if __name__ == "__main__":
    main()
