"""Fixtures of the GPU tests, and their report.

`pytest tests/gpu --report PATH` writes what was run and what failed as a `cupygemm.report/1` file.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report
from tests.gpu.protocol import Checks, Kernels, all_pairs, variant_pairs


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return Kernels()


@pytest.fixture(scope="session")
def compiled_ahead(kernels: Kernels) -> None:
    """All kernels of the protocol, on all cores: one after the other they would take minutes."""
    kernels.ahead(all_pairs())


@pytest.fixture(scope="session")
def variants_ahead(kernels: Kernels) -> None:
    """Those of stacks and epilogues, likewise."""
    kernels.ahead(variant_pairs())


@pytest.fixture(autouse=True)
def nothing_unseen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test says of cuBLAS is not for the forecast to change; tests/gpu/test_unseen.py is of that."""
    if request.node.get_closest_marker("unseen") is None:
        monkeypatch.setenv("CUPYGEMM_UNSEEN", "off")


CHECKS = Checks()
OUTCOMES: Counter[str] = Counter()
FAILURES: list[dict[str, str]] = []


@pytest.fixture(scope="session")
def checks() -> Checks:
    return CHECKS


@pytest.fixture(autouse=True)
def clean_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """A sticky error of one test must not be blamed on the next: each ends with a synchronisation."""
    yield
    if request.node.get_closest_marker("gpu") is not None and driver.hopper_devices():
        driver.cupy().cuda.Device().synchronize()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, default=None, help="write the outcome as a cupygemm.report/1 file")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.outcome] += 1
    if report.failed:
        FAILURES.append({"test": report.nodeid, "reason": str(report.longrepr)[-2000:]})


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("--report")
    if path is None:
        return
    command = "pytest " + " ".join(sys.argv[1:])
    summary = {
        **{outcome: OUTCOMES[outcome] for outcome in ("passed", "failed", "skipped")},
        "products_verified": CHECKS.verified,
    }
    device = 0 if driver.hopper_devices() else None
    write_report(path, "correctness", command, provenance.collect(device, command), summary, FAILURES)
