"""A bundle in words for a person, and in JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap
from typing import Any

from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.config import KernelConfig
from cupygemm.text import printable

WIDTH = 100
"""Columns after which the lines of an entry are broken, between values."""


def lines(bundle: Bundle, source_digest: Callable[[KernelConfig], str]) -> Iterator[str]:
    """Where the bundle comes from, then a block an entry: its problem, what `matmul` makes of it, key=value pairs.

    Args:
        source_digest: of the sources at hand of a config's kernel.
    """
    device, tool = bundle.device, bundle.tool
    yield printable(f"{device.name}, {device.sm_count} SMs, created {bundle.created}")
    yield printable(f"cupygemm {tool.version}, kernel sources {tool.source_digest}")
    for entry in bundle.entries:
        yield ""
        yield str(entry.problem)
        if entry.is_slower:
            yield "  slower than cuBLAS, which matmul therefore runs"
        remark = bundle.remark(entry, source_digest(entry.config))
        if remark is not None:
            yield from wrap(printable(remark), WIDTH, initial_indent="  ", subsequent_indent="  ")
        for pairs in (_times(entry), _search(entry), entry.config.to_dict()):
            yield from _block(pairs)


def as_json(bundle: Bundle) -> str:
    """The whole bundle as one JSON object, with the keys of the YAML file."""
    return json.dumps(json.loads(bundle.model_dump_json(by_alias=True)), indent=2)


def _times(entry: Entry) -> dict[str, Any]:
    measured = entry.measured
    times = {name: getattr(measured, name) for name in ("us", "cublas_us", "cublaslt_us")}
    digits = {name: None if us is None else f"{us:.2f}" for name, us in times.items()}
    return {**digits, "speedup": None if measured.speedup is None else f"{measured.speedup:.3f}"}


def _search(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry.search, name) for name in ("strategy", "seed", "evaluations")}


def _block(pairs: Mapping[str, Any]) -> list[str]:
    """The pairs that are known, indented, with line breaks between pairs only."""
    text = " ".join(f"{name}={printable(str(value))}" for name, value in pairs.items() if value is not None)
    indent = "  "
    return wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
