"""Pictures from recorded figures: the same figures give the same file, and an .svg says which they are."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cupygemm.atomic import write_atomically
from cupygemm.errors import ConfigError, not_installed
from cupygemm.names import PLOT_SUFFIXES

# Of Okabe and Ito's palette (2008), which colour-blind readers tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#666666"
SKY = "#56B4E9"


def digest(drawn: Any) -> str:
    """Of what is drawn."""
    return f"sha256 {hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()}"


def draw(path: Path, size: tuple[float, float], drawn: Any, fill: Callable[[Any], None]) -> None:
    """Writes a picture.

    Args:
        path: ends in one of `names.PLOT_SUFFIXES`, which is the format.
        size: width and height, inches.
        drawn: the figures, as JSON has them; an .svg carries their digest.
        fill: is given the empty figure.

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
    picture = io.BytesIO()
    with rc_context({"svg.hashsalt": "cupygemm"}):
        figure = Figure(figsize=size)
        figure.set_layout_engine("constrained")
        fill(figure)
        metadata = {"Date": None, "Description": digest(drawn)} if path.suffix == ".svg" else None
        figure.savefig(picture, format=path.suffix[1:], metadata=metadata, dpi=150)
    write_atomically(path, picture.getvalue())


def plain(axes: Any, grid: str) -> None:
    """No more lines than are needed: a grid along one axis, and no frame above and to the right."""
    axes.grid(axis=grid, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
