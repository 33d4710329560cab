"""The strategy of `cupygemm tune` where none is named, and what is shown while JAX is imported and compiles."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from cupygemm import names
from cupygemm.commands import tune_view
from cupygemm.commands.tune_strategy import COMPILING, Guidance, Watched, choose_strategy
from cupygemm.commands.tune_view import JsonView, LiveView, PlainView
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.weights import shipped_weights
from tests.commands import events

LEARNT = (
    "the shipped policy was trained on this very table, so it does not guide; "
    "cupygemm train --without square -o policy.npz makes one that may, as --policy policy.npz"
)
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


GUIDING = Guidance(cast(Guide, object()), "it guides")
NOBODY = Guidance(None, "nobody guides")


def test_a_guided_search_is_the_default_and_else_a_population() -> None:
    pytest.importorskip("jax")
    assert str(choose_strategy(None, GUIDING)) == "strategy: hybrid (it guides)"
    assert str(choose_strategy(None, NOBODY)) == "strategy: cma (nobody guides)"


@pytest.mark.parametrize("package", names.NEEDED["hybrid"])
def test_where_a_package_is_missing_another_stands_in(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    assert choose_strategy(None, GUIDING) == ("local", f"in place of hybrid, for which {package} {MISSING}")
    instead = ("local", f"nobody guides; in place of cma, for which cmaes {MISSING}")
    assert choose_strategy(None, NOBODY) == (instead if package == "cmaes" else ("cma", "nobody guides"))


def test_what_was_named_searches_and_is_told_with_what_guides_it() -> None:
    assert choose_strategy("random", NOBODY) == ("random", "as asked")
    assert choose_strategy("local", GUIDING) == ("local", "as asked; it guides")
    assert choose_strategy("hybrid", GUIDING) == ("hybrid", "as asked; it guides")
    assert choose_strategy("hybrid", NOBODY) == ("hybrid", "as asked; nobody guides: cma for 32 trials, then ppo")


def test_a_policy_that_knows_other_problems_guides(run: Any, policy: str) -> None:
    pytest.importorskip("jax")
    result = run("--json", "--policy", policy, "--budget", "20")
    assert events(result)[-1]["strategy"] == "hybrid"
    assert result.stderr == f"strategy: hybrid (the policy {policy} guides)\n"
    named = events(run("--json", "--policy", policy, "--budget", "20", "--strategy", "hybrid"))
    assert [event.get("config") for event in events(result)] == [event.get("config") for event in named]


def test_without_jax_it_is_said_in_one_line_and_nothing_fails(
    run: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # type: ignore[arg-type]
    result = run("--json", "--policy", policy, "--budget", "20")
    assert events(result)[-1]["strategy"] == "local"
    assert result.stderr.splitlines() == [f"strategy: local (in place of hybrid, for which jax {MISSING})"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], f"cma ({LEARNT})"),
        (["--cold"], "cma (--cold, so that no policy guides)"),
        (["--strategy", "local"], f"local (as asked; {LEARNT})"),
        (["--strategy", "exhaustive"], "exhaustive (as asked)"),
        (["--strategy", "hybrid"], f"hybrid (as asked; {LEARNT}: cma for 32 trials, then ppo)"),
    ],
)
def test_the_strategy_and_why_it_searches_are_said(run: Any, options: list[str], line: str) -> None:
    result = run("--budget", "5", "--device", "replay", *options)
    assert result.stderr == f"strategy: {line}\n"
    assert f" TFLOPS (recorded times), strategy {line.split()[0]} (5 evaluations, " in result.stdout


def test_a_replay_needs_none_of_the_packages_of_the_search() -> None:
    source = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({names.SEARCH_PACKAGES}))\n"
        "from cupygemm.cli import main\n"
        "main(['tune', '4096x4096x1024', '--device', 'replay', '--budget', '3', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["strategy"] == "local"
    learnt = LEARNT.replace("square", "short_k")
    assert done.stderr == f"strategy: local ({learnt}; in place of cma, for which cmaes {MISSING})\n"


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


def test_what_is_over_soon_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    class Timer:
        """A timer whose time does not come."""

        daemon = False

        def __init__(self, seconds: float, say: Callable[[], Any]) -> None:
            self.seconds, self.state = seconds, "made"
            timers.append(self)

        def start(self) -> None:
            self.state = "running"

        def cancel(self) -> None:
            self.state = "cancelled"

        def join(self) -> None:
            assert self.state == "cancelled"

    monkeypatch.setattr(tune_view.threading, "Timer", Timer)
    lines: list[str] = []
    view = PlainView(lines.append, 10)
    for _ in range(3):
        with view.busy("compiling"):
            assert timers[-1].state == "running"
    assert [(timer.seconds, timer.state, timer.daemon) for timer in timers] == 3 * [
        (tune_view.SILENT_S, "cancelled", True)
    ]
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
