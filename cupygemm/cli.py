"""The command `cupygemm`. Exit status: 0 done, 1 could not be done (one line on standard error), 2 wrong usage.

The search is imported inside the commands, so that the command line starts fast and the package never needs it.
"""

from __future__ import annotations

import errno
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cupygemm.errors import ConfigError, CupygemmError, LaunchError, ProblemError
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.report import report as report_command

if TYPE_CHECKING:
    from cupygemm.search.recording import Recording
    from cupygemm.search.store import TrialStore
    from cupygemm.search.target import Target
    from cupygemm.search.tune import Trial

STRATEGY_NAMES = ("random", "exhaustive", "cma")
"""Keys of `search.strategies.STRATEGIES`, said here so that `--help` need not import the search."""
SUBSPACE_NAMES = ("core",)
"""Keys of `search.subspace.SUBSPACES`, for the same reason."""

_DEVICE = re.compile(r"auto|replay|cuda(:\d+)?")


class _Main(click.Group):
    """Turns what cupygemm raises on purpose into one line and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CupygemmError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(f"{error.filename or 'file'}: {error.strerror or error}") from error


def _check_device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise click.BadParameter(f"{value!r}: write auto, replay, cuda or cuda:N")
    return value


_SHAPE_OPTIONS = (
    click.option("--dtype", type=click.Choice(("float16", "bfloat16")), default="float16", show_default=True),
    click.option("--out-dtype", type=click.Choice(("float16", "bfloat16", "float32")), help="Default: --dtype."),
    click.option("--layout", type=click.Choice(LAYOUTS), default="nn", show_default=True, help="Of A, then of B."),
)
_BUDGET_HELP = "Configs to measure. Default: 100; no limit with --seconds or the exhaustive strategy."
_PATH = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


def _shape_options(command: Any) -> Any:
    for option in reversed(_SHAPE_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class _TuneRequest:
    """What was asked of `cupygemm tune`, as the options of that command say it."""

    shape: str
    dtype: str
    out_dtype: str | None
    layout: str
    strategy: str
    budget: int | None
    seconds: float | None
    stop_at_speedup: float | None
    seed: int
    device: str
    output: Path | None
    store: Path | None
    tables: Path | None
    as_json: bool

    @property
    def problem(self) -> Problem:
        return _parse(self.shape, self.dtype, self.out_dtype, self.layout)

    @property
    def evaluations(self) -> int | None:
        unlimited = self.seconds is not None or self.strategy == "exhaustive"
        return self.budget or (None if unlimited else 100)


@dataclass(frozen=True)
class _RecordRequest:
    """What was asked of `cupygemm record`, as the options of that command say it."""

    shapes: tuple[str, ...]
    dtype: str
    out_dtype: str | None
    layout: str
    subspace: str
    device: str
    folder: Path
    commit: str | None
    limit_seconds: float | None
    report: Path | None
    store: Path | None

    @property
    def problems(self) -> list[Problem]:
        parsed = [_parse(shape, self.dtype, self.out_dtype, self.layout) for shape in self.shapes]
        return list(dict.fromkeys(parsed))


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fast matrix multiplication kernels for Hopper GPUs, tuned for your problem."""


