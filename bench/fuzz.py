"""Random calls of `matmul` on a GPU: shapes, strides, offsets, dtypes, epilogues, aliasing and repetition.

    python -m bench.fuzz -o bench/results/fuzz.json

Each case is some calls that differ in values and addresses only. What they give is compared with float64, and what is
around it in memory, the operands too, with what was there before. A case that fails is shrunk, and printed as a line
that runs it again:

    python -m bench.fuzz --case '{"a": …}'

Several processes share the cases, each with seeds of its own. The file is written as they go. It ends with status 1
where a case failed, or there were too few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import cupygemm
from bench.shared.command import Program, command_line
from cupygemm.atomic import write_atomically
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report
from tests.fuzzing import kernels
from tests.fuzzing.cases import Case
from tests.fuzzing.examine import Examiner, Failure, on_gpu
from tests.fuzzing.explore import Tally, explore
from tests.fuzzing.strategies import cases

CASE_S = 120.0
"""A case that takes longer hangs."""
SEEDS_APART = 100_000
"""Between the first seeds of two processes: more than one of them uses."""
WATCH_S = 1.0
LOOK_S = 5.0
TOGETHER = {"cases": 0, "own": 0, "counts": {}, "failures": [], "over": False}
"""What a process that has written nothing yet has come to."""


@click.command(cls=Program)
@click.option("--cases", "count", default=20_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=8, show_default=True, help="With 1 all runs in this one.")
@click.option("--seconds", default=420.0, show_default=True, help="After which no case begins.")
@click.option("--case", "line", help="Runs this one, and says what is wrong with it.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option("--part", type=click.Path(path_type=Path), hidden=True, help="Where a process writes what it came to.")
def main(
    count: int,
    seed: int,
    processes: int,
    seconds: float,
    line: str | None,
    commit: str | None,
    output: Path | None,
    part: Path | None,
) -> None:
    """Runs random cases of `cupygemm.matmul` and writes what they came to."""
    until = time.monotonic() + seconds
    if line is not None:
        _run_again(Case.read(line))
        return
    if part is not None:
        _run(count, seed, until, lambda tally: _write_part(part, tally))
        return
    if output is None:
        raise click.UsageError("-o FILE says where to write")
    started = time.monotonic()
    compiled = kernels.compile_all()
    click.echo(f"{compiled} kernels after {time.monotonic() - started:.0f} s")
    origin = provenance.collect(0, command_line("bench.fuzz"), commit)
    report = _Report(output, count, seed, {"processes": processes, "kernels": compiled}, origin)
    if processes == 1:
        _run(count, seed, until, lambda tally: report.write([_fields(tally)]))
    else:
        _share(report, count, seed, processes, until)
    click.echo(json.dumps(report.summary, indent=1))
    for failure in report.failures:
        click.echo(f"{failure['reason']}\n  python -m bench.fuzz --case '{failure['case']}'")
    if report.summary["cases"] < count:
        click.echo(f"{count} cases were wanted, and there was time for {report.summary['cases']}")
    sys.exit(1 if report.failures or report.summary["cases"] < count else 0)


class _Report:
    """The file, as it grows."""

    def __init__(self, path: Path, wanted: int, seed: int, known: dict[str, Any], origin: dict[str, Any]) -> None:
        self._path = path
        self._known = {"cases_wanted": wanted, "seed": seed, **known}
        self._origin = origin
        self._started = time.monotonic()
        self.summary: dict[str, Any] = {}
        self.failures: list[dict[str, str]] = []

    def write(self, parts: Sequence[dict[str, Any]]) -> None:
        """Writes what the parts come to together."""
        whole = merged(parts)
        self.failures = whole["failures"]
        right = whole["cases"]
        self.summary = {
            **self._known,
            "cases": right + len(self.failures),
            "failed": len(self.failures),
            "own": whole["own"],
            "own_share": round(whole["own"] / right, 4) if right else 0.0,
            "seconds": round(time.monotonic() - self._started, 1),
            **whole["counts"],
        }
        write_report(self._path, "fuzz", self._origin["command"], self._origin, self.summary, self.failures)


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several processes came to, as one."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    return {
        "cases": sum(part["cases"] for part in parts),
        "own": sum(part["own"] for part in parts),
        "counts": dict(sorted(counts.items())),
        "failures": [failure for part in parts for failure in part["failures"]],
    }


def _share(report: _Report, count: int, seed: int, processes: int, until: float) -> None:
    """Runs the cases in processes of their own, and writes down what they came to meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.json" for index in range(processes)]
        running = [
            _started(path, -(-count // processes), seed + SEEDS_APART * index, until - time.monotonic())
            for index, path in enumerate(paths)
        ]
        while any(process.poll() is None for process in running):
            time.sleep(LOOK_S)
            report.write([_read_part(path) for path in paths])
            click.echo(
                f"{report.summary['cases']} cases, {report.summary['own_share']:.1%} own, {len(report.failures)} failed"
            )
        parts = [_read_part(path) for path in paths]
        for process, path, part in zip(running, paths, parts, strict=True):
            if process.returncode and not part["failures"]:
                part["failures"] = [{"case": "", "reason": f"process {path.stem} ended with {process.returncode}"}]
        report.write(parts)


def _started(path: Path, count: int, seed: int, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.fuzz", "--part", str(path), "--cases", str(count), "--seed", str(seed)]
    return subprocess.Popen([*command, "--seconds", str(seconds)])


def _run(count: int, seed: int, until: float, meanwhile: Callable[[Tally], None]) -> None:
    """Examines cases in this process."""
    watched = _Watched(on_gpu(), meanwhile)

    def noted(tally: Tally) -> None:
        watched.tally = tally
        meanwhile(tally)

    noted(watched.tally)
    try:
        with cupygemm.use(kernels.bundle()), driver.cupy().cuda.Stream(non_blocking=True):
            explore(watched, cases(), count, seed, until=until, meanwhile=noted)
    finally:
        watched.ended.set()


class _Watched:
    """Examines cases, and ends the process where one does not end."""

    def __init__(self, examine: Examiner, meanwhile: Callable[[Tally], None]) -> None:
        self._examine = examine
        self._meanwhile = meanwhile
        self._case: Case | None = None
        self._since = time.monotonic()
        self.tally = Tally()
        self.ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __call__(self, case: Case) -> Any:
        self._case, self._since = case, time.monotonic()
        try:
            return self._examine(case)
        finally:
            self._case = None

    def _watch(self) -> None:
        while not self.ended.wait(WATCH_S):
            case = self._case
            if case is not None and time.monotonic() - self._since > CASE_S:
                self.tally.failures.append({"case": str(case), "reason": f"it did not end within {CASE_S:.0f} s"})
                self.tally.over = True
                self._meanwhile(self.tally)
                self.ended.set()
                # The thread that waits for the GPU cannot be ended otherwise.
                os._exit(3)


def _run_again(case: Case) -> None:
    with cupygemm.use(kernels.bundle()), driver.cupy().cuda.Stream(non_blocking=True):
        try:
            outcome = on_gpu()(case)
        except Failure as failure:
            click.echo(failure.reason)
            sys.exit(1)
    click.echo(f"right: {outcome}")


def _fields(tally: Tally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in TOGETHER}


def _write_part(path: Path, tally: Tally) -> None:
    write_atomically(path, json.dumps(_fields(tally)).encode())


def _read_part(path: Path) -> dict[str, Any]:
    if not path.exists():
        return dict(TOGETHER)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
