"""The picture of recorded times: what it shows, where it cannot be made, and that nothing else needs matplotlib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cupygemm.errors import ConfigError
from cupygemm.names import PLOT_SUFFIXES
from cupygemm.problem import Problem
from cupygemm.reports import plot

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def row(ours: float | None, cublas: float | None, lt: float | None = None, **changes: Any) -> dict[str, Any]:
    times = {"cupygemm_us": ours, "cublas_us": cublas, "cublaslt_us": lt}
    return {**Problem(256, 512, 1024).to_dict(), "mode": "rotated", "pdl": False, "kernel": "own", **times, **changes}


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"name": "small", "provenance": {"device": "NVIDIA H200", "date": "2026-11-30T10:00:00Z"}, "rows": rows}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draws, and gives the figure."""
    figures: list[Any] = []
    new = plot._new_figure

    def kept(*size: float) -> Any:
        figures.append(new(*size))
        return figures[-1]

    monkeypatch.setattr(plot, "_new_figure", kept)

    def draw(*rows: dict[str, Any]) -> Any:
        plot.draw(document(*rows), tmp_path / "times.png")
        return figures[-1]

    return draw


def ratios(axes: Any) -> dict[str, list[float]]:
    return {
        line.get_label(): list(line.get_xdata()) for line in axes.get_lines() if not line.get_label().startswith("_")
    }


@pytest.mark.parametrize("suffix", PLOT_SUFFIXES)
def test_the_name_says_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"times{suffix}"
    plot.draw(document(row(10.0, 12.0, 11.0)), path)
    assert path.read_bytes().startswith(STARTS[suffix])


def test_points_are_their_time_over_ours_won_or_lost(drawn: Any) -> None:
    (axes,) = drawn(row(10.0, 12.0, 9.0), row(10.0, 5.0, m=64)).axes
    assert ratios(axes) == {"cuBLAS / cupygemm": [1.2, 0.5], "best cublasLt / cupygemm": [0.9]}
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "256×512×1024 float16 nn",
        "64×512×1024 float16 nn",
    ]
    low, high = axes.get_xlim()
    assert low < 0.5 < 1.0 < 1.2 < high
    assert 1.0 in [line.get_xdata()[0] for line in axes.get_lines() if line.get_label().startswith("_")]


def test_the_two_libraries_differ_by_more_than_colour() -> None:
    colours, shapes, offsets = zip(*plot.MARKS.values(), strict=True)
    assert len(set(colours)) == len(set(shapes)) == len(set(offsets)) == 2


def test_modes_and_dependent_launches_have_panels_of_their_own(drawn: Any) -> None:
    figure = drawn(row(10.0, 12.0), row(10.0, 11.0, mode="resident"), row(10.0, 13.0, pdl=True))
    panels = {axes.get_title(): ratios(axes)["cuBLAS / cupygemm"] for axes in figure.axes}
    assert panels == {"rotated": [1.2], "resident": [1.1], "rotated, dependent launch": [1.3]}


def test_the_title_names_device_and_date_and_cublas_rows_are_marked(drawn: Any) -> None:
    figure = drawn(row(10.0, 10.0, kernel="cublas"))
    assert figure.get_suptitle() == "small, NVIDIA H200, 2026-11-30"
    assert figure.axes[0].get_yticklabels()[0].get_text() == "256×512×1024 float16 nn (cuBLAS)"


def test_rows_without_times_are_left_out_and_nothing_at_all_is_refused(drawn: Any, tmp_path: Path) -> None:
    (axes,) = drawn(row(None, 12.0, m=64), row(10.0, 12.0)).axes
    assert len(axes.get_yticklabels()) == 1
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot.draw(document(row(None, 12.0)), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"times\.jpg: a plot file ends in \.png, \.svg, \.pdf"):
        plot.check(tmp_path / "times.jpg")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed: install the extra `plot`"):
        plot.check(tmp_path / "times.png")


def test_importing_it_does_not_load_matplotlib() -> None:
    source = "import sys, cupygemm.reports.plot, cupygemm.commands.bench_run; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
