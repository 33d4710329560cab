"""`cupygemm bench`: times beside cuBLAS's, measured now or recorded before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cupygemm.commands.options import (
    PATH,
    SHAPE_OPTION_NAMES,
    ProblemOf,
    command_line,
    commit_option,
    gpu_option,
    read_bundle,
    refuse,
    shape_options,
)
from cupygemm.errors import ProblemError
from cupygemm.measuring import suites
from cupygemm.names import DEFAULT_MODES, MODES, PLOT_SUFFIXES

_Read = TypeVar("_Read")


def _read_plot(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """A file whose name says a format that a picture can have."""
    if value is not None and value.suffix.lower() not in PLOT_SUFFIXES:
        raise click.BadParameter(f"{value}: the name ends in {', '.join(PLOT_SUFFIXES)}")
    return value


def _read_targets(read: Callable[..., _Read], *args: Any) -> _Read:
    """What targets come to; those that name nothing are wrong usage."""
    try:
        return read(*args)
    except ProblemError as error:
        raise click.BadParameter(str(error), param_hint="SUITE or MxNxK") from error


@click.command("bench", short_help="Time problems against cuBLAS and cublasLt.")
@click.argument("targets", metavar="[SUITE | MxNxK...]", nargs=-1)
@shape_options
@click.option(
    "--bundle",
    type=PATH,
    callback=read_bundle,
    help="To be asked alone. Default: the bundles in force, then the forecast.",
)
@gpu_option
@click.option(
    "--mode", "modes", type=click.Choice(MODES), multiple=True, help="Repeatable. Default: rotated, resident."
)
@commit_option
@click.option("-o", "--output", type=PATH, help="JSON file for the rows.")
@click.option("--plot", type=PATH, callback=_read_plot, help="Picture of the ratios, .png, .svg or .pdf.")
@click.option("--from", "recorded", type=PATH, help="Show this JSON file in place of measuring.")
@click.option("--list", "list_suites", is_flag=True, help="Print the suites, or the problems of SUITE.")
@click.pass_context
def bench_command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    problem_of: ProblemOf,
    recorded: Path | None,
    list_suites: bool,
    **options: Any,
) -> None:
    """Measure a suite or shapes, and without either all problems of the bundle or those in force, against cuBLAS and
    the best cublasLt algorithm."""
    if list_suites:
        refuse(ctx, set(ctx.params) - {"targets", "list_suites"}, "with --list nothing is measured")
        for line in _read_targets(suites.listing, targets):
            click.echo(line)
        return
    from cupygemm.commands.bench_run import BenchRequest, run_bench, show_recorded

    if recorded is not None:
        refuse(ctx, set(ctx.params) - {"recorded", "plot", "list_suites"}, "with --from nothing is measured")
        show_recorded(recorded, options["plot"])
        return
    if not targets or targets[0] in suites.SUITES:
        refuse(ctx, SHAPE_OPTION_NAMES, "a suite and a bundle have their own")
    problems, facts = _read_targets(suites.select, targets, problem_of)
    options["modes"] = tuple(dict.fromkeys(options["modes"])) or DEFAULT_MODES
    run_bench(BenchRequest(problems=problems, facts=facts, command=command_line(), **options))
