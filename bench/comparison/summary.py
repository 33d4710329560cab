"""What the searches of a group of tables come to: scores against chance, their spread over seeds, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.comparison import contenders
from bench.comparison.cases import RECORDED, Case
from bench.comparison.contenders import Outcome
from cupygemm.measuring.results import SEARCH_SCHEMA
from cupygemm.search.recordings.scoring import expected_best, score

Searches = Mapping[str, Mapping[int, Mapping[str, Outcome]]]
"""Strategy → seed → name of the table → search; a seed is in it only where every table of the group was searched."""
QUARTILES = (25, 75)
LEVELS = (98, 99)
"""Percent of the optimum's speed whose first reaching is compared with random search's."""
POINTS = (1, 2, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500)
"""Evaluations at which scores are kept for a curve, up to the largest budget."""
CHANCE = "random"


def group(cases: Sequence[Case], searches: Searches, budgets: Sequence[int]) -> dict[str, Any]:
    """A group of tables as the file of results has it.

    Args:
        cases: its tables.
        searches: of them.
        budgets: evaluations after which to score, ascending.
    """
    chance = {case.name: _Chance(case, budgets) for case in cases}
    of_group, points = cases[0].group, [point for point in POINTS if point <= max(budgets)]
    along = {case.name: _Chance(case, points) for case in cases}
    strategies = {
        name: {**_strategy(name, of_group, by_seed, chance, budgets), "curve": _curve(by_seed, along, points)}
        for name, by_seed in searches.items()
    }
    return {
        "name": cases[0].group,
        "points": points,
        "tables": [
            {"name": case.name, "digest": case.digest, "points": len(case.times_us), "optimum_us": case.optimum_us}
            for case in cases
        ],
        "strategies": {CHANCE: {**_random(chance, budgets), "curve": {"score": [0.0] * len(points)}}, **strategies},
    }


def for_programs(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scores on our own tables as `results.SEARCH_SCHEMA` has them; None where none of those was searched.

    Args:
        document: of `results.COMPARISON_SCHEMA`.
    """
    ours = next((each for each in document["groups"] if each["name"] == RECORDED), None)
    if ours is None:
        return None
    drawn = [each["seeds"] for each in ours["strategies"].values() if each["draws_lots"]]
    return {
        "schema": SEARCH_SCHEMA,
        "name": "search",
        "command": document["command"],
        "provenance": document["provenance"],
        "tables": [each["name"] for each in ours["tables"]],
        "budgets": document["budgets"],
        "seeds": min(drawn, default=None),
        "strategies": {
            name: {
                "seeded": each["seeded"],
                "score": each["score"],
                "stderr": each["stderr"],
                "evals_to_99_median": each["levels"]["99"]["evaluations"],
                "per_table": {table: found["score"] for table, found in each["per_table"].items()},
            }
            for name, each in ours["strategies"].items()
        },
    }


class _Chance:
    """What random search finds on a table, exactly.

    Attributes:
        optimum_us: of the table.
        expected_us: of the best of as many random points as each budget has.
        levels: evaluations after which random search has reached each of `LEVELS` in half of its searches.
        worst_us: the slowest point that runs: what is taken for found where nothing is yet.
        reached: (budget, evaluations) how likely random search is as good as `expected_us` after so many.
    """

    def __init__(self, case: Case, budgets: Sequence[int]) -> None:
        times = list(case.times_us.values())
        self.optimum_us = case.optimum_us
        self.worst_us = max(us for us in times if np.isfinite(us))
        self.expected_us = [expected_best(times, min(budget, len(times))) for budget in budgets]
        self.reached = np.array([_reached(times, us, max(budgets)) for us in self.expected_us])
        wanted_us = [case.optimum_us * 100 / level for level in LEVELS]
        self.levels = [int((_reached(times, us, len(times)) >= 0.5).argmax()) + 1 for us in wanted_us]


def _reached(times: Sequence[float], wanted_us: float, most: int) -> NDArray[np.float64]:
    """How likely one of so many random points, from 1 to `most`, takes no longer: 1 − C(N − m, n) / C(N, n)."""
    drawn = np.arange(min(most, len(times)))
    slower = len(times) - sum(us <= wanted_us for us in times)
    missed = np.cumprod(np.maximum(slower - drawn, 0) / (len(times) - drawn))
    return 1.0 - np.pad(missed, (0, most - len(missed)), mode="edge")


def _strategy(
    name: str,
    group: str,
    by_seed: Mapping[int, Mapping[str, Outcome]],
    chance: Mapping[str, _Chance],
    budgets: Sequence[int],
) -> dict[str, Any]:
    found, scores = _scored(by_seed, chance, budgets)
    ratios = [[_over_chance(search[each], chance[each], budgets) for each in chance] for search in by_seed.values()]
    outcomes = [search[each] for search in by_seed.values() for each in chance]
    seconds = [outcome.seconds for outcome in outcomes]
    return {
        "package": contenders.kind(name),
        "seeded": contenders.is_seeded(name),
        "draws_lots": contenders.different_seeds(name, group) is None,
        "seeds": len(by_seed),
        "score": _by(budgets, scores.mean(axis=(0, 1))),
        "stderr": _by(budgets, _standard_errors(scores)),
        "quartiles": _by(budgets, np.percentile(scores.mean(axis=1), QUARTILES, axis=0).T),
        "evaluations_over_random": _by(budgets, np.median(np.array(ratios), axis=(0, 1))),
        "levels": _levels(by_seed, chance),
        "evaluations": float(np.median([outcome.evaluations for outcome in outcomes])),
        "seconds": {"median": round(float(np.median(seconds)), 2), "most": round(max(seconds), 2)},
        "per_table": {
            each: {
                "score": _by(budgets, scores[:, at].mean(axis=0)),
                "fraction": _by(budgets, np.median(chance[each].optimum_us / found[:, at], axis=0)),
                "quartiles": _by(budgets, np.percentile(chance[each].optimum_us / found[:, at], QUARTILES, axis=0).T),
            }
            for at, each in enumerate(chance)
        },
    }


