"""The comparison as a picture: a panel a budget, a line a strategy, its score and the quartiles of its seeds."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupygemm.atomic import write_atomically
from cupygemm.comparison_report import strategy_name
from cupygemm.errors import ConfigError, not_installed
from cupygemm.names import PLOT_SUFFIXES

LEFT = -1.0
"""Scores below this are drawn at the edge, as an arrow: how much worse than chance does not matter then."""
CAPTION = (
    "score: 0 as good as chance, 1 the optimum; bars: quartiles over seeds\n"
    f"hollow: began with other tables' configs; arrow: below {LEFT:g}"
)
# Blue, vermilion and grey of Okabe and Ito's palette (2008), which colour-blind readers tell apart.
COLOURS = {"cupygemm": "#0072B2", "kernel_tuner": "#D55E00", "optuna": "#666666"}
SHAPES = {"cupygemm": "o", "kernel_tuner": "D", "optuna": "s"}


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Writes the picture.

    Args:
        document: of the schema `COMPARISON_SCHEMA`.
        path: ends in one of `names.PLOT_SUFFIXES`, which is the format.

    Raises:
        ConfigError: another suffix, or matplotlib is missing.
    """
    if path.suffix not in PLOT_SUFFIXES:
        raise ConfigError(f"{path}: a picture's name ends in {', '.join(PLOT_SUFFIXES)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(not_installed("matplotlib", "plot")) from error
    budgets = [str(budget) for budget in document["budgets"]]
    groups = document["groups"]
    heights = [len(group["strategies"]) for group in groups]
    picture = io.BytesIO()
    # The same figures give the same file.
    with rc_context({"svg.hashsalt": "cupygemm"}):
        figure = Figure(figsize=(2.4 + 2.6 * len(budgets), 1.4 + 0.25 * sum(heights) + 0.5 * len(groups)))
        figure.set_layout_engine("constrained")
        panels = figure.subplots(len(groups), len(budgets), sharex=True, squeeze=False, height_ratios=heights)
        for row, group in zip(panels, groups, strict=True):
            for axes, budget in zip(row, budgets, strict=True):
                _draw_panel(axes, group, budget)
            for axes in row[1:]:
                axes.set_yticklabels([])
        figure.supxlabel(CAPTION, fontsize=9)
        metadata = {"Date": None, "Description": digest(document)} if path.suffix == ".svg" else None
        figure.savefig(picture, format=path.suffix[1:], metadata=metadata, dpi=150)
    write_atomically(path, picture.getvalue())


def digest(document: Mapping[str, Any]) -> str:
    """Of what is drawn: an .svg carries it, so that one can tell which figures it is of."""
    drawn = json.dumps([document["budgets"], document["groups"]], sort_keys=True)
    return f"sha256 {hashlib.sha256(drawn.encode()).hexdigest()}"


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
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{group['name']}, {budget} evaluations", fontsize=9)
