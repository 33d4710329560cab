"""Recorded times as a picture: how many times longer the libraries take than cupygemm, a line a problem.

matplotlib is loaded at the first use: only the extra `plot` brings it, and nothing but this picture needs it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cupygemm.atomic import write_atomically
from cupygemm.errors import ConfigError, not_installed
from cupygemm.names import PLOT_SUFFIXES
from cupygemm.reports.report import BASELINES, mode_name, ratio, row_name, where_and_when

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Mark(NamedTuple):
    """How a baseline is drawn: colours that stay apart for colour-blind readers, and shapes for a grey printer."""

    colour: str
    shape: str
    offset: float


# Blue and vermilion of Okabe and Ito's palette (2008). The two stand apart from the line's middle, else one hides
# the other wherever the libraries are equally fast.
MARKS = {"cublas_us": Mark("#0072B2", "o", -0.13), "cublaslt_us": Mark("#D55E00", "D", 0.13)}
ROW_INCHES = 0.3
PANEL_INCHES = 4.2


def check(path: Path) -> None:
    """Finds out now whether `draw` will be able to.

    Raises:
        ConfigError: the file name says no format that can be written, or matplotlib is not installed.
    """
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise ConfigError(f"{path}: a plot file ends in {', '.join(PLOT_SUFFIXES)}")
    _new_figure(1, 1)


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of a file of times: a panel a mode, and in it a line a problem.

    Args:
        document: as `results.times_document` makes it.
        path: ends in one of `names.PLOT_SUFFIXES`, which is the format.

    Raises:
        ConfigError: as `check`, or there is nothing to draw.
        OSError: the file cannot be written.
    """
    check(path)
    rows = [row for row in document["rows"] if any(ratio(row, baseline) is not None for baseline in BASELINES)]
    if not rows:
        raise ConfigError(f"{path}: no row has a time of cupygemm and one of a library: there is nothing to draw")
    names = list(dict.fromkeys(map(_label, rows)))
    modes = list(dict.fromkeys(map(mode_name, rows)))
    figure = _new_figure(2.6 + PANEL_INCHES * len(modes), 1.9 + ROW_INCHES * len(names))
    panels = figure.subplots(1, len(modes), sharey=True, sharex=True, squeeze=False)[0]
    for axes, mode in zip(panels, modes, strict=True):
        axes.set_title(mode, fontsize=10)
        _draw_panel(axes, names, [row for row in rows if mode_name(row) == mode])
    _label_axes(figure, panels, names)
    figure.suptitle(_title(document), fontsize=11)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150)
    write_atomically(path, picture.getvalue())


def _new_figure(width_inches: float, height_inches: float) -> Figure:
    try:
        # Not pyplot: that picks a window system and keeps every figure.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(not_installed("matplotlib", "plot")) from error
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def _draw_panel(axes: Axes, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    axes.axvline(1.0, color="black", linewidth=1)
    for baseline, mark in MARKS.items():
        points = [(over, names.index(_label(row)) + mark.offset) for row in rows if (over := ratio(row, baseline))]
        if not points:
            continue
        ratios, heights = zip(*points, strict=True)
        axes.hlines(heights, 1.0, ratios, color=mark.colour, linewidth=1.5)
        axes.plot(
            ratios, heights, mark.shape, color=mark.colour, markersize=5, label=f"{BASELINES[baseline]} / cupygemm"
        )
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label_axes(figure: Figure, panels: Sequence[Axes], names: Sequence[str]) -> None:
    first = panels[0]
    first.set_yticks(range(len(names)), names, fontsize=9)
    first.set_ylim(len(names) - 0.5, -0.5)  # the first problem on top
    # Room on both sides of 1, so that a chart of wins alone or of losses alone still shows where the line is.
    low, high = first.get_xlim()
    first.set_xlim(min(low, 0.9), max(high, 1.1))
    for axes in panels:
        axes.set_xlabel("left of 1 cupygemm is slower, right of 1 faster", fontsize=9)
    marks = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)


def _label(row: Mapping[str, Any]) -> str:
    """The problem, marked where cupygemm left it to cuBLAS."""
    return f"{row_name(row)} (cuBLAS)" if row.get("kernel") == "cublas" else row_name(row)


def _title(document: Mapping[str, Any]) -> str:
    return ", ".join([str(document.get("name") or "times"), *where_and_when(document)])
