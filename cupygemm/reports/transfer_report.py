"""The result of bench/transfer.py as Markdown: what suggestions for problems of families not learnt from find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from cupygemm.reports.blocks import table


def parts(document: Mapping[str, Any]) -> list[str]:
    """Medians and means, a row a problem, and searches that start from the suggestions."""
    rows, firsts = document["rows"], document["first"]
    ways, at = list(rows[0]["suggestions"]), [index for index, first in enumerate(firsts) if first > 1]
    found = {way: [[row["suggestions"][way][index] for row in rows] for index in range(len(firsts))] for way in ways}
    means = [[way, *map(_middle, by_first)] for way, by_first in found.items()]
    heads = [f"best of the first {first}" if first > 1 else "the first" for first in firsts]
    each = [
        [row["problem"], row["family"], *(f"{row['suggestions'][way][index]:.3f}" for index in at for way in ways)]
        for row in rows
    ]
    names = [f"{way}, {firsts[index]}" for index in at for way in ways]
    return [
        "Fraction of the optimum's speed, median and mean over the problems:",
        table(["suggested by", *heads], means),
        *_rival(document),
        "Each problem, held out with its family:",
        table(["problem", "family", *names], each),
        "Searches that start from the policy's suggestions, mean over problems and seeds:",
        _searches(document),
    ]


def _rival(document: Mapping[str, Any]) -> list[str]:
    """What was asked of NVIDIA's heuristics, or why they are missing; nothing of files that tell nothing of them."""
    rival = document.get("nvMatmulHeuristics")
    if rival is None:
        return []
    if "absent" in rival:
        return [f"nvMatmulHeuristics is left out: {rival['absent']}."]
    named = [row["named"] for row in document["rows"]]
    asked = f"nvMatmulHeuristics {rival['version']}, asked for {', '.join(rival['gpus'])}"
    return [f"{asked}, named {min(named)} to {max(named)} different configs a problem."]


def _middle(fractions: Sequence[float]) -> str:
    return f"{median(fractions):.3f}, {fmean(fractions):.3f}"


def _searches(document: Mapping[str, Any]) -> str:
    rows, budgets = document["rows"], document["budgets"]
    header = [
        "strategy",
        *(f"{what} after {budget}" for budget in budgets for what in ("fraction", "score", "optimum")),
    ]
    cells = []
    for name in rows[0]["strategies"]:
        means = [
            fmean(row["strategies"][name][what][index] for row in rows)
            for index in range(len(budgets))
            for what in ("fraction", "score", "optimum")
        ]
        cells.append([name, *(f"{mean:.1%}" if at % 3 == 2 else f"{mean:.4f}" for at, mean in enumerate(means))])
    return table(header, cells)
