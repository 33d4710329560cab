"""bench/fuzz.py on a fake GPU: what it writes, what it says, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench import fuzz
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from tests.fake_gpu import FakeGpu
from tests.fake_products import fresh_gpu
from tests.fuzzing.cases import Array, Case
from tests.fuzzing.examine import Examiner
from tests.fuzzing.explore import Tally
from tests.fuzzing.pools import Pools
from tests.fuzzing.storage import Storage
from tests.fuzzing.strategies import cases

CASE = Case(Array((24, 16), "float16", Storage()), Array((16, 40), "float16", Storage()))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    found = fresh_gpu(monkeypatch)
    module = found.cupy
    monkeypatch.setattr(driver, "cupy", lambda: module)
    monkeypatch.setattr(fuzz, "on_gpu", lambda: Examiner(Pools(lambda values: values, 2**16), found.empty))
    monkeypatch.setattr(fuzz, "cases", lambda: cases(longest=2**9))
    monkeypatch.setattr(fuzz.kernels, "compile_all", lambda: 416)
    monkeypatch.setattr(provenance, "collect", lambda device, command, commit: {"command": command, "commit": commit})
    return found


def run(*arguments: str) -> Any:
    return CliRunner().invoke(fuzz.main, arguments)


def test_a_report_is_written(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    result = run("--cases", "40", "--processes", "1", "--commit", "abc", "-o", str(path))
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    summary = document["summary"]
    assert (document["schema"], document["name"], document["failures"]) == ("cupygemm.report/1", "fuzz", [])
    assert document["provenance"]["commit"] == "abc"
    assert (summary["cases_wanted"], summary["failed"], summary["kernels"]) == (40, 0, 416)
    assert summary["cases"] >= 40
    assert summary["own_share"] == round(summary["own"] / summary["cases"], 4)


def test_failures_are_written_and_can_be_run_again(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzzing.explore.SHRINKING_S", 0.5)
    monkeypatch.setattr("tests.fuzzing.explore.MOST_FAILURES", 2)
    right, path = gpu.accumulate, tmp_path / "fuzz.json"
    gpu.accumulate = lambda a, b: right(a, b) + np.float32(1)
    result = run("--cases", "30", "--processes", "1", "-o", str(path))
    assert result.exit_code == 1
    document = json.loads(path.read_text())
    assert document["summary"]["failed"] == len(document["failures"]) == 2
    line = document["failures"][0]["case"]
    assert f"--case '{line}'" in result.output
    again = run("--case", line)
    assert (again.exit_code, "out of bounds" in again.output) == (1, True)
    gpu.accumulate = right
    mended = run("--case", line)
    assert (mended.exit_code, "right" in mended.output) == (0, True)


def test_too_few_cases_are_no_success(tmp_path: Path) -> None:
    result = run("--cases", "40", "--processes", "1", "--seconds", "0", "-o", str(tmp_path / "fuzz.json"))
    assert result.exit_code == 1
    assert "40 cases were wanted, and there was time for 0" in result.output


def test_where_to_write_must_be_said() -> None:
    result = run("--cases", "1")
    assert result.exit_code == 2
    assert "-o FILE" in result.output


def part(cases: int, own: int, failures: int = 0, **counts: int) -> dict[str, Any]:
    failed = [{"case": "{}", "reason": "wrong"}] * failures
    return {"cases": cases, "own": own, "counts": counts, "failures": failed, "over": False}


def test_parts_are_added() -> None:
    whole = fuzz.merged([part(3, 2, calls=6), part(5, 5, 1, calls=9, refused=1)])
    assert (whole["cases"], whole["own"], len(whole["failures"])) == (8, 7, 1)
    assert whole["counts"] == {"calls": 15, "refused": 1}


@pytest.mark.parametrize("status", [0, 3])
def test_processes_share_the_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """One that ends by itself, and one that fails or is killed before it has written anything of it."""
    monkeypatch.setattr(fuzz, "LOOK_S", 0.05)
    asked: list[tuple[int, int]] = []

    def started(path: Path, count: int, seed: int, seconds: float) -> subprocess.Popen[bytes]:
        asked.append((count, seed))
        # As the program itself writes it: it is read meanwhile.
        text, beside = json.dumps(part(count, 4)), path.with_suffix(".new")
        code = f"import os, sys; open({str(beside)!r}, 'w').write({text!r}); "
        code += f"os.replace({str(beside)!r}, {str(path)!r}); sys.exit({status})"
        return subprocess.Popen([sys.executable, "-c", code])

    monkeypatch.setattr(fuzz, "_started", started)
    path = tmp_path / "fuzz.json"
    result = run("--cases", "15", "--processes", "2", "--seed", "7", "-o", str(path))
    assert asked == [(8, 7), (8, 7 + fuzz.SEEDS_APART)]
    document = json.loads(path.read_text())
    assert (document["summary"]["own"], result.exit_code) == (8, 1 if status else 0)
    assert [failure["reason"] for failure in document["failures"]] == (
        ["process 0 ended with 3", "process 1 ended with 3"] if status else []
    )


def test_a_case_that_does_not_end_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    written: list[list[dict[str, str]]] = []
    monkeypatch.setattr(fuzz, "CASE_S", 0.05)
    monkeypatch.setattr(fuzz, "WATCH_S", 0.02)
    monkeypatch.setattr(fuzz.os, "_exit", ended.append)

    def hang(case: Case) -> None:
        while not ended:
            time.sleep(0.01)

    watched = fuzz._Watched(hang, lambda tally: written.append(list(tally.failures)))
    watched(CASE)
    assert ended[0] == 3
    assert (written[0][0]["case"], written[0][0]["reason"][:11]) == (str(CASE), "it did not ")
    assert isinstance(watched.tally, Tally)
