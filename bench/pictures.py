"""Draws what the searches are worth, from the recorded files:

    python -m bench.pictures --results bench/results -o docs

`strategies.svg`, of compare.json: scores over evaluations, from nothing and from what other problems taught.
`suggestions.svg`, of transfer.json: what the first suggestions reach for problems of families not learnt from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.comparison import drawing
from bench.comparison.cases import RECORDED
from bench.comparison.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from bench.comparison.summary import CHANCE
from cupygemm.errors import CupygemmError, FileError
from cupygemm.measuring.results import COMPARISON_SCHEMA, TRANSFER_SCHEMA
from cupygemm.reports.report import read_file

STRATEGIES, SUGGESTIONS = "strategies.svg", "suggestions.svg"
FIRST_POINT = 5
"""Evaluations before which no score is drawn: there all strategies that know nothing draw lots. Of both panels."""
LEAST_SCORES = {False: -1.0, True: 0.5}
"""Lower edges of the panels: of those that begin with nothing, and of the others, which are close together."""
OURS = {
    **{"hybrid": (BLUE, "-"), "local": (GREEN, "-"), "cma": (ORANGE, "-"), "ppo": (PURPLE, "-")},
    **{"policy": ("black", "-"), "cloned": ("black", "--"), "seeds": (VERMILION, "-"), "nearest": (SKY, "-")},
}
"""Colours and lines by a strategy's name, without "+"."""
OTHERS = {"kernel_tuner": ("Kernel Tuner's, each", GREY, "-"), "optuna": ("Optuna's tpe", GREY, "--")}
"""Labels, colours and lines of other packages' strategies."""
NAMED = 2
"""Of other packages' strategies, that end highest: they have their names beside them."""
WAYS = {
    "nearest": (GREY, "s", GREY),
    "nvMatmulHeuristics": (GREEN, "^", GREEN),
    "estimate": (ORANGE, "D", "white"),
    "policy": (BLUE, "o", BLUE),
}
"""Of transfer.json, as far as it has them: colour, marker and its face; the last is drawn over the others."""
LEAST_FRACTION = 0.4
CAPTION = f"fraction of the optimum's speed, at the left edge {LEAST_FRACTION} or less; vertical lines: medians"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="folder of the recorded files")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"), help="folder for the pictures")
    options = parser.parse_args(arguments)
    try:
        curves = curves_of(read_file(options.results / "compare.json", [COMPARISON_SCHEMA]))
        suggestions = suggestions_of(read_file(options.results / "transfer.json", [TRANSFER_SCHEMA]))
        draw_strategies(curves, options.output / STRATEGIES)
        draw_suggestions(suggestions, options.output / SUGGESTIONS)
    except CupygemmError as error:
        parser.error(str(error))
    return 0


def curves_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is drawn of a comparison: the curves of the strategies on our own tables.

    Raises:
        FileError: it has none.
    """
    for group in document["groups"]:
        if group["name"] == RECORDED and "points" in group:
            kept = ("package", "seeded", "seeds", "curve")
            strategies = {
                name: {field: result[field] for field in kept}
                for name, result in group["strategies"].items()
                if name != CHANCE
            }
            return {"points": group["points"], "tables": len(group["tables"]), "strategies": strategies}
    raise FileError("compare.json: no curves of the recorded tables: write it anew with bench.compare")


def suggestions_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is drawn of a transfer: for each problem what the first suggestions reach."""
    rows = sorted(document["rows"], key=lambda row: (row["family"], row["problem"]))
    ways = [way for way in WAYS if all(way in row["suggestions"] for row in rows)]
    return {
        "first": document["first"],
        "rows": [
            {"problem": row["problem"].split()[0], **{way: row["suggestions"][way] for way in ways}} for row in rows
        ],
    }


