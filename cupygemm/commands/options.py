"""What several commands have in common: the problem, devices, files, and options that mean nothing here."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import NONE
from cupygemm.errors import ProblemError
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.settings import NO_BUNDLE

Command = Callable[..., None]
ProblemOf = Callable[[str], Problem]
"""From "MxNxK", as typed, to the problem that the options make of it; a shape that is none is wrong usage."""


class _NamedPath(click.Path):
    """A path with a name: "" would be the folder that the program runs in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty: name a file or folder", param, ctx)
        return super().convert(value, param, ctx)


PATH = _NamedPath(dir_okay=False, path_type=Path)
FOLDER = _NamedPath(file_okay=False, path_type=Path)

TABLES_HELP = "Folder of recorded tables. Default: those of the package."
L2_TERM_HELP = "What the L2 term is: compulsory over actual bytes of device memory, or the L2's hit rate."
STORE_HELP = "SQLite file that trials go to. Default: one in the user's data folder"

_SHAPE_OPTIONS = (
    click.option("--dtype", type=click.Choice(OPERAND_DTYPES), default="float16", show_default=True),
    click.option("--out-dtype", type=click.Choice(RESULT_DTYPES), help="Default: --dtype."),
    click.option("--layout", type=click.Choice(LAYOUTS), default="nn", show_default=True, help="Of A, then of B."),
    click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Matrices of a stack."),
    click.option("--epilogue", default=NONE, show_default=True, help="For example bias_n+residual+gelu."),
)
SHAPE_OPTION_NAMES = ("dtype", "out_dtype", "layout", "batch", "epilogue")
_DEVICE = re.compile(r"auto|replay|cuda(:(\d{1,4}))?")


def shape_options(command: Command) -> Command:
    """Options that say what a shape leaves open; the command gets `problem_of`, a `ProblemOf`."""

    @functools.wraps(command)
    def with_problem_of(
        *args: Any, dtype: str, out_dtype: str | None, layout: str, batch: int, epilogue: str, **rest: Any
    ) -> None:
        def problem_of(shape: str) -> Problem:
            try:
                plain = Problem.parse(shape, dtype, out_dtype, layout)
            except ProblemError as error:
                raise click.BadParameter(str(error), param_hint="MxNxK") from error
            try:
                return replace(plain, batch=batch, epilogue=epilogue)
            except ProblemError as error:
                raise click.BadParameter(str(error), param_hint="--epilogue") from error

        command(*args, problem_of=problem_of, **rest)

    for option in reversed(_SHAPE_OPTIONS):
        with_problem_of = option(with_problem_of)
    return with_problem_of


def problem_argument(command: Command) -> Command:
    """MxNxK and the options that go with it; the command gets `problem`, a `Problem`."""

    @functools.wraps(command)
    def with_problem(*args: Any, shape: str, problem_of: ProblemOf, **rest: Any) -> None:
        command(*args, problem=problem_of(shape), **rest)

    return click.argument("shape", metavar="MxNxK")(shape_options(with_problem))


def read_device(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """The index of a CUDA device, "auto" or "replay"."""
    match = _DEVICE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r}: write auto, replay, cuda or cuda:N")
    return int(match[2] or 0) if value.startswith("cuda") else value


def read_bundle(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The file of a bundle; the word for no bundle is one of the environment alone."""
    if value is not None and str(value) == NO_BUNDLE and not value.exists():
        raise click.BadParameter(
            f"there is no file {NO_BUNDLE!r}: the word stands for no bundle in CUPYGEMM_BUNDLE={NO_BUNDLE} alone"
        )
    return value


def read_gpu(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """The index of a CUDA device."""
    device = read_device(ctx, param, value) if value.startswith("cuda") else value
    if isinstance(device, str):
        raise click.BadParameter(f"{value!r}: measuring needs a GPU: write cuda or cuda:N")
    return device


gpu_option = click.option("--device", default="cuda:0", show_default=True, callback=read_gpu, help="cuda or cuda:N.")
commit_option = click.option("--commit", help="Commit to name in the provenance, in place of what git says.")


def refuse(ctx: click.Context, names: Collection[str], why: str) -> None:
    """Refuses arguments and options that were given and mean nothing here.

    Args:
        names: of parameters, as the command gets them.
        why: goes behind what was given: "--cold: this strategy takes no seeds".
    """
    given = [
        param.get_error_hint(ctx)
        for param in ctx.command.params
        if param.name in names and ctx.get_parameter_source(param.name) == ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)}: {why}")


def command_line() -> str:
    """As it was typed, for the provenance."""
    return shlex.join(["cupygemm", *sys.argv[1:]])
