"""How a program of this folder was started, for the results that it writes."""

from __future__ import annotations

import shlex
import sys


def command_line(program: str) -> str:
    """The command of this process, as it can be typed again.

    Args:
        program: its module, such as "bench.host".
    """
    return shlex.join(["python", "-m", program, *sys.argv[1:]])
