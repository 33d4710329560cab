"""`cupygemm explain`: what `matmul` would run for a problem."""

from __future__ import annotations

from pathlib import Path

import click

from cupygemm.commands.options import PATH, problem_argument, read_bundle
from cupygemm.problem import Problem


@click.command("explain")
@problem_argument
@click.option(
    "--bundle",
    type=PATH,
    callback=read_bundle,
    help="To be asked alone. Default: the bundles in force, then the forecast.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain_command(problem: Problem, bundle: Path | None, as_json: bool) -> None:
    """Say what matmul would run for a problem, and why. Without a GPU, for the one that the bundle was measured on."""
    from cupygemm.commands.explain_run import run_explain

    run_explain(problem, bundle, as_json)
