"""`cupygemm record`: whole sub-spaces measured, for replay."""

from __future__ import annotations

from typing import Any

import click

from cupygemm.commands.options import (
    FOLDER,
    PATH,
    STORE_HELP,
    ProblemOf,
    command_line,
    commit_option,
    gpu_option,
    shape_options,
)
from cupygemm.names import LARGE, SUBSPACES


@click.command("record")
@click.argument("shapes", metavar="MxNxK...", nargs=-1, required=True)
@shape_options
@click.option(
    "--subspace",
    type=click.Choice(SUBSPACES),
    default=LARGE,
    show_default=True,
    help="What is measured; docs/tuning.md says what each has. The package's tables are of large and small.",
)
@gpu_option
@click.option("-o", "--output", "folder", type=FOLDER, required=True, help="Folder to write the tables in.")
@commit_option
@click.option("--limit-seconds", type=click.FloatRange(min=0, min_open=True), help="Give up after this long.")
@click.option(
    "--resume", is_flag=True, help="Take what the store has of such a GPU, with such software and the same kernels."
)
@click.option("--report", type=PATH, help="JSON file for counts and rates.")
@click.option("--store", type=PATH, help=f"{STORE_HELP}.")
def record_command(shapes: tuple[str, ...], problem_of: ProblemOf, **options: Any) -> None:
    """Measure every config of a sub-space, for replaying later. Writes one table a problem, or none."""
    problems = list(dict.fromkeys(map(problem_of, shapes)))
    from cupygemm.commands.record_run import RecordRequest, run_record

    run_record(RecordRequest(problems=problems, command=command_line(), **options))
