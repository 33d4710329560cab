"""What `cupygemm record` does: sweep, report, tables, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cupygemm.atomic import check_folder, check_writable
from cupygemm.commands.tune_view import STOPPED, counts
from cupygemm.errors import LaunchError
from cupygemm.measurement import Record
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report
from cupygemm.problem import Problem
from cupygemm.search.gpu_target import open_gpu
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.recordings.recording import Recording, record, tables_of
from cupygemm.search.recordings.table import Table
from cupygemm.search.runners.gpu_runner import GpuRunner
from cupygemm.search.spaces.declared import SUBSPACES
from cupygemm.search.store import TrialStore, default_store


@dataclass(frozen=True)
class RecordRequest:
    """What was asked of `cupygemm record`.

    Attributes:
        problems: different ones.
        subspace: a key of `SUBSPACES`.
        device: index of a CUDA device.
        folder: where the tables go.
        commit: to name in the provenance; None to ask git.
        limit_seconds: of measuring.
        resume: whether what the store has already is taken.
        report: JSON file for counts and rates.
        store: where trials go; None for the default.
        command: the command line, for the provenance.
    """

    problems: list[Problem]
    subspace: str
    device: int
    folder: Path
    commit: str | None
    limit_seconds: float | None
    resume: bool
    report: Path | None
    store: Path | None
    command: str


def run_record(request: RecordRequest) -> None:
    """Measures, and writes a table a problem, or none.

    Raises:
        CupygemmError: it could not be done, or not to the end; what was measured is in the store.
        OSError: a file cannot be written, which is found out before anything is measured.
    """
    check_folder(request.folder)
    if request.report is not None:
        check_writable(request.report)
    runner = open_gpu(request.device)
    try:
        tables = _measure(request, runner)
    finally:
        runner.close()
    for table in tables:
        path = request.folder / file_name(table.problem, table.device)
        table.write(path)
        click.echo(f"{path}: {len(table.rows)} points, best {table.optimum_us:.2f} µs, {counts(table.statuses)}")


def _measure(request: RecordRequest, runner: GpuRunner) -> list[Table]:
    subspace, device = SUBSPACES[request.subspace], runner.device_spec
    with TrialStore(request.store or default_store()) as store:

        def on_record(found: Record, recording: Recording) -> None:
            store.append(found, runner.device)
            _show_progress(recording)

        known = {}
        if request.resume:
            now = provenance.collect(request.device, request.command, request.commit)
            known = {problem: store.alike(problem, now) for problem in request.problems}
        recording = record(request.problems, subspace, runner, device, request.limit_seconds, on_record, known)
    facts = provenance.collect(request.device, request.command, request.commit, recording.reading)
    _write_report(request, recording, facts)
    if not recording.complete:
        raise LaunchError(_unfinished(recording, store.path))
    baselines = {problem: runner.baselines(problem) for problem in request.problems}
    return tables_of(recording, subspace, device, facts, baselines)


def _show_progress(recording: Recording, every: int = 100) -> None:
    if recording.measured % every == 0 or recording.complete:
        rate = recording.pairs_per_minute or 0
        click.echo(f"{recording.measured}/{recording.wanted} pairs, {recording.seconds:.0f} s, {rate:.0f} a minute")


def _unfinished(recording: Recording, store: Path) -> str:
    done = f"{recording.measured} of {recording.wanted} pairs measured"
    kept = f"what was measured is in {store}, and --resume goes on from there"
    return f"no table written: {done}, {STOPPED[recording.stopped_by]}; {kept}"


def _write_report(request: RecordRequest, recording: Recording, facts: dict[str, Any]) -> None:
    if request.report is not None:
        summary, failures = recording.summary(), recording.failures()
        write_report(request.report, "tuning_rate", request.command, facts, summary, failures)
