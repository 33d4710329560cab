"""Takes the guided search apart and writes bench/results/ablations.json.

    python -m bench.ablations --seeds 5 -o bench/results/ablations.json

What `cupygemm tune --strategy hybrid` does with a policy, and the same without one part at a time
(bench/comparison/ablated.py), on the recorded tables of the package; the family that is searched is held out from the
policy and from the nearest problems. Scores are those of bench/compare.py. Searches that end are noted in
`--progress`: the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import track

from bench.compare import ONE_THREAD
from bench.comparison import ablated, contenders, summary
from bench.comparison.ablated import VARIANTS
from bench.comparison.cases import RECORDED, Source, load, sources
from bench.comparison.contenders import Outcome, outcome_of
from bench.comparison.progress import Key, Progress
from bench.comparison.summary import Searches
from bench.shared.command import command_line
from cupygemm.errors import CupygemmError
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report

BUDGETS = (50, 150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        chosen = [each for each in sources(options.tables) if each.group == RECORDED]
        progress = Progress(options.progress)
    except CupygemmError as error:
        parser.error(str(error))
    os.environ.update(ONE_THREAD)
    keys = {
        (name, seed, source): _key(source, name, seed, max(options.budgets))
        for seed in range(options.seeds)
        for source in chosen
        for name in options.variants
    }
    missing = [each for each, key in keys.items() if key not in progress.done]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_run, *each, max(options.budgets), options.work): keys[each] for each in missing}
        for future in track(as_completed(running), "searching", len(running)):
            progress.add(running[future], future.result())
    searches: dict[str, dict[int, dict[str, Outcome]]] = {name: {} for name in options.variants}
    for (name, seed, source), key in keys.items():
        searches[name].setdefault(seed, {})[load(source).name] = progress.done[key]
    command = command_line("bench.ablations")
    facts = provenance.collect(None, command, options.commit)
    write_report(options.output, options.output.stem, command, facts, _summary(chosen, searches, options.budgets))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.ablations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS, metavar="VARIANT")
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help="evaluations at which to score")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", nargs="+", type=Path, default=[], help="folders (default: those of the package)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--progress", type=Path, default=Path("build/compare/ablations.jsonl"), help="file of searches that are done"
    )
    parser.add_argument("--work", type=Path, default=Path("build/compare"), help="folder for policies")
    parser.add_argument("--commit", help="of the source, in place of what git says")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser


def _key(source: Source, name: str, seed: int, evaluations: int) -> Key:
    return Key(source.digest_for(VARIANTS[name].is_seeded), name, seed, evaluations, _version())


def _run(name: str, seed: int, source: Source, evaluations: int, work: Path) -> Outcome:
    return outcome_of(lambda: ablated.run(load(source), name, seed, evaluations, work))


@cache
def _version() -> str:
    """What a search that is done is still good for."""
    here = hashlib.sha256(Path(str(ablated.__file__)).read_bytes()).hexdigest()[:12]
    return f"{contenders.version_of('hybrid')} {here}"


def _summary(chosen: Sequence[Source], searches: Searches, budgets: Sequence[int]) -> dict[str, dict[str, Any]]:
    """A row a variant: mean scores over tables and seeds with their standard errors, and how often the optimum was
    found at the end."""
    cases = [load(source) for source in chosen]
    results = summary.group(cases, searches, budgets)["strategies"]
    rows = {}
    for name, by_seed in searches.items():
        found = [
            min((us for _, us in search[case.name].improvements), default=float("inf")) <= case.optimum_us
            for search in by_seed.values()
            for case in cases
        ]
        scores = {
            column: value
            for budget in map(str, budgets)
            for column, value in (
                (f"score after {budget}", results[name]["score"][budget]),
                (f"± {budget}", results[name]["stderr"][budget]),
            )
        }
        share = round(sum(found) / len(found), 4)
        rows[name] = {**scores, f"optimum after {max(budgets)}": share, "searches": len(found)}
    return rows


if __name__ == "__main__":
    sys.exit(main())
