"""`cupygemm bench` where nothing is measured: the list of suites, recorded files shown again, and tables of rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cupygemm.commands import bench_view
from cupygemm.measuring.suites import SUITES
from tests.bench_calls import bench, read

ROOT = Path(__file__).parent.parent


def test_the_list_names_every_suite() -> None:
    lines = bench("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SUITES)


@pytest.mark.parametrize("option", [("--dtype", "bfloat16"), ("--plot", "some.png"), ("--bundle", "some.yaml")])
def test_beside_the_list_what_measures_is_refused(option: tuple[str, str]) -> None:
    result = bench("--list", "headline", *option)
    assert result.exit_code == 2
    assert f"'{option[0]}': with --list nothing is measured" in result.stderr


def test_a_recorded_file_is_shown_and_drawn_without_a_gpu(tmp_path: Path) -> None:
    recorded = ROOT / "bench" / "results" / "headline.json"
    result = bench("--from", recorded, "--plot", tmp_path / "headline.png")
    assert result.exit_code == 0, result.output
    num_rows = len(read(recorded)["rows"])
    assert result.stdout.count(" µs, ") == num_rows
    assert f"{num_rows}/{num_rows} " in result.stdout
    assert (tmp_path / "headline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not JSON"),
        ('{"schema": "cupygemm.report/1"}', "legal values are cupygemm.results/1"),
        ('{"schema": "cupygemm.results/1", "provenance": {}}', "rows: a list"),
        ('{"schema": "cupygemm.results/1", "rows": []}', "provenance"),
        ('{"schema": "cupygemm.results/1", "provenance": {}, "rows": [{"m": 1}]}', r"rows[0]: missing n, k"),
    ],
)
def test_what_is_no_file_of_times_is_one_line(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    result = bench("--from", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert what in result.stderr
    assert len(result.stderr.splitlines()) == 1


def shown(rows: list[dict[str, Any]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(bench_view.table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_rows_with_dependent_launch_are_marked_and_counted_apart() -> None:
    rows = read(ROOT / "bench" / "results" / "headline.json")["rows"][:1]
    both = [*rows, {**rows[0], "pdl": True}]
    assert shown(both, 150).count("dependent launch") == 1
    lines = bench_view.summary({"rows": both, "provenance": {}})
    assert [line.split(";")[0] for line in lines[:2]] == ["rotated, 1 row", "rotated, dependent launch, 1 row"]


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    rows = read(ROOT / "bench" / "results" / "headline.json")["rows"]
    text = shown(rows, 80)
    assert "…" not in text
    assert text.count("%") == len(rows)


def test_on_a_terminal_the_whole_table_stays() -> None:
    rows = read(ROOT / "bench" / "results" / "headline.json")["rows"]
    console = Console(file=io.StringIO(), width=120, height=12, force_terminal=True, color_system=None)
    written: list[str] = []
    view = bench_view.TableView(console, written.append, len(rows))
    with view.running():
        for row in rows:
            view.add(row)
    before = len(console.file.getvalue())  # type: ignore[attr-defined]
    view.end({"rows": rows, "provenance": {}})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{len(rows)} of {len(rows)} rows" in text[:before]
    assert text[before:].count("%") == len(rows)
    assert written[0].startswith("rotated, ")
