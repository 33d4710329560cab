"""Whether the sub-spaces of the tables hold the best config that is known of each problem.

    python -m bench.best_known -o bench/results/best_known.json --bundle tuned.yaml

For each problem of the suites that a table could be of, in one interleaved run: what the bundle has for it (by default
the shipped one), the points of the sub-spaces that are nearest to that, and the fastest of the problem's own table or,
where it has none, of the most similar problem's. The bundle given gets the fastest, or one of a sub-space where that is
as good: then a table knows the best of each class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

from bench.grid import SEARCHED, SUITE, named
from bench.shared.command import Program, command_line
from bench.shared.relatives import distance
from bench.shared.rows import over_cublas
from bench.shared.steps import Steps
from bench.shared.timed_steps import Failures, keep, legal_steps, measured, problems_of, ready
from cupygemm.bundles.bundle import Bundle
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.names import LARGE, ROTATED, SMALL
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces.declared import SUBSPACES

SUITES_SHOWN = tuple(suite for suite in SEARCHED if suite not in (SUITE, "layouts", "tokens"))
RECORDED_SPEC = KernelSpec.of(Problem(1024, 1024, 1024))
"""Of all tables of the package."""
NEAREST, OF_TABLE = 3, 4
"""Points of the sub-spaces beside the bundle's config, and of a table."""


@click.command(cls=Program)
@click.argument("suites", nargs=-1, type=click.Choice(SUITES_SHOWN), metavar="[SUITE]...")
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the problems. Repeatable.")
@click.option("--start", type=click.Path(exists=True, path_type=Path), help="Bundle; default: the shipped one.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the best configs.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    start: Path | None,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Measures what is known best of the problems of suites, and what the tables' sub-spaces have beside it.

    Ends with status 1 where a config could not be measured.
    """
    known = shipped_bundle() if start is None else Bundle.load(start)
    problems = [each for each in problems_of(suites or SUITES_SHOWN, shapes) if KernelSpec.of(each) == RECORDED_SPEC]
    planned = {problem: candidates(problem, known) for problem in problems}
    command = command_line("bench.best_known")
    facts = provenance.collect(0, command, commit)
    failures: Failures = []
    rows: list[dict[str, Any]] = []
    with holding_gpu(0):
        compile_ahead((RECORDED_SPEC, config) for steps in planned.values() for config in steps.values())
        for problem, steps in planned.items():
            bench = Bench(problem)
            launches, errors = ready(bench, steps, False, failures)
            found = [
                {**row, "inside": steps[row["step"]] in members()}
                for row in measured(bench, steps, launches, errors, ROTATED, False)
            ]
            rows += found
            write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
            best = chosen(found)
            click.echo(f"{problem} {over_cublas(best):.3f} of cuBLAS: {best['step']}")
            if bundle_path is not None:
                _ship(bundle_path, problem, best, len(found), facts)
    if failures:
        sys.exit(1)


def candidates(problem: Problem, known: Bundle) -> Steps:
    """What is measured, by name: what is known, what is nearest to it in the sub-spaces, and the fastest of a table."""
    entry = known.entry(problem)
    config = None if entry is None else entry.config
    near = () if config is None else [config, *nearest(config)[:NEAREST]]
    return legal_steps(problem, {named(each): each for each in (*near, *of_table(problem))})


def nearest(config: KernelConfig) -> list[KernelConfig]:
    """Points of the sub-spaces with the same tiles, those first that differ from a config in the fewest fields."""
    tile = (config.block_m, config.block_n, config.swap_ab)
    alike = [each for each in members() if (each.block_m, each.block_n, each.swap_ab) == tile]
    values = config.to_dict().items()
    return sorted(alike, key=lambda each: sum(getattr(each, name) != value for name, value in values))


def of_table(problem: Problem) -> list[KernelConfig]:
    """The fastest of the problem's table, or of the most similar problem's that has one."""
    recorded = min(recorded_tables(), key=lambda each: distance(each.problem, problem))
    times = Table.read(recorded.path).times_us.items()
    return [config for _, config in sorted((us, config) for config, us in times if us is not None)[:OF_TABLE]]


@cache
def members() -> dict[KernelConfig, None]:
    """Every point of the sub-spaces that the tables are of, in their order."""
    return dict.fromkeys(each for name in (LARGE, SMALL) for each in SUBSPACES[name].configs(RECORDED_SPEC, H200))


def chosen(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest row, or the fastest one inside a sub-space if no more than the two rows' spreads is between them."""
    best = max(rows, key=over_cublas)
    return max(_as_good(rows, best), key=over_cublas, default=best)


def _as_good(rows: Sequence[dict[str, Any]], best: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in rows:
        between = row["ratio_spread"] + best["ratio_spread"]
        if row["inside"] and over_cublas(row) * (1 + between) >= over_cublas(best):
            yield row


def _ship(path: Path, problem: Problem, best: dict[str, Any], tried: int, facts: dict[str, Any]) -> None:
    entry = Bundle.load(path).entry(problem) if path.exists() else None
    if entry is None or entry.config.to_dict() != best["config"]:
        keep(path, problem, best, tried, facts, strategy="best_known", in_any_case=True)


if __name__ == "__main__":
    main()
