"""A plugin for a pytest that runs CuPy's own tests: `-p tests.gpu.cupy_suite --outcomes FILE [--patched]`.

With --patched, `cupy.matmul` and `@` are cupygemm's, with a config for every problem. The file gets the outcome of each
test and the problems that own kernels were launched for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import cupygemm
from cupygemm.kernels.kernel_plan import Plan
from tests.gpu.everything import everything

_WORSE = ("passed", "skipped", "failed")

_outcomes: dict[str, str] = {}
_problems: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="file to write")
    parser.addoption("--patched", action="store_true", help="with CuPy's matmul being cupygemm's")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--patched"):
        _note_launches()
        cupygemm.use(everything())
        cupygemm.patch()


def _note_launches() -> None:
    launch = Plan.__call__

    @wraps(launch)
    def noted(self: Plan, *operands: Any) -> None:
        _problems.add(str(self.problem))
        launch(self, *operands)

    Plan.__call__ = noted  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test has three parts, and ends as its worst one did.
    _outcomes[report.nodeid] = max(report.outcome, _outcomes.get(report.nodeid, "passed"), key=_WORSE.index)


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = {"outcomes": _outcomes, "problems": sorted(_problems)}
    session.config.getoption("--outcomes").write_text(json.dumps(found), encoding="utf-8")


def run(file: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """What the plugin writes of a test file that a pytest of its own runs.

    Args:
        file: in a checkout of CuPy.
        folder: where to run it and to keep what it says.

    Raises:
        AssertionError: it did not get as far as running tests; with what it said.
    """
    outcomes = folder / f"outcomes{''.join(arguments)}.json"
    root = Path(__file__).parent.parent.parent
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.cupy_suite", str(file))
    done = subprocess.run(
        [*command, "--outcomes", str(outcomes), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
    )
    # 1 is for tests that failed, which are in the file.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert outcomes.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(outcomes.read_text(encoding="utf-8"))
    return found


def lost(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """The tests that passed before and do not afterwards."""
    for test, outcome in before.items():
        if outcome == "passed" and after.get(test) != "passed":
            yield f"{test}: {after.get(test, 'not run')}"
