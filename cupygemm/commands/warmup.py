"""`cupygemm warmup`: kernels compiled ahead."""

from __future__ import annotations

from pathlib import Path

import click

from cupygemm.commands.options import PATH


@click.command("warmup", short_help="Compile the kernels of a bundle ahead.")
@click.argument("bundle", required=False, type=PATH)
@click.option("--threads", type=click.IntRange(min=1), help="Compile so many kernels at once. Default: one a core.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def warmup_command(bundle: Path | None, threads: int | None, as_json: bool) -> None:
    """Compile ahead what a bundle has configs for, for later first calls.

    Without a BUNDLE it is what those in force have, without the shipped one if there is another. It needs no
    GPU. Where there is a Hopper GPU each kernel is loaded on it too, to see that it can be.
    """
    from cupygemm.commands.warmup_run import run_warmup

    run_warmup(bundle, threads, as_json)
