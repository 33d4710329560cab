"""Asks what a policy knows of problems unlike those it learnt from, and writes bench/results/transfer.json.

    python -m bench.transfer --seeds 3 -o bench/results/transfer.json

One family of problems at a time is left out whole, a policy is trained on the others, and its suggestions for what was
left out are looked up in the tables: beside those of a policy that only imitates, of the estimate, of both by turns,
the best configs of the nearest problems of other families, and what NVIDIA's heuristics name, where their package is
installed (bench/shared/heuristics.py). Then strategies search from the policy's suggestions.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from bench.shared.command import command_line
from bench.shared.heuristics import GPUS, Heuristics, Suggestion, nearest, unavailable, version
from cupygemm.choosing.estimate import estimated_us
from cupygemm.config import KernelConfig
from cupygemm.measuring import provenance
from cupygemm.measuring.results import TRANSFER_SCHEMA, write_results
from cupygemm.search.policy.families import family
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.policy.transfer_training import train
from cupygemm.search.policy.weights import PolicyWeights
from cupygemm.search.recordings.recorded import Recorded, recorded_tables
from cupygemm.search.recordings.scoring import expected_best, score, times_of
from cupygemm.search.recordings.table import Table
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.seeds import best_of_nearest
from cupygemm.search.strategies import MOST_STARTS, StrategyContext, make_strategy
from cupygemm.search.tune import Budget, tune

FIRST = (1, 8, 32)
"""Suggestions whose best is told."""
BUDGETS = (50, 150)
STRATEGIES = ("local", "cma", "hybrid")
"""Searched with, all from the policy's suggestions."""
RIVAL, RIVAL_AT_BEST = "nvMatmulHeuristics", "nvMatmulHeuristics at best"
"""What NVIDIA's heuristics leave open is taken by the least estimate, and by the least time that was recorded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    recorded, started = recorded_tables(options.tables), time.monotonic()
    tables = [Table.read(each.path) for each in recorded]
    absent = unavailable(table.device for table in tables)
    named = [None if absent else Heuristics(table.device).suggestions(table.problem) for table in tables]
    rows: list[dict[str, Any]] = []
    for name in track(sorted({family(table.problem) for table in tables}), "families"):
        others = [table for table in tables if family(table.problem) != name]
        imitating = train(others, TrainingOptions(updates=0), options.seed)
        policy = train(others, None, options.seed)
        known = [each for each in recorded if family(each.problem) != name]
        held = [each for each in zip(tables, named, strict=True) if family(each[0].problem) == name]
        rows += [_row(table, policy, imitating, known, suggested, options.seeds) for table, suggested in held]
    command = command_line("bench.transfer")
    document = {
        "schema": TRANSFER_SCHEMA,
        "name": options.output.stem,
        "command": command,
        "provenance": provenance.collect(None, command, options.commit),
        RIVAL: {"absent": absent} if absent else _rival(tables),
        "seed": options.seed,
        "seeds": options.seeds,
        "first": list(FIRST),
        "budgets": list(BUDGETS),
        "seconds": round(time.monotonic() - started, 1),
        "rows": rows,
    }
    write_results(options.output, document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="folder of recorded tables (default: those of the package)")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--seeds", type=int, default=3, help="searches with each strategy")
    parser.add_argument("--commit", help="of the source, in place of what git says")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser


def _rival(tables: Sequence[Table]) -> dict[str, Any]:
    """What was asked."""
    return {"version": version(), "gpus": sorted({GPUS[table.device.name] for table in tables})}


def _row(
    table: Table,
    policy: PolicyWeights,
    imitating: PolicyWeights,
    known: Sequence[Recorded],
    named: list[Suggestion] | None,
    seeds: int,
) -> dict[str, Any]:
    most = max(FIRST)
    guide = Guide(policy, table.problem, table.device, table.space)
    suggested, ranked = guide.ranked(most), _by_estimate(table)
    estimated = ranked[:most]
    by_turns = dict.fromkeys(itertools.chain.from_iterable(zip(suggested, estimated, strict=True)))
    orders = {
        "policy": suggested,
        "imitation alone": Guide(imitating, table.problem, table.device, table.space).ranked(most),
        "estimate": estimated,
        "policy and estimate by turns": list(by_turns),
        "nearest": best_of_nearest(table.problem, known),
    }
    if named is not None:
        place = {config: index for index, config in enumerate(ranked)}
        orders[RIVAL] = nearest(named, table.rows, place.__getitem__)
        orders[RIVAL_AT_BEST] = nearest(named, table.rows, lambda config: (table.times_us[config] or inf, config))
    return {
        "problem": str(table.problem),
        "family": family(table.problem),
        "named": None if named is None else len(named),
        "suggestions": {name: _found(table, order) for name, order in orders.items()},
        "strategies": {name: _searched(table, name, guide, seeds) for name in STRATEGIES},
    }


def _by_estimate(table: Table) -> list[KernelConfig]:
    """The table's configs, what is estimated to be fastest first."""
    configs = list(table.rows)
    us = estimated_us(table.problem, configs, table.device)
    return [config for _, config in sorted(zip(us, configs, strict=True))]


def _found(table: Table, order: Sequence[KernelConfig]) -> list[float]:
    """The optimum's time over the best of the first few that the table has; 0 where none of them ran."""
    times = [us or inf for us in (table.times_us[config] for config in order if config in table.rows)]
    return [round(table.optimum_us / min(times[:count], default=inf), 4) for count in FIRST]


def _searched(table: Table, name: str, guide: Guide, seeds: int) -> dict[str, list[float]]:
    """Means over seeds after each budget: fraction of the optimum's speed, score, and share that found the optimum."""
    start, budget = guide.ranked(MOST_STARTS), max(BUDGETS)
    curves = []
    for seed in range(seeds):
        strategy = make_strategy(name, StrategyContext(table.space, seed, start, guide=guide))
        result = tune(table.problem, table.space, strategy, ReplayRunner(table), Budget(budget))
        curve = [inf if trial.best_us is None else trial.best_us for trial in result.trials]
        curves.append(curve + curve[-1:] * (budget - len(curve)))
    times, best = times_of(table), table.optimum_us
    found: dict[str, list[float]] = {"fraction": [], "score": [], "optimum": []}
    for count in BUDGETS:
        us = [curve[count - 1] for curve in curves]
        expected_us = expected_best(times, count)
        found["fraction"].append(round(float(np.mean([best / each for each in us])), 4))
        found["score"].append(round(float(np.mean([score(each, expected_us, best) for each in us])), 4))
        found["optimum"].append(round(float(np.mean([each <= best for each in us])), 4))
    return found


if __name__ == "__main__":
    sys.exit(main())
