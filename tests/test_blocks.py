"""Blocks of documents: markers, the help of commands, and what each knob is worth."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest
from click.testing import CliRunner

from cupygemm.cli import main
from cupygemm.commands import command_help
from cupygemm.errors import FileError
from cupygemm.problem import Problem
from cupygemm.reports import blocks
from cupygemm.search import knob_value
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.spaces.declared import RESTRICTIONS

RENDERERS = {"results": str.upper, "help": lambda name: f"{name}?"}


def test_fill_replaces_only_what_is_between_markers():
    text = "a\n<!-- results:one -->\nold\n<!-- /results -->\nb\n<!-- help:two words -->\n<!-- /help -->\nc\n"
    filled = blocks.fill(text, RENDERERS)
    assert filled == (
        "a\n<!-- results:one -->\nONE\n<!-- /results -->\nb\n<!-- help:two words -->\ntwo words?\n<!-- /help -->\nc\n"
    )
    assert blocks.fill(filled, RENDERERS) == filled


def test_other_comments_are_left_alone():
    assert blocks.fill("<!-- a note: nothing -->", RENDERERS) == "<!-- a note: nothing -->"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- results:a -->",
        "\n<!-- /results -->",
        "<!-- results:a --><!-- results:b --><!-- /results -->",
        "<!-- results:a --><!-- /help -->",
    ],
)
def test_unpaired_markers_are_refused(text):
    with pytest.raises(FileError, match=r"pairs|never closed"):
        blocks.fill(text, RENDERERS)


def test_an_unknown_kind_is_refused_with_its_line():
    with pytest.raises(FileError, match=r"line 3: <!-- figure:a -->: the kinds of blocks are results, help"):
        blocks.fill("\n\n<!-- figure:a -->\n<!-- /figure -->", RENDERERS)


@click.group()
def program() -> None:
    """A program."""


@program.group("box")
def box() -> None:
    """A box."""


@box.command("open")
@click.argument("path", metavar="PATH")
@click.option("--width", default=3, show_default=True, help="How far.")
@click.option("--secret", hidden=True)
def open_box(path: str, width: int, secret: str) -> None:
    """Open
    it."""


def test_help_has_usage_text_and_the_options_that_are_shown():
    text = "```text\ncupygemm box open [OPTIONS] PATH\n```\n\nOpen it.\n\n- `--width INTEGER`: How far.  [default: 3]"
    assert command_help.render(program, "box open") == text
    assert command_help.paths(program) == ["box open"]


@pytest.mark.parametrize("path", ["box close", "open", "box open more"])
def test_a_command_that_is_not_there_is_said(path):
    assert command_help.render(program, path) == command_help.NOTHING


def test_the_cost_of_a_value_is_that_of_its_best_config(toy_table):
    times = knob_value.relative_times(toy_table)
    best = min(times, key=times.__getitem__)
    assert times[best] == pytest.approx(toy_table.optimum_us / toy_table.rows[best].cublas_us)
    for value in (3, 4, 6):
        fastest = min(row.us for config, row in toy_table.rows.items() if config.stages == value and row.us)
        assert knob_value.cost(times, "stages", value) == pytest.approx(fastest / toy_table.optimum_us - 1)
    assert knob_value.cost(times, "stages", best.stages) == 0.0
    assert knob_value.cost(times, "stages", 5) is None


def test_a_faster_clock_is_no_gain(toy_table):
    """A row whose cuBLAS was faster in the same measure is not better than the others."""
    best, row = toy_table.optimum
    boosted = replace(row, us=row.us / 2, cublas_us=row.cublas_us / 2)
    table = replace(toy_table, rows={**toy_table.rows, best: boosted})
    assert knob_value.relative_times(table)[best] == pytest.approx(knob_value.relative_times(toy_table)[best])
    assert knob_value.movement(toy_table) == 0.0
    assert knob_value.movement(table) == 0.0  # one row of hundreds is outside the middle nine tenths


def test_every_value_of_every_knob_that_varies_has_a_row(tables, toy):
    rows = [line.strip("| ").split(" | ") for line in knob_value.render("knob_value", tables).splitlines()]
    shown = [(row[0], row[1]) for row in rows if row[0].startswith("`")]
    words = {False: "off", True: "on"}
    wanted = [
        (f"`{knob.name}`", words[value] if isinstance(value, bool) else str(value))
        for knob in toy.knobs
        if knob.varies
        for value in knob.values
    ]
    assert shown == wanted
    assert rows[0][2:] == ["512×512×8192", "2048×2048×4096"]


def test_each_sub_space_is_named_with_its_own_rules(tables, toy, make_table):
    other = replace(toy, name="other", restrictions=(RESTRICTIONS["pipeline depth"],))
    table = make_table(Problem(4096, 4096, 1024), other)
    named = replace(table, provenance={**table.provenance, "commit": "0123456789ab"})
    named.write(tables / file_name(named.problem, named.device))
    lines = knob_value.render("knob_value", tables).splitlines()
    (head,) = (line for line in lines if "tables of search/tables" in line)
    assert head.endswith("points: 2 of `toy`, commit unnamed; 1 of `other`, commit 0123456789.")
    assert [line.split(":")[0] for line in lines[lines.index(head) + 1 :] if line] == [
        "Beside what is illegal, tables of `toy` leave out",
        "- consumers by rows",
        "Beside what is illegal, tables of `other` leave out",
        "- pipeline depth",
    ]


def test_the_program_writes_help_and_knobs(tmp_path, tables):
    document = tmp_path / "page.md"
    document.write_text("<!-- help:cache show -->\n<!-- /help -->\n<!-- table:knob_value -->\n<!-- /table -->\n")
    done = CliRunner().invoke(main, ["report", str(document), "--results", str(tmp_path), "--tables", str(tables)])
    assert done.stdout == f"{document}: written\n"
    text = document.read_text()
    assert "cupygemm cache show" in text
    assert "| `stages` | 4 |" in text


def test_an_unknown_table_is_one_line(tmp_path, tables):
    document = tmp_path / "page.md"
    document.write_text("<!-- table:other -->\n<!-- /table -->\n")
    done = CliRunner().invoke(main, ["report", str(document), "--results", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "table:other" in done.stderr
