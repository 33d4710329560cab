"""The command `cupygemm`. Exit status: 0 done, 1 could not be done (one line on standard error), 2 wrong usage,
130 interrupted before there was anything to keep.

Here is what all commands have in common: errors, signals, and the list. They are declared in `cupygemm.commands`.
"""

from __future__ import annotations

import io
import math
import signal
import sys
import time
from typing import Any

import click

from cupygemm import __version__
from cupygemm.commands.bench import bench_command
from cupygemm.commands.bundle import bundle_group
from cupygemm.commands.cache import cache_group
from cupygemm.commands.doctor import doctor_command
from cupygemm.commands.explain import explain_command
from cupygemm.commands.export import export_group
from cupygemm.commands.record import record_command
from cupygemm.commands.report import report_command
from cupygemm.commands.train import train_command
from cupygemm.commands.tune import tune_command
from cupygemm.commands.warmup import warmup_command
from cupygemm.ending import in_a_line

INTERRUPTED = 130
"""Exit status: 128 and the number of SIGINT, as shells have it."""
SAME_INTERRUPT_S = 1.0
"""Signals that follow each other faster are one interruption."""
COMMANDS = (
    bench_command,
    bundle_group,
    cache_group,
    doctor_command,
    explain_command,
    export_group,
    record_command,
    report_command,
    train_command,
    tune_command,
    warmup_command,
)


class _Main(click.Group):
    """Turns what cupygemm raises on purpose into one line and exit status 1, and SIGTERM into what Ctrl-C does."""

    def invoke(self, ctx: click.Context) -> Any:
        interrupt = _Interrupt()
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with in_a_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        finally:
            for number, handler in before.items():
                # An interrupted command is ending: what else comes for it must not change how.
                signal.signal(number, signal.SIG_IGN if interrupt.happened else handler or signal.SIG_DFL)


class _Interrupt:
    """Raises KeyboardInterrupt, once for what a person or a program meant once.

    A terminal, `timeout` and job schedulers signal a process and its group: the same wish arrives twice. A second
    exception inside the first one's clean-up would leave a lock that it was about to take back, and the search would
    end in an error in place of the best so far (H200, 2026-11: `timeout` on a search that was waiting for its child).
    """

    def __init__(self) -> None:
        self._last = -math.inf

    @property
    def happened(self) -> bool:
        """Whether a signal came."""
        return self._last > -math.inf

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if now - self._last > SAME_INTERRUPT_S:
            self._last = now
            raise KeyboardInterrupt


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cupygemm")
def main() -> None:
    """Fast matrix multiplication kernels for Hopper GPUs, tuned for your problem."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "µ" gets "?" and no traceback


for _command in COMMANDS:
    main.add_command(_command)
