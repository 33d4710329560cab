"""Makes the bundle that ships, cupygemm/bundles/h200.yaml, of bundles and recorded tables.

    python -m bench.ship large.yaml small.yaml grid.yaml --tables search/tables

Of two entries for a problem the better stays, by its speedup over cuBLAS. Of a table it is the fastest config, as
`cupygemm tune --device replay --strategy exhaustive` finds it, where no bundle has the problem: the fastest of
thousands that were timed for milliseconds, on one card, need not be so for longer or on another. What is left out is
printed with the reason: what `matmul` never asks for, what cannot run, and what is no faster than cuBLAS or was never
compared with it. Without an entry such a product is cuBLAS's in any case, and each entry costs all programs time when
the file is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench.shared.command import Program
from cupygemm.atomic import write_atomically
from cupygemm.bundles.bundle import Bundle, Entry, SearchInfo, merged_all, new_bundle
from cupygemm.bundles.bundle_check import findings
from cupygemm.kernels.kernel_source import source_digest
from cupygemm.problem import Problem
from cupygemm.search.bundle_file import BundleFile
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.target import replay_target
from cupygemm.search.tune import Budget, tune
from cupygemm.text import count
from cupygemm.views.reading import unposed_reason

SHIPPED = Path("cupygemm/bundles/h200.yaml")
STRATEGY = "exhaustive"


@click.command(cls=Program)
@click.argument("paths", metavar="BUNDLE...", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tables", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Of recorded tables.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=SHIPPED, show_default=True)
def main(paths: tuple[Path, ...], tables: Path | None, output: Path) -> None:
    """Makes the bundle that ships of BUNDLEs and tables."""
    bundles = {path: Bundle.load(path) for path in paths}
    if tables is not None:
        named = {entry.problem for bundle in bundles.values() for entry in bundle.entries}
        bundles |= bundle_of_tables(tables, named)
    if not bundles:
        raise click.UsageError("name a bundle, or a folder of tables with --tables")
    bundle, left_out = shippable(bundles)
    for line in left_out:
        click.echo(f"left out: {line}")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, bundle.to_json().encode())
    click.echo(f"{output}: {count(len(bundle.entries), 'entry', 'entries')} of {bundle.device}")


def bundle_of_tables(folder: Path, besides: Collection[Problem] = ()) -> dict[Path, Bundle]:
    """The fastest configs of a folder's recorded tables, named after it; nothing where none has another problem.

    Args:
        besides: problems whose tables are not looked at.
    """
    with TemporaryDirectory() as place:
        path = Path(place) / "tables.yaml"
        for table in recorded_tables(folder):
            if table.problem in besides:
                continue
            target = replay_target(table.problem, folder)
            strategy = make_strategy(STRATEGY, StrategyContext(target.space))
            result = tune(table.problem, target.space, strategy, target.runner, Budget(evaluations=None))
            if result.best is not None:
                info = SearchInfo(strategy=STRATEGY, evaluations=len(result.trials))
                BundleFile(path, target).add(result.best, info)
        return {folder: Bundle.load(path)} if path.exists() else {}


def shippable(bundles: Mapping[Path, Bundle]) -> tuple[Bundle, list[str]]:
    """The bundle that ships, and what is left out with the reason.

    Raises:
        BundleError: bundles of several devices.
    """
    whole = merged_all(bundles)
    kept: list[Entry] = []
    left_out = []
    for entry in sorted(whole.entries, key=lambda entry: entry.problem):
        digest = whole.source_digest_of(entry)
        reason = reason_against(whole, entry)
        if reason is None:
            kept.append(entry.model_copy(update={"provenance": {**entry.provenance, "source_digest": digest}}))
        else:
            left_out.append(f"{entry.problem}: {reason}")
    return new_bundle(whole.device, source_digest(), kept), left_out


def reason_against(bundle: Bundle, entry: Entry) -> str | None:
    """Why an entry does not ship."""
    unposed = unposed_reason(entry.problem)
    if unposed is not None:
        return unposed
    wrong = findings(bundle.model_copy(update={"entries": [entry]}))
    if wrong:
        return wrong[0]
    if entry.speedup is None:
        return "never compared with cuBLAS"
    return None if entry.speedup > 1 else f"{entry.speedup:.3f} of cuBLAS's speed"


if __name__ == "__main__":
    main()
