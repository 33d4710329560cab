"""Compares our strategies with other people's optimisers on recorded tables.

Writes bench/results/compare.json, and the scores on our own tables alone to search.json beside it.

    python -m bench.compare --seeds 30 -o bench/results/compare.json

Everybody searches the same points for the same times, and an evaluation is the same for all: a different legal config
that is measured. What asking again and asking for illegal configs costs is none, for anybody; how the packages are
run is in bench/comparison/. `random` is not run: its expectation is exact.

Every search that ends is noted in the first file of `--progress`, seed by seed: the same command goes on where it was
ended, and does again only what a change of the tables, of a package or of our strategies has made stale. What several
machines did is put together by naming all their files; what bench/results/searches.jsonl.gz holds is always known.
Policies that have not learnt from the family that is searched are trained first and kept in `--work`. `--tables` names
folders with tables of our own, which take the place of those of the package, or with cache files of Kernel Tuner, which
come beside them; `--strategies` and `--only` choose. What is written is of the searches that are done of what was
chosen: a strategy takes part in a group of tables with the seeds that all of its tables were searched with.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import MofNCompleteColumn
from rich.progress import Progress as RichProgress

from bench.comparison import contenders, own, picture, policies, summary
from bench.comparison.cases import RECORDED, Source, load, sources
from bench.comparison.contenders import Outcome
from bench.comparison.progress import Key, Progress
from bench.shared.command import command_line
from cupygemm.errors import CupygemmError
from cupygemm.measuring import provenance
from cupygemm.measuring.results import COMPARISON_SCHEMA, write_results

BUDGETS = (50, 150, 500)
SEEDS = 30
PROGRESS = Path("build/compare/progress.jsonl")
SEARCHES = Path(__file__).parent / "results" / "searches.jsonl.gz"
"""Searches that are published, so that nobody has to make them again."""
SCORES = "search.json"
"""What is written beside the comparison: its scores on our own tables, in a form that other programs rely on."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
"""The environment of the processes that search: a core each, and no GPU."""


class Search(NamedTuple):
    """A search to be made."""

    source: Source
    key: Key


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        for name in options.strategies:
            contenders.check(name)
        chosen = [each for each in sources(options.tables) if options.only in str(each.path)]
    except CupygemmError as error:
        parser.error(str(error))
    if not chosen:
        parser.error(f"--only {options.only}: no table has this in its path")
    if options.sources and options.processes > 0:
        parser.error("--sources: only what was searched can be written, not searched: give --processes 0")
    published = [SEARCHES] if SEARCHES.exists() else []
    try:
        progress = Progress(*options.progress, *published)
    except CupygemmError as error:
        parser.error(str(error))
    if options.processes > 0:
        os.environ.update(ONE_THREAD)
        _search(chosen, progress, options)
    document = _document(chosen, progress.done, options)
    if not document["groups"]:
        parser.exit(1, "no strategy has been run on all tables of a group yet: nothing is written\n")
    write_results(options.output, document)
    brief = summary.for_programs(document)
    if brief is not None:
        write_results(options.output.with_name(SCORES), brief)
    if options.picture is not None:
        picture.draw(document, options.picture)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", default=contenders.ALL, help=", ".join(contenders.ALL))
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help="evaluations at which to score")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tables", nargs="+", type=Path, default=[], help="folders (default: those of the package)")
    parser.add_argument("--only", default="", help="search tables only whose path contains this")
    parser.add_argument("--processes", type=int, default=2, help="0 to write what is done and search nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further search after so many")
    parser.add_argument(
        *("--progress",),
        nargs="+",
        type=Path,
        default=[PROGRESS],
        help=f"files of searches that are done; what is done now goes to the first (default: {PROGRESS}); what is "
        f"published in {SEARCHES.name} is read in any case",
    )
    parser.add_argument("--work", type=Path, default=Path("build/compare"), help="folder for policies and cache files")
    parser.add_argument("--commit", help="of the source, in place of what git says, or of --sources")
    parser.add_argument(
        "--sources",
        metavar="DIGEST",
        help="with --processes 0: write searches of ours made with other sources, by the digest in the file",
    )
    parser.add_argument("--picture", type=Path, help="draw the scores: .svg, .png or .pdf")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser


