"""The programs of bench/: each says how it is run, and writes into its results how it was."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench.shared.command import Program, command_line
from cupygemm.errors import LaunchError

BENCH = Path(__file__).parent.parent / "bench"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in BENCH.glob("*.py")}
PROGRAMS = sorted(name for name, text in SOURCES.items() if '__name__ == "__main__"' in text)


def test_there_are_programs() -> None:
    assert {"compare", "host", "ladder", "ship", "unseen"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_run(name: str) -> None:
    assert re.search(rf"^    python -m bench\.{name}\b", SOURCES[name], re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, text in SOURCES.items() if "ArgumentParser(" in text])
def test_help_says_how_a_program_is_run(name: str) -> None:
    # Click finds it out by itself.
    assert f'prog="python -m bench.{name}"' in SOURCES[name]


@pytest.mark.parametrize("name", [name for name, text in SOURCES.items() if name != "command"])
def test_programs_name_themselves(name: str) -> None:
    text = SOURCES[name]
    named = re.findall(r'command_line\("(.*?)"\)', text) + re.findall(r'"-m", "(bench.*?)"', text)
    assert set(named) <= {f"bench.{name}"}
    assert "sys.argv)" not in text
    assert "__file__, " not in text


def test_no_name_is_one_of_the_standard_library() -> None:
    # A program that is run by its path would have it found first.
    assert not SOURCES.keys() & (sys.stdlib_module_names | {"numpy", "cupy", "click", "jax", "optuna"})


def test_a_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/bench/host.py", "-o", "a file.json"])
    assert command_line("bench.host") == "python -m bench.host -o 'a file.json'"


def test_what_cupygemm_refuses_is_told_in_a_line() -> None:
    @click.command(cls=Program)
    def main() -> None:
        raise LaunchError("no GPU")

    result = CliRunner().invoke(main)
    assert (result.exit_code, result.stderr) == (1, "Error: no GPU\n")
    # All that are made with click are such programs.
    for name in PROGRAMS:
        assert "@click.command()" not in SOURCES[name], name


def test_all_of_them_are_run_by_their_module() -> None:
    script = (BENCH / "run_all.sh").read_text(encoding="utf-8")
    assert re.findall(r'"\$python" (?!-m )\S+', script) == []
    assert set(re.findall(r"-m bench\.(\w+)", script)) <= set(PROGRAMS)


@pytest.mark.parametrize(("name", "option", "parts"), [("correctness", "limit", 1), ("sanitizer", "limit", 3)])
def test_what_writes_at_the_end_gets_there(name: str, option: str, parts: int) -> None:
    # Two tools, and the trial that one of them sees anything, each for so long.
    script = (BENCH / "run_all.sh").read_text(encoding="utf-8")
    (found,) = re.findall(rf'timeout (\d+) "\$python" -m bench\.{name}\b.* --{option} (\d+)', script)
    assert parts * int(found[1]) < int(found[0])
