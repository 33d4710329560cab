"""The strategy of `cupygemm tune` where none is named, and what is shown while JAX is imported and compiles."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cupygemm import names
from cupygemm.commands import tune_view
from cupygemm.commands.tune_strategy import COMPILING, Watched, default_strategy
from cupygemm.commands.tune_view import JsonView, LiveView, PlainView
from cupygemm.search.weights import shipped_weights
from tests.commands import events

MISSING = "is not installed: install the extra `search` (pip install '.[search]' in a checkout)"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """The shipped policy, as one that has not learnt from the tables of the tests."""
    weights = shipped_weights()
    assert weights is not None
    path = tmp_path / "policy.npz"
    replace(weights, header={**weights.header, "sources": []}).write(path)
    return str(path)


@pytest.mark.parametrize("strategy", names.STRATEGIES)
def test_what_a_strategy_needs_is_what_it_imports(strategy: str) -> None:
    module = names.STRATEGIES[strategy].partition(":")[0]
    source = f"import sys, {module}; print(*(n for n in {names.SEARCH_PACKAGES} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert tuple(done.stdout.split()) == names.NEEDED.get(strategy, ())


def test_a_guided_search_is_the_default_and_else_a_population() -> None:
    pytest.importorskip("jax")
    assert default_strategy(guided=True) == ("hybrid", None)
    assert default_strategy(guided=False) == ("cma", None)


@pytest.mark.parametrize("package", names.NEEDED["hybrid"])
def test_where_a_package_is_missing_another_stands_in(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    name, said = default_strategy(guided=True)
    assert (name, said) == ("local", f"{package} {MISSING}; local searches in place of hybrid")
    name, said = default_strategy(guided=False)
    assert name == ("local" if package == "cmaes" else "cma")
    assert said == (f"cmaes {MISSING}; local searches in place of cma" if package == "cmaes" else None)


def test_a_policy_that_knows_other_problems_guides(run: Any, policy: str) -> None:
    pytest.importorskip("jax")
    result = run("--json", "--policy", policy, "--budget", "20")
    assert events(result)[-1]["strategy"] == "hybrid"
    assert result.stderr == ""
    named = events(run("--json", "--policy", policy, "--budget", "20", "--strategy", "hybrid"))
    assert [event.get("config") for event in events(result)] == [event.get("config") for event in named]


def test_without_jax_it_is_said_in_one_line_and_nothing_fails(
    run: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # type: ignore[arg-type]
    result = run("--json", "--policy", policy, "--budget", "20")
    assert events(result)[-1]["strategy"] == "local"
    assert result.stderr.splitlines() == [f"jax {MISSING}; local searches in place of hybrid"]


def test_what_the_policy_has_learnt_from_is_searched_without_it(run: Any) -> None:
    note = "no policy may guide the search, since what ships has learnt from this table: cma searches"
    result = run("--budget", "5", "--device", "replay")
    assert result.stdout.splitlines()[0] == note
    assert note not in run("--budget", "5", "--cold").stdout
    assert note not in run("--budget", "5", "--strategy", "local").stdout
    assert events(run("--json", "--budget", "5", "--cold"))[-1]["strategy"] == "cma"


def test_a_reward_wants_a_strategy_that_is_named(run: Any) -> None:
    result = run("--l2-weight", "0.1")
    assert result.exit_code == 2
    assert "--l2-weight': name a strategy that learns from a reward: ppo and hybrid do" in result.stderr


# what is shown


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_view, "SILENT_S", 0.01)


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_lines_say_once_what_takes_long(impatient: None) -> None:
    lines: list[str] = []
    view = PlainView(lines.append, 10)
    for _ in range(2):
        with view.busy("compiling"):
            until(lambda: bool(lines))
    assert lines == ["compiling"]


def test_what_is_over_soon_is_not_said() -> None:
    lines: list[str] = []
    view = PlainView(lines.append, 10)
    for _ in range(20):
        with view.busy("compiling"):
            pass
    time.sleep(tune_view.SILENT_S / 10)
    assert lines == []


def test_a_terminal_shows_it_with_a_spinner_and_then_beside_the_bar(impatient: None) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    view = LiveView(console, print, 10)
    with view.busy("importing"):
        until(lambda: "importing" in file.getvalue())
    with view.running():
        with view.busy("compiling"):
            until(lambda: "compiling" in file.getvalue())
        file.truncate(0)
    assert "compiling" not in file.getvalue()  # the bar's last state


def test_programs_are_told_nothing_of_it(impatient: None) -> None:
    lines: list[str] = []
    with JsonView(lines.append).busy("compiling"):
        time.sleep(0.05)
    assert lines == []


def test_a_strategy_is_watched_and_otherwise_the_same(impatient: None) -> None:
    class Slow:
        told: tuple[Any, ...] = ()

        def ask(self) -> list[Any]:
            until(lambda: bool(lines))
            return ["config"]

        def tell(self, *said: Any) -> None:
            self.told = said

    lines: list[str] = []
    slow = Slow()
    watched = Watched(slow, PlainView(lines.append, None))  # type: ignore[arg-type]
    assert watched.ask() == ["config"]
    watched.tell(["config"], [])  # type: ignore[list-item]
    assert (slow.told, lines) == ((["config"], []), [COMPILING])
