"""`cupygemm cache`: the compiled kernels on disk."""

from __future__ import annotations

import click

from cupygemm.text import count


@click.group("cache")
def cache_group() -> None:
    """The compiled kernels on disk."""


@cache_group.command("show", short_help="Say where compiled kernels are, and how many.")
def cache_show() -> None:
    """Print where compiled kernels are kept, how many there are and how much room they take."""
    from cupygemm.kernels.kernel_cache import folder, kernels, size_bytes

    click.echo(f"{folder()}: {count(len(kernels()), 'kernel')}, {size_bytes() / 1e6:.1f} MB")


@cache_group.command("clear", short_help="Delete all compiled kernels.")
def cache_clear() -> None:
    """Delete all compiled kernels; those that are needed again are compiled again."""
    from cupygemm.kernels.kernel_cache import clear, folder

    click.echo(f"{folder()}: {count(clear(), 'kernel')} deleted")
