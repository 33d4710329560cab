"""`cupygemm export`: recorded tables for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from cupygemm.commands.options import FOLDER, PATH, SHAPE_OPTION_NAMES, TABLES_HELP, ProblemOf, refuse, shape_options
from cupygemm.errors import FileError
from cupygemm.names import TABLE_SUFFIX
from cupygemm.text import count


@click.group("export")
def export_group() -> None:
    """Write recorded tables for other programs."""


@export_group.command("kernel-tuner", short_help="A recorded table as a cache file.")
@click.argument("table", metavar="TABLE | MxNxK")
@shape_options
@click.option("--tables", type=FOLDER, help=TABLES_HELP)
@click.option("-o", "--output", type=PATH, required=True, help="Cache file to write; its name must end in .json.")
@click.pass_context
def export_kernel_tuner(
    ctx: click.Context, /, table: str, problem_of: ProblemOf, tables: Path | None, output: Path
) -> None:
    """Write a recorded table as a cache file of Kernel Tuner, for its simulation mode."""
    if output.suffix != ".json":
        raise click.BadParameter(f"{output}: Kernel Tuner reads names that end in .json", param_hint="--output")
    path = Path(table)
    problem = None if path.name.endswith(TABLE_SUFFIX) else problem_of(table)
    if problem is None:
        refuse(ctx, {*SHAPE_OPTION_NAMES, "tables"}, "the file says of which problem it is")
        if not path.exists():
            raise FileError(
                f"{path}: no such file; `cupygemm record` writes tables, and the package's go by their MxNxK"
            )
    from cupygemm.search.recordings.kernel_tuner_export import export
    from cupygemm.search.recordings.recorded import find_table
    from cupygemm.search.recordings.table import Table

    found = Table.read(path) if problem is None else find_table(problem, tables)
    export(found, output)
    click.echo(f"{output}: {count(len(found.rows), 'point')}, best {found.optimum_us:.2f} µs")
