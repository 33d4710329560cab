"""docs/environment.md names every variable that is read, and every logger."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cupygemm import settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
PACKAGE = ("cupygemm", "search")
VARIABLE = re.compile(r"\bCUPYGEMM_[A-Z][A-Z0-9_]*\b")


def sources(*folders: str) -> dict[Path, str]:
    paths = [path for folder in folders for suffix in ("py", "sh") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def listed(heading: str) -> list[str]:
    """The first column of the tables of a section."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_every_variable_has_its_row():
    found = {name for text in sources(*PACKAGE, "bench", "tests").values() for name in VARIABLE.findall(text)}
    found |= set(VARIABLE.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    assert len(found) > 5
    assert sorted(listed("Variables")) == sorted(found)


def test_variables_of_the_package_are_those_of_settings():
    read = set(re.findall(r'environ\.get\("(\w+)"\)', (ROOT / "cupygemm" / "settings.py").read_text(encoding="utf-8")))
    package, tests = PAGE.partition("## Variables\n")[2].partition("Read by the tests alone")[::2]
    assert set(VARIABLE.findall(package)) == read
    assert not set(VARIABLE.findall(tests.partition("\n## ")[0])) & read


def test_a_variable_on_the_page_is_known():
    assert set(settings.KNOWN) == set(listed("Variables"))


def logger_of(path: Path) -> str | None:
    """The logger that a module makes: its name, as logging has it."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "getLogger"]
    if not named:
        return None
    (argument,) = named[0].args
    assert isinstance(argument, ast.Name)
    assert argument.id == "__name__"
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "cupygemm" else ("cupygemm", *parts))


def test_every_logger_has_its_row():
    paths = [path for folder in PACKAGE for path in (ROOT / folder).rglob("*.py")]
    found = {logger for path in paths if (logger := logger_of(path.resolve())) is not None}
    assert len(found) > 2
    assert sorted(listed("Logs")) == sorted(found)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_is_linked(page):
    assert "docs/environment.md" in (ROOT / page).read_text(encoding="utf-8")
