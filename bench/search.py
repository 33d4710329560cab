"""Compares the strategies on recorded tables and writes bench/results/search.json.

    python bench/search.py --seeds 20 -o bench/results/search.json

Every strategy runs from the same seeds on every table. A name with "+" starts from the best configs of the *other*
tables of the folder, as `cupygemm tune` does; without, it knows nothing. `random` is not run: its expectation is exact.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from cupygemm import provenance
from cupygemm.results import SEARCH_SCHEMA, write_results
from cupygemm.search.recorded import recorded_tables
from cupygemm.search.replay import ReplayRunner
from cupygemm.search.scoring import expected_best, random_curve, score, times_of
from cupygemm.search.seeds import recorded_seeds
from cupygemm.search.strategies import StrategyContext, make_strategy
from cupygemm.search.table import Table
from cupygemm.search.tune import Budget, tune

SEEDS = "seeds+"
"""The configs to start from alone, measured one after the other and then no more: what is had without any search."""
STRATEGIES = ("local", "cma", "ppo", "hybrid", SEEDS, "local+", "cma+", "ppo+", "hybrid+")
BUDGETS = (50, 150, 500)
POINTS = (1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 125, 150, 200, 250, 300, 400, 500)
"""Evaluations at which curves are kept."""
LEVELS = (98, 99)
"""Percent of the optimum's speed whose first reaching is counted."""


@dataclass(frozen=True)
class Run:
    """One search.

    Attributes:
        table: where it is recorded.
        folder: of all tables; None for those of the package.
        strategy: name, with "+" where it starts from other tables' configs.
        seed, evaluations: of the search.
    """

    table: Path
    folder: Path | None
    strategy: str
    seed: int
    evaluations: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    paths = [Path(str(table.path)) for table in recorded_tables(options.tables)]
    runs = [
        Run(path, options.tables, strategy, seed, max(options.budgets))
        for path in paths
        for strategy in options.strategies
        for seed in range(options.seeds)
    ]
    started = time.monotonic()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        curves = list(track(pool.map(_curve, runs, chunksize=4), "searching", len(runs)))
    found: dict[str, dict[Path, list[list[float]]]] = {name: {} for name in options.strategies}
    for run, curve in zip(runs, curves, strict=True):
        found[run.strategy].setdefault(run.table, []).append(curve)
    tables = {path: Table.read(path) for path in paths}
    command = shlex.join(["python", *sys.argv])
    document = {
        "schema": SEARCH_SCHEMA,
        "name": options.output.stem,
        "command": command,
        "provenance": provenance.collect(None, command, options.commit),
        "tables": [str(table.problem) for table in tables.values()],
        "budgets": list(options.budgets),
        "seeds": options.seeds,
        "seconds": round(time.monotonic() - started, 1),
        "points": [point for point in POINTS if point <= max(options.budgets)],
        "strategies": {
            "random": _random(tables, options.budgets),
            **{name: _summary(name, by_table, tables, options.budgets) for name, by_table in found.items()},
        },
    }
    write_results(options.output, document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help="evaluations at which to score")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tables", type=Path, help="folder of recorded tables (default: those of the package)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--commit", help="of the source, where there is no git history")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser


def _curve(run: Run) -> list[float]:
    """The least time after each evaluation, µs: as many entries as evaluations were allowed."""
    table = Table.read(run.table)
    start = recorded_seeds(table.problem, run.folder) if run.strategy.endswith("+") else ()
    if run.strategy == SEEDS:
        times = [table.times_us.get(config) for config in start if table.space.is_legal(config)]
        curve = list(accumulate((inf if us is None else us for us in times[: run.evaluations]), min))
    else:
        strategy = make_strategy(run.strategy.rstrip("+"), StrategyContext(table.space, run.seed, start))
        result = tune(table.problem, table.space, strategy, ReplayRunner(table), Budget(run.evaluations))
        curve = [inf if trial.best_us is None else trial.best_us for trial in result.trials]
    return curve + curve[-1:] * (run.evaluations - len(curve))


def _summary(
    name: str, curves: dict[Path, list[list[float]]], tables: dict[Path, Table], budgets: Sequence[int]
) -> dict[str, Any]:
    scores: dict[str, list[list[float]]] = {str(budget): [] for budget in budgets}
    per_table, fractions = {}, []
    for path, table in tables.items():
        times, speeds = times_of(table), table.optimum_us / np.array(curves[path])
        fractions.append(speeds)
        own = {}
        for budget in budgets:
            expected_us = expected_best(times, min(budget, len(times)))
            each = [score(curve[budget - 1], expected_us, table.optimum_us) for curve in curves[path]]
            scores[str(budget)].append(each)
            own[str(budget)] = round(float(np.mean(each)), 4)
        per_table[str(table.problem)] = {"score": own, **_levels(speeds), "curve": _points(np.median(speeds, axis=0))}
    together = np.concatenate(fractions)
    return {
        "seeded": name.endswith("+"),
        "score": {budget: round(float(np.mean(by_table)), 4) for budget, by_table in scores.items()},
        "stderr": {budget: round(_standard_error(by_table), 4) for budget, by_table in scores.items()},
        **_levels(together),
        "mean_fraction": _points(together.mean(axis=0)),
        "per_table": per_table,
    }


def _standard_error(by_table: list[list[float]]) -> float:
    """Of the mean over tables, whose difficulty is no chance: only the seeds within each are."""
    errors = [np.std(each, ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in by_table]
    return float(np.sqrt(np.sum(np.square(errors))) / len(errors))


def _random(tables: dict[Path, Table], budgets: Sequence[int]) -> dict[str, Any]:
    """Chance, exactly: by definition its score is 0."""
    counts = range(1, max(budgets) + 1)
    curves = {str(table.problem): random_curve(table, counts) for table in tables.values()}
    zero = {str(budget): 0.0 for budget in budgets}
    return {
        "seeded": False,
        "score": zero,
        "stderr": zero,
        "mean_fraction": _points(np.mean(list(curves.values()), axis=0)),
        "per_table": {problem: {"score": zero, "curve": _points(curve)} for problem, curve in curves.items()},
    }


def _levels(speeds: Any) -> dict[str, Any]:
    """Median evaluations until a level was reached, of runs (n, evaluations); null where half of them did not."""
    found = {}
    for level in LEVELS:
        reached = speeds >= level / 100
        first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf)
        median = float(np.median(first))
        found[f"evals_to_{level}_median"] = round(median) if np.isfinite(median) else None
    return found


def _points(curve: Any) -> list[float]:
    return [round(float(curve[point - 1]), 4) for point in POINTS if point <= len(curve)]


if __name__ == "__main__":
    sys.exit(main())
