"""What `cupygemm warmup` does: compile ahead, and say how it goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cupygemm.bundles.bundle import Bundle, gpu_words
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import CompileError
from cupygemm.kernels import kernel_cache
from cupygemm.problem import Problem
from cupygemm.runtime.warming import Progress, Warmup, warm_up
from cupygemm.text import count, printable

EVERY = 10
"""Of so many kernels, one is written as a line where there is no terminal."""


def run_warmup(path: Path | None, threads: int | None, as_json: bool) -> None:
    """Compiles, and says what came of it.

    Args:
        path: of the bundle; None for those in force.

    Raises:
        BundleError: the bundle cannot be read.
        CompileError: not all kernels could be compiled and loaded; those that could are in the cache.
        OSError: the cache cannot be written.
    """
    dispatcher = Dispatcher(None if path is None else {str(path): Bundle.load(path)})
    with _progress(as_json) as progress:
        done = warm_up(dispatcher, threads=threads, progress=progress)
    for line in [json.dumps(_as_dict(done))] if as_json else _lines(done):
        click.echo(line)
    for problem, reason in done.failed.items():
        click.echo(printable(f"{problem}: {' '.join(reason.split())}"), err=True)
    if done.uncopied is not None and not done.failed:
        raise CompileError(f"operands cannot be copied for TMA: {' '.join(done.uncopied.split())}")
    if done.failed:
        raise CompileError(f"no kernel for {len(done.failed)} of {count(_num_wanted(done), 'problem')}")


@contextmanager
def _progress(as_json: bool) -> Iterator[Progress]:
    """What is told of each kernel: a bar on a terminal, a line now and then elsewhere, nothing beside JSON."""
    console = Console()
    if as_json:
        yield lambda done, total: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bar(*columns, console=console) as bar:
            yield _moving(bar)
    else:
        yield _write_some


def _moving(bar: Bar) -> Callable[[int, int], None]:
    task = bar.add_task("compiling", total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _write_some(done: int, total: int) -> None:
    if done % EVERY == 0 or done == total:
        click.echo(f"{done}/{count(total, 'kernel')}")


def _lines(done: Warmup) -> Iterator[str]:
    if not done.loaded:
        yield printable(f"no Hopper GPU found: compiled for {gpu_words(done.device)}, and not loaded")
    ready = f"{len(done.ready)} of {count(_num_wanted(done), 'problem')} ready"
    others = f", {len(done.cublas)} more left to cuBLAS" if done.cublas else ""
    compiled = f"{count(done.compiled, 'kernel')} compiled, {done.cached} there before"
    yield f"{kernel_cache.folder()}: {compiled}; {ready}{others} ({done.seconds:.1f} s)"


def _num_wanted(done: Warmup) -> int:
    return len(done.ready) + len(done.failed)


def _as_dict(done: Warmup) -> dict[str, Any]:
    return {
        "device": done.device.to_dict(),
        "loaded": done.loaded,
        "folder": str(kernel_cache.folder()),
        "compiled": done.compiled,
        "cached": done.cached,
        "ready": [problem.to_dict() for problem in done.ready],
        "cublas": _with_reasons(done.cublas),
        "failed": _with_reasons(done.failed),
        "seconds": done.seconds,
        "uncopied": done.uncopied,
    }


def _with_reasons(problems: dict[Problem, str]) -> list[dict[str, Any]]:
    return [{"problem": problem.to_dict(), "reason": reason} for problem, reason in problems.items()]
