"""The comparison as a picture: a panel a budget, a line a strategy, its score and the quartiles of its seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.comparison import drawing
from bench.comparison.drawing import BLUE, GREY, VERMILION
from cupygemm.reports.comparison_report import strategy_name

LEFT = -1.0
"""Scores below this are drawn at the edge, as an arrow: how much worse than chance does not matter then."""
CAPTION = (
    "score: 0 as good as chance, 1 the optimum; bars: quartiles over seeds\n"
    f"hollow: knows other tables; arrow: below {LEFT:g}"
)
COLOURS = {"cupygemm": BLUE, "kernel_tuner": VERMILION, "optuna": GREY}
SHAPES = {"cupygemm": "o", "kernel_tuner": "D", "optuna": "s"}


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Writes the picture.

    Args:
        document: of the schema `COMPARISON_SCHEMA`.
        path: ends in one of `names.PLOT_SUFFIXES`, which is the format.

    Raises:
        ConfigError: another suffix, or matplotlib is missing.
    """
    budgets = [str(budget) for budget in document["budgets"]]
    groups = document["groups"]
    heights = [len(group["strategies"]) for group in groups]

    def fill(figure: Any) -> None:
        panels = figure.subplots(len(groups), len(budgets), sharex=True, squeeze=False, height_ratios=heights)
        for row, group in zip(panels, groups, strict=True):
            for axes, budget in zip(row, budgets, strict=True):
                _draw_panel(axes, group, budget)
            for axes in row[1:]:
                axes.set_yticklabels([])
        figure.supxlabel(CAPTION, fontsize=9)

    size = 2.4 + 2.6 * len(budgets), 1.4 + 0.25 * sum(heights) + 0.5 * len(groups)
    drawing.draw(path, size, _drawn(document), fill)


def digest(document: Mapping[str, Any]) -> str:
    """Of what is drawn: an .svg carries it, so that one can tell which figures it is of."""
    return drawing.digest(_drawn(document))


def _drawn(document: Mapping[str, Any]) -> list[Any]:
    return [document["budgets"], document["groups"]]


def _draw_panel(axes: Any, group: Mapping[str, Any], budget: str) -> None:
    strategies = group["strategies"]
    axes.axvline(0.0, color="black", linewidth=1)
    for height, result in enumerate(strategies.values()):
        score = result["score"][budget]
        low, high = result.get("quartiles", {}).get(budget, (score, score))
        colour, outside = COLOURS[result["package"]], score < LEFT
        axes.hlines(height, max(low, LEFT), max(high, LEFT), color=colour, linewidth=2)
        shape = "<" if outside else SHAPES[result["package"]]
        face = "white" if result["seeded"] else colour
        axes.plot(max(score, LEFT), height, shape, color=colour, markerfacecolor=face, markersize=5, clip_on=False)
    axes.set_yticks(range(len(strategies)), [strategy_name(name) for name in strategies], fontsize=8)
    axes.set_ylim(len(strategies) - 0.5, -0.5)
    axes.set_xlim(LEFT, 1.02)
    drawing.plain(axes, "x")
    axes.set_title(f"{group['name']}, {budget} evaluations", fontsize=9)
