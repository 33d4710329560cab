"""How programs of this folder are run, and those made with click end."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from cupygemm.ending import in_a_line


class Program(click.Command):
    """A program that ends like cupygemm's own commands: with a line, where cupygemm refuses something."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it.

        Raises:
            ClickException: with the line.
        """
        with in_a_line():
            return super().invoke(ctx)


def command_line(program: str) -> str:
    """The command of this process, as it can be typed again.

    Args:
        program: its module, such as "bench.host".
    """
    return shlex.join(["python", "-m", program, *sys.argv[1:]])