def draw_strategies(curves: Mapping[str, Any], path: Path) -> None:
    """Two panels: from nothing, and with what other problems taught.

    Raises:
        ConfigError: a suffix that is no picture's, or matplotlib is missing.
    """

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        titles = "from nothing", "with what other families of problems taught"
        for axes, seeded, title in zip(panels, LEAST_SCORES, titles, strict=True):
            _draw_curves(axes, curves, seeded)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("evaluations", fontsize=9)
        panels[0].set_ylabel("score: 0 chance, 1 the optimum", fontsize=9)

    drawing.draw(path, (9.0, 4.4), curves, fill)


def draw_suggestions(suggestions: Mapping[str, Any], path: Path) -> None:
    """A panel for each number of suggestions: a line a problem, a mark for whoever suggested; medians as lines.

    Raises:
        ConfigError: a suffix that is no picture's, or matplotlib is missing.
    """
    rows, firsts = suggestions["rows"], suggestions["first"]
    ways = [way for way in WAYS if way in rows[0]]

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(firsts), sharey=True)
        for at, (axes, first) in enumerate(zip(panels, firsts, strict=True)):
            for way in ways:
                colour, marker, face = WAYS[way]
                found = [max(row[way][at], LEAST_FRACTION) for row in rows]
                style = {"color": colour, "markerfacecolor": face, "linestyle": "none", "markersize": 4.5}
                axes.plot(found, range(len(rows)), marker, label=way, clip_on=False, **style)
                axes.axvline(median(found), color=colour, linewidth=1)
            axes.set_title(f"best of the first {first}" if first > 1 else "the first", fontsize=10)
            axes.set_xlim(LEAST_FRACTION, 1.005)
            axes.set_yticks(range(len(rows)), [row["problem"] for row in rows], fontsize=8)
            axes.set_ylim(len(rows) - 0.5, -0.5)
            drawing.plain(axes, "both")
        figure.supxlabel(CAPTION, fontsize=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ways), fontsize=9)

    drawing.draw(path, (9.0, 4.4), suggestions, fill)


def _draw_curves(axes: Any, curves: Mapping[str, Any], seeded: bool) -> None:
    points = curves["points"]
    start = next(at for at, point in enumerate(points) if point >= FIRST_POINT)
    chosen = {name: result for name, result in curves["strategies"].items() if result["seeded"] is seeded}
    others = [name for name in chosen if chosen[name]["package"] != "cupygemm"]
    highest = sorted(others, key=lambda name: -chosen[name]["curve"]["score"][-1])[:NAMED]
    axes.axhline(0.0, color="black", linewidth=1)
    labels = set()
    for name, result in sorted(chosen.items(), key=lambda each: each[1]["package"] == "cupygemm"):
        score = result["curve"]["score"]
        if result["package"] == "cupygemm":
            (colour, line), width, label = OURS.get(name.removesuffix("+"), ("black", ":")), 1.8, name
            quartiles = result["curve"]["quartiles"][start:]
            axes.fill_between(points[start:], *zip(*quartiles, strict=True), color=colour, alpha=0.12, linewidth=0)
        else:
            (label, colour, line), width = OTHERS[result["package"]], 0.9
        below = " (below)" if label == name and max(score[start:]) < LEAST_SCORES[seeded] else ""
        shown = label + below if label not in labels else None
        axes.plot(points[start:], score[start:], line, color=colour, linewidth=width, label=shown)
        labels.add(label)
        if name in highest and score[-1] > LEAST_SCORES[seeded]:
            beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
            axes.annotate(name.partition(":")[2], (points[-1], score[-1]), annotation_clip=False, **beside)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [point for point in (5, 10, 50, 150, 500) if points[start] <= point <= points[-1]])
    axes.set_xticklabels([str(tick) for tick in ticks])
    axes.tick_params(labelsize=8)
    axes.minorticks_off()
    axes.set_xlim(points[start], points[-1])
    axes.set_ylim(LEAST_SCORES[seeded], 1.02)
    drawing.plain(axes, "y")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)


if __name__ == "__main__":
    sys.exit(main())