def _scored(
    by_seed: Mapping[int, Mapping[str, Outcome]], chance: Mapping[str, _Chance], counts: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best time, µs, and its score after so many evaluations: (seeds, tables, counts)."""
    found = np.array([[_found(search[each], chance[each], counts) for each in chance] for search in by_seed.values()])
    scores = [[_scores(us, each) for us, each in zip(row, chance.values(), strict=True)] for row in found]
    return found, np.array(scores)


def _curve(
    by_seed: Mapping[int, Mapping[str, Outcome]], chance: Mapping[str, _Chance], points: Sequence[int]
) -> dict[str, list[Any]]:
    """The score after so many evaluations: its mean over tables and seeds, and the quartiles over seeds."""
    _, scores = _scored(by_seed, chance, points)
    over_tables = scores.mean(axis=1)
    quartiles = np.percentile(over_tables, QUARTILES, axis=0).T
    return {"score": _rounded(over_tables.mean(axis=0)), "quartiles": _rounded(quartiles)}


def _random(chance: Mapping[str, _Chance], budgets: Sequence[int]) -> dict[str, Any]:
    """By definition its scores are 0. Half of its searches need less than what it needs to be as good on average."""
    likely = np.mean([each.reached for each in chance.values()], axis=0) >= 0.5
    needed = [row.argmax() + 1 if row.any() else np.inf for row in likely]
    zero = {str(budget): 0.0 for budget in budgets}
    return {
        "package": "cupygemm",
        "seeded": False,
        "draws_lots": False,
        "seeds": None,
        "score": zero,
        "stderr": zero,
        "evaluations_over_random": _by(budgets, np.array(needed) / np.array(budgets)),
        "levels": {
            str(level): {"evaluations": float(np.median(found)), "over_random": 1.0}
            for level, found in zip(LEVELS, np.transpose([each.levels for each in chance.values()]), strict=True)
        },
        "per_table": {
            name: {"score": zero, "fraction": _by(budgets, each.optimum_us / np.array(each.expected_us))}
            for name, each in chance.items()
        },
    }


def _found(outcome: Outcome, chance: _Chance, budgets: Sequence[int]) -> list[float]:
    """The best time after each budget, µs."""
    return [
        min((us for index, us in outcome.improvements if index <= budget), default=chance.worst_us)
        for budget in budgets
    ]


def _scores(found_us: Sequence[float], chance: _Chance) -> list[float]:
    return [score(us, expected, chance.optimum_us) for us, expected in zip(found_us, chance.expected_us, strict=True)]


def _over_chance(outcome: Outcome, chance: _Chance, budgets: Sequence[int]) -> list[float]:
    """Evaluations until as good as chance is on average after a budget, over that budget; infinite where never."""
    return [
        next((index / budget for index, us in outcome.improvements if us <= expected), np.inf)
        for budget, expected in zip(budgets, chance.expected_us, strict=True)
    ]


def _levels(by_seed: Mapping[int, Mapping[str, Outcome]], chance: Mapping[str, _Chance]) -> dict[str, Any]:
    """Evaluations until a level was reached, and over those that half of the random searches need: medians of all
    searches; null where half of them did not reach it."""
    found = {}
    for place, level in enumerate(LEVELS):
        pairs = []
        for search in by_seed.values():
            for table, each in chance.items():
                wanted_us = each.optimum_us * 100 / level
                needed = next((index for index, us in search[table].improvements if us <= wanted_us), np.inf)
                pairs.append((needed, needed / each.levels[place]))
        evaluations, ratio = np.median(pairs, axis=0)
        found[str(level)] = {"evaluations": _rounded(evaluations), "over_random": _rounded(ratio)}
    return found


def _standard_errors(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the mean over tables, whose difficulty is no chance: only the seeds (axis 0) within each (axis 1) are."""
    seeds, tables, budgets = scores.shape
    if seeds < 2:
        return np.zeros(budgets)
    variances = scores.var(axis=0, ddof=1) / seeds
    errors: NDArray[np.float64] = np.sqrt(variances.sum(axis=0)) / tables
    return errors


def _by(budgets: Sequence[int], values: Any) -> dict[str, Any]:
    """A value or a pair of values for each budget; null for infinity."""
    return {str(budget): _rounded(value) for budget, value in zip(budgets, values, strict=True)}


def _rounded(value: Any) -> Any:
    if np.ndim(value):
        return [_rounded(each) for each in value]
    return round(float(value), 4) if np.isfinite(value) else None
