"""What a tuning run shows as it goes: JSON lines for programs, a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status

from cupygemm.commands.view import View, Write
from cupygemm.search.tune import Trial
from cupygemm.text import count

STOPPED = {
    "evaluations": "its budget is spent",
    "seconds": "its time is up",
    "speedup": "the speedup asked for is reached",
    "exhausted": "nothing is left to try",
    "stagnation": "the strategy has nothing new to try",
    "interrupted": "interrupted",
    "done": "the runner has no more",
}
"""What ended a search or a recording, by the value of `stopped_by`, in words."""
EVERY = 10
"""Of so many trials, one is written as a line even where it is no improvement."""
SILENT_S = 0.5
"""What takes longer without a trial is said."""


class TuneView(View[Trial], Protocol):
    """Shows trials as they end, and at the end the JSON event of the result."""

    def note(self, text: str) -> None:
        """Something to know before the first trial."""
        ...

    def busy(self, text: str) -> AbstractContextManager[Any]:
        """Entered while something other than trials goes on, which is said if it takes a while."""
        ...


def make_view(write: Write, as_json: bool, total: int | None) -> TuneView:
    """The view for where standard output goes.

    Args:
        write: puts a line there.
        as_json: one JSON object a line, for programs.
        total: evaluations to expect, if that is known.
    """
    if as_json:
        return JsonView(write)
    console = Console()
    return LiveView(console, write, total) if console.is_terminal else PlainView(write, total)


def trial_event(trial: Trial) -> dict[str, Any]:
    """The JSON event of a trial."""
    measurement = trial.measurement
    return {
        "event": "trial",
        "index": trial.index,
        "config": trial.config.to_dict(),
        "status": measurement.status.value,
        "detail": measurement.detail,
        "us": measurement.us,
        "speedup": measurement.speedup,
        "spill_bytes": measurement.spill_bytes,
        "l2_term": measurement.l2_term,
        "l2_hit_rate": measurement.l2_hit_rate,
        "l2_source": measurement.l2_source,
        "registers": measurement.registers,
        "best_us": trial.best_us,
    }


class JsonView:
    """One JSON object a line, and nothing else."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def note(self, text: str) -> None:
        """Left out: the result's event says it in fields."""

    def busy(self, text: str) -> AbstractContextManager[Any]:
        """Left out: programs can wait."""
        return nullcontext()

    def running(self) -> AbstractContextManager[Any]:
        """Nothing to set up."""
        return nullcontext()

    def add(self, trial: Trial) -> None:
        """Writes the trial's event."""
        self._write(json.dumps(trial_event(trial), allow_nan=False))

    def end(self, document: Mapping[str, Any]) -> None:
        """Writes the result's event."""
        self._write(json.dumps(document, allow_nan=False))


class PlainView:
    """A line for each improvement, and for every tenth trial, for logs and pipes."""

    def __init__(self, write: Write, total: int | None) -> None:
        self._write = write
        self._of = "" if total is None else f"/{total}"
        self._best_us: float | None = None
        self._written: set[str] = set()

    def note(self, text: str) -> None:
        """Writes it as a line."""
        self._write(text)

    def busy(self, text: str) -> AbstractContextManager[Any]:
        """Writes it as a line, the first time."""
        return _if_it_takes_long(lambda: self._note_once(text))

    def _note_once(self, text: str) -> None:
        if text not in self._written:
            self._written.add(text)
            self.note(text)

    def running(self) -> AbstractContextManager[Any]:
        """Nothing to set up."""
        return nullcontext()

    def add(self, trial: Trial) -> None:
        """Writes how the trial ended and the best so far, if it is worth a line."""
        if trial.best_us == self._best_us and (trial.index + 1) % EVERY:
            return
        self._best_us = trial.best_us
        measurement = trial.measurement
        outcome = measurement.status.value if measurement.us is None else f"{measurement.us:.2f} µs"
        best = "none yet" if trial.best_us is None else f"{trial.best_us:.2f} µs"
        self._write(f"trial {trial.index + 1}{self._of}: {outcome}, best {best}")

    def end(self, document: Mapping[str, Any]) -> None:
        """Writes the summary."""
        for line in summary(document):
            self._write(line)


