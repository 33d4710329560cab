"""The shipped bundle as Markdown: the blocks `bundle:summary` and `bundle:problems` of the documents.

They say with which kernel sources it was measured, and whether those are the ones at hand: a document that holds such a
block is out of date as soon as the sources change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.epilogue import NONE
from cupygemm.errors import FileError
from cupygemm.kernels.kernel_source import source_digest
from cupygemm.problem import Problem
from cupygemm.reports.blocks import table
from cupygemm.reports.report import MISSING, VERSIONS
from cupygemm.text import count


def render(name: str) -> str:
    """A block about the shipped bundle, without a final newline.

    Raises:
        FileError: an unknown name.
    """
    if name not in RENDERERS:
        raise FileError(f"bundle:{name}: there are {', '.join(f'bundle:{known}' for known in RENDERERS)}")
    return RENDERERS[name](shipped_bundle(), source_digest())


def summary(bundle: Bundle, digest: str) -> str:
    """How many problems, how much faster, and where the times are from."""
    entries = bundle.entries
    dtypes, layouts = _counted(e.problem.a_dtype for e in entries), _counted(e.problem.layout for e in entries)
    won = f"{count(len(entries), 'problem')} where cuBLAS was slower"
    lines = [
        f"{won}, on {bundle.device}: {dtypes}; layouts {layouts}",
        *(line for kind in KINDS for line in _kind_lines(kind, entries)),
        _sources(bundle, digest),
        *_origins(entries),
    ]
    return "\n".join(f"- {line}" for line in lines)


def problems(bundle: Bundle, digest: str) -> str:
    """A row an entry, and what measured them."""
    header = ["M×N×K", "dtype", "layout", "with", "cupygemm, µs", "cuBLAS, µs", "best cublasLt, µs"]
    header += ["cuBLAS / cupygemm", "cublasLt / cupygemm", "found by", "commit"]
    rows = table(header, [_row(entry) for entry in bundle.entries])
    return "\n".join([rows, "", *_commands(bundle.entries)])


KINDS: dict[str, Callable[[Problem], bool]] = {
    "products of two matrices, against cuBLAS": lambda problem: problem.batch == 1 and problem.epilogue == NONE,
    "stacks, against strided-batched cuBLAS": lambda problem: problem.batch > 1,
    "epilogues, against cuBLAS and one kernel more": lambda problem: problem.batch == 1 and problem.epilogue != NONE,
}
"""Entries whose figures belong together, since they are compared with the same."""


def _kind_lines(kind: str, entries: Sequence[Entry]) -> Iterator[str]:
    """How those of a kind compare; nothing where there are none."""
    own = [entry for entry in entries if KINDS[kind](entry.problem)]
    if own:
        yield f"{kind}: {_compared([entry.speedup for entry in own])}"
        yield f"{kind.split(',')[0]}, against the best cublasLt algorithm: {_compared(map(_over_cublaslt, own))}"


RENDERERS: dict[str, Callable[[Bundle, str], str]] = {"summary": summary, "problems": problems}


def _row(entry: Entry) -> list[str]:
    problem, measured = entry.problem, entry.measured
    out = "" if problem.out_dtype == problem.a_dtype else f" → {problem.out_dtype}"
    times = [measured.us, measured.cublas_us, measured.cublaslt_us]
    ratios = [entry.speedup, _over_cublaslt(entry)]
    stack = "" if problem.batch == 1 else f"{problem.batch} of "
    return [
        stack + problem.shape.replace("x", "×"),
        f"{problem.a_dtype}{out}",
        problem.layout,
        MISSING if problem.epilogue == NONE else problem.epilogue,
        *(MISSING if us is None else f"{us:.2f}" for us in times),
        *(MISSING if ratio is None else f"{ratio:.3f}" for ratio in ratios),
        entry.search.strategy,
        str(entry.provenance.get("commit", MISSING))[:10],
    ]


def _over_cublaslt(entry: Entry) -> float | None:
    baseline = entry.measured.cublaslt_us
    return None if baseline is None else baseline / entry.measured.us


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word} {number}" for word, number in sorted(Counter(words).items()))


def _compared(ratios: Iterable[float | None]) -> str:
    found = list(ratios)
    known = [ratio for ratio in found if ratio is not None]
    if not known:
        return "not measured"
    mean = math.exp(math.fsum(map(math.log, known)) / len(known))
    wins = sum(ratio > 1 for ratio in known)
    without = f", {len(found) - len(known)} not compared" if len(found) > len(known) else ""
    return (
        f"{wins} faster, {len(known) - wins} not{without}; {min(known):.3f} to {max(known):.3f}, geometric mean of the "
        f"ratio {mean:.3f}"
    )


def _sources(bundle: Bundle, digest: str) -> str:
    # Those of the other page that has kernels of configs count as of these, where it is as it was.
    found = Counter(
        digest
        if entry.config.cp_async_stages and bundle.outdated(entry, source_digest(entry.config)) is None
        else bundle.source_digest_of(entry)
        for entry in bundle.entries
    )
    carried = sum(
        "measured_source_digest" in entry.provenance and bundle.outdated(entry, source_digest(entry.config)) is None
        for entry in bundle.entries
    )
    same = f" or, {carried} of these, with others that compile to the same machine code" if carried else ""
    others = ", ".join(f"{number} with {other}" for other, number in sorted(found.items()) if other != digest)
    those = f"{found[digest]} of {len(bundle.entries)}"
    here = f"kernel sources of this version: {digest}; measured with them{same}: {those}"
    return f"{here}; {others}" if others else here


def _origins(entries: Sequence[Entry]) -> Iterator[str]:
    """Day, commit and versions, with the number of entries measured there."""
    found: Counter[str] = Counter()
    for entry in entries:
        facts = entry.provenance
        versions = [f"{name} {facts[key]}" for key, name in VERSIONS.items() if facts.get(key)]
        day, commit = str(facts.get("date", "undated"))[:10], str(facts.get("commit", "unnamed"))[:10]
        found[", ".join([day, f"commit {commit}", *versions])] += 1
    yield from (f"{number} of {origin}" for origin, number in sorted(found.items()))


def _commands(entries: Sequence[Entry]) -> Iterator[str]:
    found = Counter(str(entry.provenance.get("command", "unknown")) for entry in entries)
    yield from (f"- {number} by `{command}`" for command, number in sorted(found.items()))
