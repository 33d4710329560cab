"""Blocks of Markdown documents that a program writes: what stands between `<!-- KIND:NAME -->` and `<!-- /KIND -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cupygemm.atomic import write_atomically
from cupygemm.errors import FileError

Renderers = Mapping[str, Callable[[str], str]]
"""For each kind of block: name → Markdown, without a final newline."""

_MARKER = re.compile(r"<!-- (?:(?P<opened>[a-z]+):(?P<name>[\w -]+)|/(?P<closed>[a-z]+)) -->")


def fill(text: str, renderers: Renderers) -> str:
    """The text with every block between markers rendered anew.

    Raises:
        FileError: a marker of an unknown kind, opened twice, closed without being open, or never closed.
    """
    parts: list[str] = []
    end, kind, name = 0, None, ""
    for marker in _MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        if (marker["opened"] or marker["closed"]) not in renderers:
            raise FileError(f"line {line}: {marker[0]}: the kinds of blocks are {', '.join(renderers)}")
        if marker["closed"] != kind:
            raise FileError(f"line {line}: {marker[0]} does not follow its counterpart: markers come in pairs")
        if kind is None:
            parts.append(text[end : marker.end()])
        else:
            parts.append(f"\n{renderers[kind](name)}\n{marker[0]}")
        end, kind, name = marker.end(), marker["opened"], marker["name"]
    if kind is not None:
        raise FileError(f"{kind}:{name} is never closed: end the block with <!-- /{kind} -->")
    return "".join([*parts, text[end:]])


CURRENT, WRITTEN, STALE = "up to date", "written", "differs from what is recorded"


def update(path: Path, renderers: Renderers, write: bool) -> str:
    """Fills the blocks of a document; says `CURRENT`, `WRITTEN`, or `STALE` where it may not be changed.

    Args:
        write: whether the document may be changed.

    Raises:
        FileError: markers that make no sense.
        OSError: the document cannot be read or written.
    """
    old = path.read_text(encoding="utf-8")
    try:
        new = fill(old, renderers)
    except FileError as error:
        raise FileError(f"{path}, {error}") from error
    if old == new:
        return CURRENT
    if not write:
        return STALE
    write_atomically(path, new.encode())
    return WRITTEN


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
