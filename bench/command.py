"""What all programs of this folder have in common: how they are run, and how they end."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from cupygemm.errors import CupygemmError


class Program(click.Command):
    """A program that ends with a line, not with a traceback, where cupygemm says what is wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it.

        Raises:
            ClickException: cupygemm has refused something, or found it missing.
        """
        try:
            return super().invoke(ctx)
        except CupygemmError as error:
            raise click.ClickException(str(error)) from error


def command_line(program: str) -> str:
    """The command of this process, as it can be typed again.

    Args:
        program: its module, such as "bench.host".
    """
    return shlex.join(["python", "-m", program, *sys.argv[1:]])