def _planned(chosen: Sequence[Source], options: argparse.Namespace) -> Iterator[Search]:
    """Seed by seed, so that what is ended early has few seeds of everything; a table at a time within."""
    last = options.first_seed + options.seeds
    for seed in range(options.first_seed, last):
        for source in chosen:
            for name in options.strategies:
                if contenders.applies(name, source.group) and seed in _seeds(name, source.group, options):
                    yield Search(source, _key(source, name, seed, options))


def _seeds(name: str, group: str, options: argparse.Namespace) -> range:
    """Those that make a difference."""
    most = contenders.different_seeds(name, group)
    return range(options.first_seed, options.first_seed + min(options.seeds, most or options.seeds))


def _key(source: Source, name: str, seed: int, options: argparse.Namespace) -> Key:
    most = contenders.different_seeds(name, source.group)
    here = contenders.version_of(name)
    version = f"cupygemm {options.sources}" if options.sources and contenders.kind(name) == "cupygemm" else here
    digest = source.digest_for(contenders.is_seeded(name))
    return Key(digest, name, seed % most if most else seed, max(options.budgets), version)


def _search(chosen: Sequence[Source], progress: Progress, options: argparse.Namespace) -> None:
    """Makes the searches that are not done, and notes each as it ends."""
    missing = [search for search in _planned(chosen, options) if search.key not in progress.done]
    until = time.monotonic() + options.seconds
    with (
        ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool,
        RichProgress(*RichProgress.get_default_columns(), MofNCompleteColumn()) as shown,
    ):
        _train(pool, shown, missing, options.work)
        task = shown.add_task("searching", total=len(missing))
        waiting = deque(missing)
        running: dict[Future[Outcome], Key] = {}
        while running or (waiting and time.monotonic() < until):
            # A few more than there are processes, so that none waits for this one.
            while waiting and len(running) < 2 * options.processes and time.monotonic() < until:
                search = waiting.popleft()
                running[pool.submit(_run, search, options.work)] = search.key
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key, error = running.pop(future), future.exception()
                if error is None:
                    progress.add(key, future.result())
                else:
                    shown.print(f"{key.strategy}, seed {key.seed}: not done: {error!r}")
                shown.advance(task)


def _train(pool: ProcessPoolExecutor, shown: RichProgress, missing: Sequence[Search], work: Path) -> None:
    """Trains the policies that searches need and that are not kept yet."""
    ours = [search for search in missing if search.source.group == RECORDED]
    needed = {(search.source.folder, own.options_of(search.key.strategy)) for search in ours}
    wanted = [
        training
        for folder, options in needed
        if options is not None
        for training in policies.trainings(folder, options)
        if not policies.path_of(training, work).exists()
    ]
    task = shown.add_task("training", total=len(wanted))
    for future in as_completed([pool.submit(policies.policy, training, work) for training in wanted]):
        future.result()
        shown.advance(task)


def _run(search: Search, work: Path) -> Outcome:
    return contenders.run(load(search.source), search.key.strategy, search.key.seed, search.key.budget, work)


def _document(chosen: Sequence[Source], done: dict[Key, Outcome], options: argparse.Namespace) -> dict[str, Any]:
    command = command_line("bench.compare")
    groups = []
    for name in dict.fromkeys(source.group for source in chosen):
        members = [source for source in chosen if source.group == name]
        able = [each for each in options.strategies if contenders.applies(each, name)]
        searches = {each: _whole(members, each, done, options) for each in able}
        lacking = [each for each, by_seed in searches.items() if not by_seed]
        if lacking:
            sys.stderr.write(f"{name}: not run on all tables yet and left out: {', '.join(lacking)}\n")
        searches = {each: by_seed for each, by_seed in searches.items() if by_seed}
        if searches:
            found = summary.group([load(member) for member in members], searches, options.budgets)
            groups.append({**found, "left_out": lacking})
    return {
        "schema": COMPARISON_SCHEMA,
        "name": options.output.stem,
        "command": command,
        "provenance": provenance.collect(None, command, options.commit),
        "packages": contenders.packages(),
        "budgets": list(options.budgets),
        "groups": groups,
    }


def _whole(
    members: Sequence[Source], name: str, done: dict[Key, Outcome], options: argparse.Namespace
) -> dict[int, dict[str, Outcome]]:
    """The searches of a strategy by seed and table, of the seeds that every table was searched with."""
    found = {}
    for seed in _seeds(name, members[0].group, options):
        keys = {load(member).name: _key(member, name, seed, options) for member in members}
        if all(key in done for key in keys.values()):
            found[seed] = {table: done[key] for table, key in keys.items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
