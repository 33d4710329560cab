"""Chooses the kernels that problems without a record are computed with: bench/portfolio.json.

    python -m bench.portfolio -o bench/portfolio.json

What the shipped bundle has for several problems is in it. Each further kernel is the one that adds most to what the
best of those before come to on: the recorded tables, by their times; the problems of the shipped bundle, whose best
config is known, and shapes to learn from (shared/shapes.py), by the estimate. It needs no GPU, and the same files
always give the same choice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.learning.portfolio import choose, compiled, estimated_scores, kernels, recorded_scores, untried_kernels
from bench.shared.command import Program, command_line
from bench.shared.shapes import posed, training
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.epilogue import NONE
from cupygemm.errors import FileError
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_results
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table

SCHEMA = "cupygemm.portfolio/1"
PORTFOLIO = Path(__file__).with_name("portfolio.json")
SHAPES = 300
"""To learn from that are estimated."""
MOST, LEAST_GAIN = 48, 0.00005
PROVEN = 2
"""Problems of the shipped bundle that share a kernel which is in the portfolio for that."""
WEIGHTS = {"recorded": 4.0, "shipped": 1.0, "estimated": 1.0}
"""Of a problem of each kind."""


@click.command(cls=Program)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(commit: str | None, output: Path) -> None:
    """Chooses the portfolio and writes it."""
    tables = [Table.read(each.path) for each in recorded_tables()]
    entries = [e for e in shipped_bundle().entries if e.problem.batch == 1 and e.problem.epilogue == NONE]
    shapes = [found for problem in training(SHAPES) if isinstance(found := posed(problem), Problem)]
    pool = pool_of((entry.config for entry in entries), tables)
    scores = {
        "recorded": [recorded_scores(table, pool) for table in tables],
        "shipped": [estimated_scores(entry.problem, H200, pool, entry.config) for entry in entries],
        "estimated": [estimated_scores(problem, H200, pool) for problem in shapes],
    }
    weights = np.array([WEIGHTS[kind] for kind, rows in scores.items() for _ in rows])
    uses = Counter(compiled(entry.config) for entry in entries)
    proven = [index for index, kernel in enumerate(pool) if uses[compiled(kernel)] >= PROVEN]
    chosen = choose(np.array([row for rows in scores.values() for row in rows]), weights, MOST, LEAST_GAIN, proven)
    command = command_line("bench.portfolio")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "provenance": provenance.collect(None, command, commit),
        "pool": len(pool),
        "reached": [round(mean, 5) for _, mean in chosen],
        "kernels": [pool[index].to_dict() for index, _ in chosen],
    }
    write_results(output, document)
    for index, mean in chosen:
        click.echo(f"{mean:.4f} {_named(pool[index])}")


def pool_of(shipped: Iterable[KernelConfig], tables: Sequence[Table]) -> list[KernelConfig]:
    """The kernels to choose from: those that ship, those of all tables whatever their sub-spaces, untried ones."""
    # The estimate knows nothing of first stages that are copied: where no table has its time, such a kernel would be
    # taken for the one that copies none.
    recorded = (config for table in tables for config in table.rows if not config.cp_async_stages)
    return kernels([*shipped, *recorded, *untried_kernels()])


def read_kernels(path: Path = PORTFOLIO) -> list[KernelConfig]:
    """The kernels of a portfolio, the most useful first.

    Raises:
        FileError: it cannot be read, or is no portfolio.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise FileError(f"{path}: schema is {document['schema']!r}: legal is {SCHEMA}")
        return [KernelConfig.from_dict(kernel) for kernel in document["kernels"]]
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: no portfolio: {error}") from error


def _named(c: KernelConfig) -> str:
    how = f"{c.consumers} consumers{' by turns' if c.ping_pong else ''}, {c.store_stages} buffers"
    first = f", {c.cp_async_stages} copied" * (c.cp_async_stages > 0) + ", A and B swapped" * c.swap_ab
    tile = f"{c.block_m}x{c.block_n}x{c.block_k}, {c.stages} stages, {c.cluster_m}x{c.cluster_n}x{c.cluster_k}"
    return f"{tile}, {how}{first}"


if __name__ == "__main__":
    main()
