"""The comparison with other people's optimisers as Markdown: every strategy that took part, in the order it was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cupygemm.reports.blocks import table

MISSING = "–"
ENOUGH = 30
"""Seeds from which on scores are worth comparing."""
PACKAGES = {"kernel_tuner": "Kernel Tuner", "optuna": "Optuna"}


def parts(document: Mapping[str, Any]) -> list[str]:
    """For each group of tables: scores, then what was found on each table, from nothing and from other tables.

    Args:
        document: of `results.COMPARISON_SCHEMA`.
    """
    budgets = [str(budget) for budget in document["budgets"]]
    found = []
    for group in document["groups"]:
        found += [*_group(group, budgets), *_per_table(group, budgets[len(budgets) // 2])]
    versions = ", ".join(f"{name} {version}" for name, version in document["packages"].items())
    return [*found, f"Packages: {versions}."]


def scores(document: Mapping[str, Any]) -> list[str]:
    """The scores of the first group of tables, our own where they took part, without what was found on each.

    Args:
        document: as of `parts`.
    """
    return _group(document["groups"][0], [str(budget) for budget in document["budgets"]])


def brief(document: Mapping[str, Any]) -> str:
    """Score and standard error of every strategy.

    Args:
        document: of `results.SEARCH_SCHEMA`.
    """
    budgets = [str(budget) for budget in document["budgets"]]
    rows = [
        [
            strategy_name(name),
            *(f"{each['score'][budget]:.3f} ± {each['stderr'][budget]:.3f}" for budget in budgets),
            MISSING if each["evals_to_99_median"] is None else f"{each['evals_to_99_median']:.0f}",
        ]
        for name, each in document["strategies"].items()
    ]
    return table(["strategy", *(f"score after {budget}" for budget in budgets), "to 99%"], rows)


def _group(group: Mapping[str, Any], budgets: Sequence[str]) -> list[str]:
    points = sorted({each["points"] for each in group["tables"]})
    sizes = f"{points[0]:,}" if len(points) == 1 else f"{points[0]:,} to {points[-1]:,}"
    heading = f"**{group['name']}**: {len(group['tables'])} tables of {sizes} points."
    return [heading, _scores(group, budgets), *_warnings(group, budgets)]


def strategy_name(name: str) -> str:
    """As readers see it."""
    package, _, strategy = name.rpartition(":")
    return f"{PACKAGES.get(package, package)} {strategy}" if package else name


def _scores(group: Mapping[str, Any], budgets: Sequence[str]) -> str:
    header = [
        *("strategy", "seeds", *(f"score after {budget}" for budget in budgets)),
        *(f"to {level}%" for level in _levels(group)),
        *("measured", "seconds"),
    ]
    return table(header, [_row(name, result, group, budgets) for name, result in group["strategies"].items()])


def _levels(group: Mapping[str, Any]) -> list[str]:
    """Percent of the optimum's speed, as far as the group was asked about them."""
    return list(next(iter(group["strategies"].values()))["levels"])


def _row(name: str, result: Mapping[str, Any], group: Mapping[str, Any], budgets: Sequence[str]) -> list[str]:
    seconds = result.get("seconds")
    return [
        strategy_name(name),
        MISSING if result["seeds"] is None else str(result["seeds"]),
        *(_spread(result, budget) for budget in budgets),
        *(_level(result["levels"][level], budgets[-1]) for level in _levels(group)),
        f"{result['evaluations']:.0f}" if "evaluations" in result else MISSING,
        f"{seconds['median']:.1f}" if seconds else MISSING,
    ]


def _warnings(group: Mapping[str, Any], budgets: Sequence[str]) -> list[str]:
    """What a reader of the scores should know first."""
    seeds = [each["seeds"] for each in group["strategies"].values() if each["draws_lots"]]
    found = []
    if seeds and min(seeds) < ENOUGH:
        found.append(f"Searched with {min(seeds)} of {ENOUGH} seeds at the least: too few to rank by.")
    for name, result in group["strategies"].items():
        if result["package"] == "optuna" and result["evaluations"] < int(budgets[-1]):
            found.append(
                f"{strategy_name(name)} measured {result['evaluations']:.0f} different configs in its {budgets[-1]} "
                "trials, at the median: the others asked again for what had been measured."
            )
    if group["left_out"]:
        found.append(f"Not run on all of these tables: {', '.join(map(strategy_name, group['left_out']))}.")
    return [" ".join(found)] if found else []


def _level(level: Mapping[str, Any], most: str) -> str:
    """Evaluations until a level was reached, and over those of random search; a bound where half did not reach it."""
    if level["evaluations"] is None:
        return f"> {most}"
    return f"{level['evaluations']:.0f} ({level['over_random']:.0%})"


def _spread(result: Mapping[str, Any], budget: str) -> str:
    score = f"{result['score'][budget]:.2f}"
    if "quartiles" not in result or result["seeds"] == 1:
        return score
    low, high = result["quartiles"][budget]
    return f"{score} ({low:.2f} to {high:.2f})"


def _per_table(group: Mapping[str, Any], budget: str) -> list[str]:
    """What is found on each table: a row a table, a column a strategy, those that start elsewhere apart."""
    found = []
    for seeded, words in ((False, "from nothing"), (True, "from other tables")):
        chosen = {name: each for name, each in group["strategies"].items() if each["seeded"] is seeded}
        if not chosen:
            continue
        names = [each["name"] for each in group["tables"]]
        rows = [
            [name, *(f"{result['per_table'][name]['fraction'][budget]:.3f}" for result in chosen.values())]
            for name in names
        ]
        found.append(f"Fraction of the optimum's speed after {budget} evaluations {words}, median over seeds:")
        found.append(table(["table", *map(strategy_name, chosen)], rows))
    return found
