"""How a command ends where cupygemm refuses something: with a line, and no traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import click

from cupygemm.errors import CupygemmError, not_installed
from cupygemm.names import SEARCH_PACKAGES
from cupygemm.text import one_line


@contextmanager
def in_a_line() -> Iterator[None]:
    """Turns what cupygemm raises on purpose, and what the operating system refuses, into one line.

    Raises:
        ClickException: with the line; also of a package of the search that is missing.
    """
    try:
        yield
    except (CupygemmError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        raise click.ClickException(one_line(error)) from error
    except ModuleNotFoundError as error:
        if error.name not in SEARCH_PACKAGES:
            raise
        raise click.ClickException(not_installed(error.name, "search")) from error
