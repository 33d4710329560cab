"""`cupygemm report`: the blocks of documents that a program writes."""

from __future__ import annotations

from pathlib import Path

import click

from cupygemm.commands import command_help
from cupygemm.commands.options import FOLDER, PATH, TABLES_HELP
from cupygemm.errors import FileError


@click.command("report")
@click.argument("documents", nargs=-1, type=PATH)
@click.option("--results", type=FOLDER, default="bench/results", show_default=True, help="Folder of recorded results.")
@click.option("--tables", type=FOLDER, help=TABLES_HELP)
@click.option("--write/--check", default=True, help="Write the documents, or fail if a block of one is out of date.")
@click.pass_context
def report_command(
    ctx: click.Context, /, documents: tuple[Path, ...], results: Path, tables: Path | None, write: bool
) -> None:
    """Write the generated blocks of Markdown DOCUMENTS anew. Without any: README.md, CONTRIBUTING.md and docs/*.md."""
    from cupygemm.reports import blocks, bundle_report, report
    from cupygemm.search import knob_value

    program, recorded = ctx.find_root().command, report.read_results(results)
    renderers = {
        "results": lambda name: report.render(recorded.get(name)),
        "scores": lambda name: report.render_scores(recorded.get(name)),
        "help": lambda name: command_help.render(program, name),
        "table": lambda name: knob_value.render(name, tables),
        "bundle": bundle_report.render,
    }
    stale = []
    for path in documents or report.documents():
        state = blocks.update(path, renderers, write)
        click.echo(f"{path}: {state}")
        if state == blocks.STALE:
            stale.append(str(path))
    if stale:
        raise FileError(f"{len(stale)} out of date: run `cupygemm report {' '.join(stale)}`")