class LiveView(PlainView):
    """A bar with the best so far, redrawn in place; the summary is plain."""

    def __init__(self, console: Console, write: Write, total: int | None) -> None:
        super().__init__(write, total)
        self._console = console
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("", total=total)
        self._failed = 0
        self._found = ""

    def running(self) -> AbstractContextManager[Any]:
        """Draws the bar as long as it is entered."""
        return self._progress

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Says it beside the bar, or with a spinner where there is none yet, as long as it is entered."""
        if self._progress.live.is_started:
            with _if_it_takes_long(lambda: self._progress.update(self._task, description=text)):
                yield
            self._progress.update(self._task, description=self._found)
        else:
            spinner = Status(text, console=self._console)
            try:
                with _if_it_takes_long(spinner.start):
                    yield
            finally:
                spinner.stop()

    def add(self, trial: Trial) -> None:
        """Moves the bar on."""
        self._failed += not trial.measurement.ok
        best = "" if trial.best_us is None else f"best {trial.best_us:.2f} µs"
        failed = f" · {self._failed} failed" if self._failed else ""
        self._found = best + failed
        self._progress.update(self._task, advance=1, description=self._found)


@contextmanager
def _if_it_takes_long(say: Callable[[], Any]) -> Iterator[None]:
    """Has a thread say something if this is entered for long; it says nothing any more when this is left."""
    timer = threading.Timer(SILENT_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def summary(event: Mapping[str, Any]) -> list[str]:
    """The result event in words, a line each."""
    spent = f"{count(event['evaluations'], 'evaluation')}, {event['seconds']:.1f} s, {STOPPED[event['stopped_by']]}"
    head = f"{event['problem']} {event['dtype']} {event['layout']} on {event['device']}"
    lines = [f"{head}: {_result(event)}, strategy {event['strategy']} ({spent})"]
    if event.get("fraction_of_optimum") is not None:
        share = 100 * event["fraction_of_optimum"]
        lines.append(f"  {share:.1f} % of the recorded optimum, {event['optimum_us']:.2f} µs")
    if event["failures"]:
        lines.append(f"  failures: {counts(event['failures'])}")
    if event["config"]:
        lines.append("  config: " + " ".join(f"{name}={value}" for name, value in event["config"].items()))
    if event["bundle"]:
        lines.append(f"  bundle: {event['bundle']}{_change(event)}")
    return lines


def counts(numbers: Mapping[str, int]) -> str:
    """ "crashed 2, timed_out 1"."""
    return ", ".join(f"{name} {number}" for name, number in numbers.items()) or "none"


def _result(event: Mapping[str, Any]) -> str:
    if event["best_us"] is None:
        return "no config ran"
    recorded = " (recorded times)" if "optimum_us" in event else ""
    return f"{_time(event['best_us'], event['speedup'])}, {event['best_tflops']:.0f} TFLOPS{recorded}"


def _change(event: Mapping[str, Any]) -> str:
    """What happened to the entry that was there, with both results."""
    before = event["entry_before"]
    if before is None:
        return ""
    old, new = _time(before["us"], before["speedup"]), _time(event["best_us"], event["speedup"])
    if event["bundle_entry"] == "kept":
        replayed = "optimum_us" in event and not before["recorded"]
        return f" keeps its entry of {old}, " + ("which was measured" if replayed else f"{new} is no better")
    return f", where it replaces an entry of {old} by {new}"


def _time(us: float, speedup: float | None) -> str:
    return f"{us:.2f} µs" if speedup is None else f"{us:.2f} µs ({speedup:.3f}× cuBLAS)"
