"""`cupygemm doctor`: what works on this machine."""

from __future__ import annotations

import click


@click.command("doctor", short_help="Say what works on this machine, and what to do.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Say what works on this machine, and what to do where something does not. Exit status 1: something is broken."""
    from cupygemm.commands.doctor_run import run_doctor

    if not run_doctor(as_json):
        ctx.exit(1)
