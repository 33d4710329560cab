"""Carries entries, or a survey, over to the kernel sources at hand where these compile to the very same machine code.

    python -m bench.restamp 2ae7079 -o cupygemm/bundles/h200.yaml
    python -m bench.restamp 2ae7079 --survey bench/results/survey.jsonl -o bench/results/survey.jsonl

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from bench.shared.command import Program
from bench.ship import SHIPPED
from cupygemm.atomic import write_atomically
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.choosing.forecast import SURVEYED_WITH
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import FileError
from cupygemm.kernels.kernel_source import cp_async_source_digest, source_digest
from cupygemm.measurement import Status
from cupygemm.problem import Problem
from cupygemm.text import count

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("machine_code.py")
SOURCES = ("cupygemm", "cuda_src", "search")
MEASURED_WITH = "measured_source_digest"
"""In an entry's provenance."""

Code = dict[str, str]
"""Of a kernel: the digests of a tree's sources and of what they compile to."""
Found = Code | None
"""None where they do not know the config."""


class Pair(NamedTuple):
    """A kernel: what is compiled of a config for a problem."""

    problem: Problem
    config: KernelConfig


@click.command(cls=Program)
@click.argument("commits", metavar="COMMIT...", nargs=-1, required=True)
@click.option("--bundle", type=click.Path(path_type=Path, exists=True), default=SHIPPED, show_default=True)
@click.option("--survey", type=click.Path(path_type=Path, exists=True), help="A survey, in place of a bundle.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(commits: tuple[str, ...], bundle: Path, survey: Path | None, output: Path) -> None:
    """Carries over what was measured with the sources of COMMITs, those that a bundle's entries or a survey name."""
    if survey is not None:
        restamp_survey(survey, commits, output)
        return
    whole = Bundle.load(bundle)
    for commit in commits:
        outdated = [e for e in whole.entries if whole.outdated(e, source_digest(e.config)) is not None]
        pairs = [Pair(entry.problem, entry.config) for entry in outdated]
        alike = {
            entry.problem: restamped(whole, entry)
            for entry, (old, new) in zip(outdated, compiled(pairs, commit), strict=True)
            if old is not None and old["sources"] == whole.source_digest_of(entry) and old["code"] == new["code"]
        }
        whole = whole.model_copy(update={"entries": [alike.get(each.problem, each) for each in whole.entries]})
        click.echo(f"{commit}: {count(len(alike), 'entry', 'entries')} of {len(outdated)} carried over")
    write_atomically(output, whole.to_json().encode())


def restamp_survey(path: Path, commits: Sequence[str], output: Path) -> None:
    """Carries a survey over, where all kernels that ran in it are the same; a line of it names the sources for all.

    Raises:
        FileError: it is no survey, of none of the commits, or one of its kernels is another now.
    """
    text = path.read_text(encoding="utf-8")
    first, rest = text.split("\n", 1)
    head = json.loads(first)
    facts = head["provenance"]
    pairs = list(kernels_of(head["fields"], [json.loads(line) for line in rest.splitlines()]))
    for commit in commits:
        found = compiled(pairs, commit)
        theirs = {name: {old["sources"] for old, _ in of_page} for name, of_page in by_page(pairs, found).items()}
        if theirs != {name: {facts[name]} for name in theirs}:
            click.echo(f"{commit}: surveyed with other sources")
            continue
        others = sum(old is None or old["code"] != new["code"] for old, new in found)
        if others:
            raise FileError(f"{path}: {others} of {count(len(pairs), 'kernel')} are others now: survey anew")
        digests = dict(zip(SURVEYED_WITH, (source_digest(), cp_async_source_digest()), strict=True))
        measured = {f"measured_{name}": facts.get(f"measured_{name}", facts[name]) for name in digests}
        line = json.dumps({**head, "provenance": {**facts, **digests, **measured}}, allow_nan=False)
        write_atomically(output, f"{line}\n{rest}".encode())
        click.echo(f"{commit}: {count(len(pairs), 'kernel')} are the same")
        return
    raise FileError(f"{path}: surveyed with the sources of none of {', '.join(commits)}")


def kernels_of(names: Sequence[str], lines: Sequence[dict[str, Any]]) -> Iterator[Pair]:
    """Each kernel that ran in a survey once, with a problem that it ran for."""
    seen = set()
    for line in lines:
        problem = Problem.from_dict(line["problem"])
        for row in line["rows"]:
            config = KernelConfig.from_ints(names, row["config"])
            kernel = KernelSpec.of(problem), tuple(config.compiled().values())
            if row["status"] == Status.OK and kernel not in seen:
                seen.add(kernel)
                yield Pair(problem, config)


def by_page(pairs: Sequence[Pair], found: Sequence[tuple[Found, Code]]) -> dict[str, list[tuple[Code, Code]]]:
    """What is known to both trees, by the name of its page's digest in a provenance."""
    pages: dict[str, list[tuple[Code, Code]]] = {}
    for pair, (old, new) in zip(pairs, found, strict=True):
        if old is not None:
            pages.setdefault(SURVEYED_WITH[pair.config.cp_async_stages > 0], []).append((old, new))
    return pages


def compiled(pairs: Sequence[Pair], commit: str) -> list[tuple[Found, Code]]:
    """What the sources of a commit make of each pair, and those at hand.

    Raises:
        FileError: git does not know the commit, or a kernel could not be compiled.
    """
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        unpack(commit, Path(folder))
        theirs, ours = pool.map(codes, (Path(folder), ROOT), (pairs, pairs))
    return [(old, new) for old, new in zip(theirs, ours, strict=True) if new is not None]


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


def codes(tree: Path, pairs: Sequence[Pair]) -> list[Found]:
    """What the sources of a tree compile kernels to.

    Raises:
        FileError: a kernel could not be compiled.
    """
    told = ({"problem": pair.problem.to_dict(), "config": pair.config.to_dict()} for pair in pairs)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, WORKER],
        input="".join(json.dumps(each) + "\n" for each in told),
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise FileError(f"{tree}: {last[0]}: name a commit that compiles these kernels")
    return [json.loads(line) for line in done.stdout.splitlines()]


def restamped(bundle: Bundle, entry: Entry) -> Entry:
    """The entry, said to be of the sources at hand, with those that it was measured with."""
    measured_with = entry.provenance.get(MEASURED_WITH, bundle.source_digest_of(entry))
    facts = {**entry.provenance, "source_digest": source_digest(entry.config), MEASURED_WITH: measured_with}
    return entry.model_copy(update={"provenance": facts})


if __name__ == "__main__":
    main()
