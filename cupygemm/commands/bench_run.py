"""What `cupygemm bench` does: measure problem after problem, write each row down, sum up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cupygemm.atomic import check_writable
from cupygemm.bundles.bundle import Bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.commands.bench_view import Row, make_view
from cupygemm.commands.view import View
from cupygemm.errors import CupygemmError, LaunchError
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.benchmark import benchmark
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import is_usable
from cupygemm.measuring.results import RESULTS_SCHEMA, times_document, write_results
from cupygemm.problem import Problem
from cupygemm.reports import plot
from cupygemm.reports.report import failure_line, read_file
from cupygemm.text import count, one_line, printable


@dataclass(frozen=True)
class BenchRequest:
    """What was asked of `cupygemm bench`.

    Attributes:
        problems: different ones; none for all that the bundles have entries for.
        facts: further fields of the file, such as `suite` and `seed`.
        bundle: whose configs; None for the bundles in force.
        device: index of a CUDA device.
        modes: of `names.MODES`.
        commit: to name in the provenance; None to ask git.
        output: JSON file for the rows.
        plot: file for the picture.
        command: the command line, for the provenance.
    """

    problems: tuple[Problem, ...]
    facts: dict[str, Any]
    bundle: Path | None
    device: int
    modes: tuple[str, ...]
    commit: str | None
    output: Path | None
    plot: Path | None
    command: str


def run_bench(request: BenchRequest) -> None:
    """Measures, shows and writes; rows are written as they come, so that whatever ends the run leaves them.

    Raises:
        CupygemmError: it could not be done, or not for all problems; what was measured is shown and written first.
        OSError: a file cannot be written, which is found out before anything is measured.
        KeyboardInterrupt: interrupted before there was a row.
    """
    _check_outputs(request)
    only = {str(request.bundle): Bundle.load(request.bundle)} if request.bundle else None
    dispatcher = Dispatcher(only, even_slower=True)  # a loss is measured and shown like a win
    tuned = dispatcher.problems()
    problems = request.problems or tuple(tuned)
    if not problems:
        raise click.UsageError("nothing to measure: name a suite or shapes, or a bundle with entries")
    _check_device(request.device)
    sheet = _Sheet(request)
    view = make_view(click.echo, len(problems) * len(request.modes))
    with holding_gpu(request.device), view.running():
        stopped_by = _measure_all(problems, dispatcher, sheet, view)
    _finish(request, sheet, view)
    if sheet.failures:
        why = f", {stopped_by}" if stopped_by else ""
        raise LaunchError(f"{len(sheet.failures)} of {count(len(problems), 'problem')} not measured{why}")


def show_recorded(recorded: Path, picture: Path | None) -> None:
    """Shows a file of times as if it had just been measured.

    Raises:
        CupygemmError: it is no such file, or the picture cannot be drawn.
        OSError: the picture cannot be written.
    """
    if picture is not None:
        plot.check(picture)
    document = read_file(recorded, (RESULTS_SCHEMA,))
    view = make_view(click.echo, len(document["rows"]))
    with view.running():
        for row in document["rows"]:
            view.add(row)
    view.end(document)
    for failure in document.get("failures", ()):
        click.echo(f"not measured: {printable(failure_line(failure))}")
    if picture is not None:
        plot.draw(document, picture)
        click.echo(f"{picture}: written")


def _check_outputs(request: BenchRequest) -> None:
    for path in (request.output, request.plot):
        if path is not None:
            check_writable(path)
    if request.plot is not None:
        plot.check(request.plot)


def _check_device(index: int) -> None:
    try:
        driver.device_spec(index)
    except LaunchError as error:
        raise LaunchError(f"{error}; --from FILE shows what was measured elsewhere") from error


class _Sheet:
    """The rows and failures so far, on disk whenever one is added."""

    def __init__(self, request: BenchRequest) -> None:
        """Asks now for what the provenance says; clock and power become those of the last row."""
        self.request = request
        self.rows: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self._provenance = provenance.collect(request.device, request.command, request.commit)

    def add(self, row: dict[str, Any]) -> None:
        """One more row."""
        self.rows.append(row)
        self._provenance |= {key: row[key] for key in ("sm_clock_mhz", "power_w")}
        self._write()

    def fail(self, detail: str, *problems: Problem) -> None:
        """Problems that could not be measured, or not in all modes."""
        self.failures += [{**problem.to_dict(), "detail": detail} for problem in problems]
        self._write()

    def document(self) -> dict[str, Any]:
        """What the file holds."""
        request = self.request
        name = request.output.stem if request.output else str(request.facts.get("suite", "times"))
        found = {"failures": list(self.failures)}
        return times_document(name, request.command, self._provenance, self.rows, **request.facts, **found)

    def _write(self) -> None:
        if self.request.output is not None:
            write_results(self.request.output, self.document())


def _measure_all(problems: Sequence[Problem], dispatcher: Dispatcher, sheet: _Sheet, view: View[Row]) -> str | None:
    """Measures all problems; gives what stopped it before the last one, if something did.

    Raises:
        KeyboardInterrupt: interrupted before there was a row.
    """
    left = list(problems)
    stopped_by = None
    try:
        while left and stopped_by is None:
            if not _measure(left[0], dispatcher, sheet, view):
                stopped_by = "the device cannot be used any more"
            del left[0]
    except KeyboardInterrupt:
        if not sheet.rows:
            raise
        stopped_by = "interrupted"
    if stopped_by is not None:
        sheet.fail(stopped_by, *left)
    return stopped_by


def _measure(problem: Problem, dispatcher: Dispatcher, sheet: _Sheet, view: View[Row]) -> bool:
    """Measures one problem in all modes, or says why not; gives whether the device can be used afterwards."""
    device = sheet.request.device
    try:
        choice, plan = dispatcher.choose_for(problem, device)
        bench = Bench(problem, device)
        for mode in sheet.request.modes:
            row = benchmark(bench, plan.launch if plan else bench.cublas, choice.config, mode)
            sheet.add(row)
            view.add(row)
    except (CupygemmError, MemoryError) as error:  # CuPy's own error for a full device is a MemoryError
        detail = one_line(error).removeprefix(f"{problem}: ") or "out of memory"
        sheet.fail(detail, problem)
        click.echo(f"{problem}: {detail}", err=True)
        return is_usable(device)
    return True


def _finish(request: BenchRequest, sheet: _Sheet, view: View[Row]) -> None:
    document = sheet.document()
    view.end(document)
    if request.output is not None:
        click.echo(f"{request.output}: {count(len(sheet.rows), 'row')}")
    if request.plot is not None and sheet.rows:
        plot.draw(document, request.plot)
        click.echo(f"{request.plot}: written")