@main.command("tune")
@click.argument("shape", metavar="MxNxK")
@_shape_options
@click.option("--strategy", type=click.Choice(STRATEGY_NAMES), default="cma", show_default=True)
@click.option("--budget", type=click.IntRange(min=1), help=_BUDGET_HELP)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this long.")
@click.option("--stop-at-speedup", type=click.FloatRange(min=0, min_open=True), help="Stop there, over cuBLAS.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", default="auto", show_default=True, callback=_check_device, help="auto, cuda:N or replay.")
@click.option("-o", "--output", type=_PATH, help="Bundle to write; one that exists is added to.")
@click.option("--store", type=_PATH, help="SQLite file that trials go to. Default: in the user's data folder.")
@click.option("--tables", type=_FOLDER, help="Folder of recorded tables. Default: those of the package.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def tune_command(**options: Any) -> None:
    """Search for the fastest kernel config of a problem. Ctrl-C ends the search and keeps the best so far."""
    request = _TuneRequest(**options)
    target = _open_target(request)
    try:
        _tune(request, target)
    finally:
        target.runner.close()


@main.command("record")
@click.argument("shapes", metavar="MxNxK...", nargs=-1, required=True)
@_shape_options
@click.option("--subspace", type=click.Choice(SUBSPACE_NAMES), default="core", show_default=True)
@click.option("--device", default="cuda:0", show_default=True, callback=_check_device, help="cuda:N.")
@click.option("-o", "--output", "folder", type=_FOLDER, required=True, help="Folder to write the tables in.")
@click.option("--commit", help="Commit to name in the provenance, where there is no git history.")
@click.option("--limit-seconds", type=click.FloatRange(min=0, min_open=True), help="Give up after this long.")
@click.option("--report", type=_PATH, help="JSON file for counts and rates.")
@click.option("--store", type=_PATH, help="SQLite file that trials go to. Default: in the user's data folder.")
def record_command(**options: Any) -> None:
    """Measure every config of a sub-space, for replaying later. Writes one table a problem, or none."""
    request = _RecordRequest(**options)
    if not request.device.startswith("cuda"):
        raise click.BadParameter("recording needs a GPU: cuda:N", param_hint="--device")
    _record(request)


main.add_command(report_command)


@main.group("bundle")
def bundle_group() -> None:
    """Look at bundles of tuned configs."""


@bundle_group.command("show")
@click.argument("path", type=_PATH)
def bundle_show(path: Path) -> None:
    """Print what a bundle holds."""
    from cupygemm.bundle import Bundle
    from cupygemm.bundle_view import show

    bundle = Bundle.load(path)
    click.echo(f"{path}: {bundle.device.name}, {bundle.device.sm_count} SMs, created {bundle.created}")
    click.echo(f"cupygemm {bundle.tool.version}, kernel sources {bundle.tool.source_digest}")
    show(bundle)


@bundle_group.command("validate")
@click.argument("path", type=_PATH)
def bundle_validate(path: Path) -> None:
    """Check a bundle; say what is wrong and where."""
    from cupygemm.bundle import Bundle

    bundle = Bundle.load(path)
    click.echo(f"{path}: valid, {len(bundle.entries)} entries")


def _parse(shape: str, dtype: str, out_dtype: str | None, layout: str) -> Problem:
    try:
        return Problem.parse(shape, dtype, out_dtype, layout)
    except ProblemError as error:
        raise click.BadParameter(str(error), param_hint="MxNxK") from error


def _command_line() -> str:
    return shlex.join(["cupygemm", *sys.argv[1:]])


def _open_target(request: _TuneRequest) -> Target:
    from cupygemm import driver
    from cupygemm.search.target import replay_target

    problem, device = request.problem, request.device
    if device == "auto":
        found = driver.hopper_devices()
        device = f"cuda:{found[0]}" if found else "replay"
    if device == "replay":
        return replay_target(problem, request.tables)
    return _gpu_target(problem, _device_index(device))


def _gpu_target(problem: Problem, index: int) -> Target:
    from cupygemm import compiler, driver, provenance
    from cupygemm.search.gpu_runner import GpuRunner
    from cupygemm.search.space import SearchSpace
    from cupygemm.search.target import Target

    device = driver.device_spec(index)
    if not device.is_hopper:
        raise LaunchError(f"cuda:{index} is an {device.name}: the kernels need a Hopper GPU (H100, H200, GH200)")
    runner = GpuRunner(device=index)
    try:
        baselines = runner.baselines(problem)
    except BaseException:
        runner.close()
        raise
    return Target(
        runner=runner,
        space=SearchSpace.for_problem(problem, device),
        device=device,
        provenance=provenance.collect(index, _command_line()),
        source_digest=compiler.source_digest(),
        baselines=baselines,
    )


def _device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _tune(request: _TuneRequest, target: Target) -> None:
    from cupygemm.bundle import SearchInfo
    from cupygemm.search.outcome import BundleFile, result_event
    from cupygemm.search.progress import make_reporter
    from cupygemm.search.strategies import make_strategy
    from cupygemm.search.tune import Budget, tune

    problem = request.problem
    output = None if request.output is None else BundleFile(request.output, target)
    if output is not None and output.replaces:
        click.echo(f"{output.path}: its entries are of other kernel sources and will be replaced", err=True)
    budget = Budget(request.evaluations, request.seconds, request.stop_at_speedup)
    strategy = make_strategy(request.strategy, target.space, request.seed)
    reporter = make_reporter(click.echo, request.as_json, _expected(request, target))
    with _open_store(request.store) as store:

        def on_trial(trial: Trial) -> None:
            _store_trial(store, target, problem, trial)
            reporter.trial(trial)

        with reporter.running():
            result = tune(problem, target.space, strategy, target.runner, budget, on_trial)
    search = SearchInfo(strategy=request.strategy, seed=request.seed, evaluations=len(result.trials))
    written = None if output is None or result.best is None else output.add(result.best, search)
    reporter.result(result_event(problem, target, result, search, written))
    if result.best is None:
        raise ConfigError(f"no config of {problem} ran on {target.runner.device}: {dict(result.failures)}")


def _expected(request: _TuneRequest, target: Target) -> int | None:
    limits = [limit for limit in (request.evaluations, target.space.size) if limit is not None]
    return min(limits, default=None)


def _open_store(path: Path | None) -> TrialStore:
    from cupygemm import settings
    from cupygemm.search.store import TrialStore

    return TrialStore(path or settings.data_dir() / "trials.sqlite")


def _store_trial(store: TrialStore, target: Target, problem: Problem, trial: Trial) -> None:
    from cupygemm.measurement import Record

    record = Record(problem, trial.config, trial.measurement, target.provenance)
    store.append(record, target.runner.device)


def _record(request: _RecordRequest) -> None:
    from cupygemm import driver, provenance
    from cupygemm.search.gpu_runner import GpuRunner
    from cupygemm.search.recorded import file_name
    from cupygemm.search.recording import record, tables_of
    from cupygemm.search.subspace import SUBSPACES

    index, subspace = _device_index(request.device), SUBSPACES[request.subspace]
    if index not in driver.hopper_devices():
        raise LaunchError(f"{request.device} is no Hopper GPU: recording needs one")
    device = driver.device_spec(index)
    runner = GpuRunner(device=index)
    try:
        with _open_store(request.store) as store:

            def on_record(found: Any, recording: Recording) -> None:
                store.append(found, runner.device)
                _show_progress(recording)

            recording = record(request.problems, subspace, runner, device, request.limit_seconds, on_record)
        facts = provenance.collect(index, _command_line(), request.commit, recording.reading)
        _write_report(request.report, recording, facts)
        if not recording.complete:
            raise LaunchError(_unfinished(recording, store.path))
        baselines = {problem: runner.baselines(problem) for problem in request.problems}
    finally:
        runner.close()
    for table in tables_of(recording, subspace, device, facts, baselines):
        path = request.folder / file_name(table.problem, device)
        table.write(path)
        click.echo(f"{path}: {len(table.rows)} points, best {table.optimum_us:.2f} µs, {dict(table.statuses)}")


def _show_progress(recording: Recording, every: int = 100) -> None:
    if recording.measured % every == 0 or recording.complete:
        rate = 60 * recording.measured / max(recording.seconds, 1e-9)
        click.echo(f"{recording.measured}/{recording.wanted} pairs, {recording.seconds:.0f} s, {rate:.0f} a minute")


def _unfinished(recording: Recording, store: Path) -> str:
    done = f"{recording.measured} of {recording.wanted} pairs measured"
    return f"no table written: {done}, stopped by {recording.stopped_by}; what was measured is in {store}"


def _write_report(path: Path | None, recording: Recording, facts: dict[str, Any]) -> None:
    from cupygemm.results import write_report

    if path is not None:
        write_report(path, "tuning_rate", _command_line(), facts, recording.summary(), recording.failures())
