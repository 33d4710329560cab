"""Carries entries over to the kernel sources at hand where these compile to the very same machine code.

    python -m bench.restamp 2ae7079 -o cupygemm/bundles/h200.yaml

An entry says with which sources it was measured, and `matmul` says so where they have changed. What leaves its kernel
as it was leaves its times, though. So the kernel is compiled from the sources of a commit and from those at hand,
and where instructions and registers are the same the entry says so: `source_digest` is of the sources at hand, and
`measured_source_digest` of those that it was measured with. It needs no GPU; NVRTC should be that of the measurements.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from bench.command import Program
from bench.ship import SHIPPED
from cupygemm.atomic import write_atomically
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.errors import FileError
from cupygemm.kernels.kernel_source import source_digest
from cupygemm.text import count

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("machine_code.py")
SOURCES = ("cupygemm", "cuda_src", "search")
MEASURED_WITH = "measured_source_digest"
"""In an entry's provenance."""

Found = dict[str, str] | None
"""Of an entry: the digests of a tree's sources and of what they compile to; None where they do not know its config."""


@click.command(cls=Program)
@click.argument("commits", metavar="COMMIT...", nargs=-1, required=True)
@click.option("--bundle", type=click.Path(path_type=Path, exists=True), default=SHIPPED, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(commits: tuple[str, ...], bundle: Path, output: Path) -> None:
    """Carries over what was measured with the sources of COMMITs, those that a bundle's entries name."""
    whole = Bundle.load(bundle)
    for commit in commits:
        outdated = [e for e in whole.entries if whole.outdated(e, source_digest(e.config)) is not None]
        alike = {entry.problem: restamped(whole, entry) for entry in compiled_alike(whole, outdated, commit)}
        whole = whole.model_copy(update={"entries": [alike.get(each.problem, each) for each in whole.entries]})
        click.echo(f"{commit}: {count(len(alike), 'entry', 'entries')} of {len(outdated)} carried over")
    write_atomically(output, whole.to_json().encode())


def compiled_alike(bundle: Bundle, entries: Sequence[Entry], commit: str) -> list[Entry]:
    """Those that were measured with the sources of a commit, from which the sources at hand make the same.

    Raises:
        FileError: git does not know the commit, or a kernel could not be compiled.
    """
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        unpack(commit, Path(folder))
        theirs, ours = pool.map(codes, (Path(folder), ROOT), (entries, entries))
    return [
        entry
        for entry, old, new in zip(entries, theirs, ours, strict=True)
        if old is not None and new is not None and same(bundle, entry, old, new)
    ]


def unpack(commit: str, folder: Path) -> None:
    """Puts the package of a commit into a folder.

    Raises:
        FileError: git does not know the commit.
    """
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit, *SOURCES], capture_output=True, check=False)
    if packed.returncode:
        raise FileError(f"{commit}: {packed.stderr.decode(errors='replace').strip()}: name a commit of this repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")


def codes(tree: Path, entries: Sequence[Entry]) -> list[Found]:
    """What the sources of a tree compile entries' kernels to.

    Raises:
        FileError: a kernel could not be compiled.
    """
    lines = "".join(json.dumps(pair_of(entry)) + "\n" for entry in entries)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, WORKER], input=lines, env=environment, cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise FileError(f"{tree}: {last[0]}: name a commit that compiles these kernels")
    return [json.loads(line) for line in done.stdout.splitlines()]


def pair_of(entry: Entry) -> dict[str, Any]:
    """What the worker is told of an entry."""
    return {"problem": entry.problem.to_dict(), "config": entry.config.to_dict()}


def same(bundle: Bundle, entry: Entry, old: dict[str, str], new: dict[str, str]) -> bool:
    """Whether an entry was measured with the older sources, and the newer ones make the same of it."""
    return old["sources"] == bundle.source_digest_of(entry) and old["code"] == new["code"]


def restamped(bundle: Bundle, entry: Entry) -> Entry:
    """The entry, said to be of the sources at hand, with those that it was measured with."""
    measured_with = entry.provenance.get(MEASURED_WITH, bundle.source_digest_of(entry))
    facts = {**entry.provenance, "source_digest": source_digest(entry.config), MEASURED_WITH: measured_with}
    return entry.model_copy(update={"provenance": facts})


if __name__ == "__main__":
    main()
