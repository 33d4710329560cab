"""The command `cupygemm`. Exit status: 0 done, 1 could not be done (one line on standard error), 2 wrong usage,
130 interrupted before there was anything to keep.

Commands are declared here and done elsewhere. What does them is imported inside them, so that the command line starts
fast and the package never needs the search.
"""

from __future__ import annotations

import errno
import io
import math
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cupygemm import __version__, suites
from cupygemm.errors import BundleError, CupygemmError, ProblemError, not_installed
from cupygemm.problem import LAYOUTS, Problem
from cupygemm.text import count, one_line

STRATEGY_NAMES = ("random", "exhaustive", "cma", "ppo", "hybrid")
"""Keys of `search.strategies.STRATEGIES`, said here so that `--help` need not import the search."""
L2_TERMS = ("bytes", "hit_rate")
"""`search.rewards.L2_TERMS`, for the same reason."""
SUBSPACE_NAMES = ("core",)
"""Keys of `search.subspace.SUBSPACES`, for the same reason."""
MODE_NAMES = ("rotated", "resident")
"""`measure.MODES`, for the same reason."""
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
"""`plot.SUFFIXES`, for the same reason."""
TABLE_SUFFIX = ".jsonl.gz"
"""`search.recorded.SUFFIX`, for the same reason."""
SEARCH_PACKAGES = ("cmaes", "flax", "jax", "optax", "pebble")
"""What the extra `search` installs."""
INTERRUPTED = 130
"""Exit status: 128 and the number of SIGINT, as shells have it."""
SAME_INTERRUPT_S = 1.0
"""Signals that follow each other faster are one interruption."""
MOST_FINDINGS = 5
"""Findings about a bundle that are spelt out in one line."""

_DEVICE = re.compile(r"auto|replay|cuda(:(\d{1,4}))?")


class _Main(click.Group):
    """Turns what cupygemm raises on purpose into one line and exit status 1, and SIGTERM into what Ctrl-C does."""

    def invoke(self, ctx: click.Context) -> Any:
        interrupt = _Interrupt()
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except (CupygemmError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            raise click.ClickException(one_line(error)) from error
        except ModuleNotFoundError as error:
            if error.name not in SEARCH_PACKAGES:
                raise
            raise click.ClickException(not_installed(error.name, "search")) from error
        finally:
            if not interrupt.happened:  # else the process is ending, and what else comes for it must not change how
                for number, handler in before.items():
                    signal.signal(number, handler or signal.SIG_DFL)


class _Interrupt:
    """Raises KeyboardInterrupt, once for what a person or a program meant once.

    A terminal, `timeout` and job schedulers signal a process and its group: the same wish arrives twice. A second
    exception inside the first one's clean-up would leave a lock that it was about to take back, and the search would
    end in an error in place of the best so far (H200, 2026-11: `timeout` on a search that was waiting for its child).
    """

    def __init__(self) -> None:
        self._last = -math.inf

    @property
    def happened(self) -> bool:
        """Whether a signal came."""
        return self._last > -math.inf

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        meant = now - self._last > SAME_INTERRUPT_S
        self._last = now
        if meant:
            raise KeyboardInterrupt


def _read_device(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """The index of a CUDA device, "auto" or "replay"."""
    match = _DEVICE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r}: write auto, replay, cuda or cuda:N")
    return int(match[2] or 0) if value.startswith("cuda") else value


def _read_plot(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """A file whose name says a format that a picture can have."""
    if value is not None and value.suffix.lower() not in PLOT_SUFFIXES:
        raise click.BadParameter(f"{value}: the name ends in {', '.join(PLOT_SUFFIXES)}")
    return value


_SHAPE_OPTIONS = (
    click.option("--dtype", type=click.Choice(("float16", "bfloat16")), default="float16", show_default=True),
    click.option("--out-dtype", type=click.Choice(("float16", "bfloat16", "float32")), help="Default: --dtype."),
    click.option("--layout", type=click.Choice(LAYOUTS), default="nn", show_default=True, help="Of A, then of B."),
)
_BUDGET_HELP = "Configs to measure. Default: 100; no limit with --seconds or the exhaustive strategy."
_L2_WEIGHT_HELP = "Of the L2 term in the reward that ppo and hybrid learn from."
_SPILL_WEIGHT_HELP = "Of the spill term in it."
_COUNTERS_HELP = "Count the L2's figures with Nsight Compute, some seconds a batch; they are modelled otherwise."
_L2_TERM_HELP = "What the L2 term is: compulsory over actual bytes of device memory, or the L2's hit rate."
_DEVICE_HELP = "cuda or cuda:N, replay, or auto: the first Hopper GPU, and replay where there is none."
_STORE_HELP = "SQLite file that trials go to. Default: one in the user's data folder"
_TABLES_HELP = "Folder of recorded tables. Default: those of the package."
_PATH = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


def _shape_options(command: Any) -> Any:
    for option in reversed(_SHAPE_OPTIONS):
        command = option(command)
    return command


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cupygemm")
def main() -> None:
    """Fast matrix multiplication kernels for Hopper GPUs, tuned for your problem."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "µ" gets "?" and no traceback


@main.command("tune")
@click.argument("shape", metavar="MxNxK")
@_shape_options
@click.option("--strategy", type=click.Choice(STRATEGY_NAMES), default="cma", show_default=True)
@click.option("--budget", type=click.IntRange(min=1), help=_BUDGET_HELP)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this long.")
@click.option("--stop-at-speedup", type=click.FloatRange(min=0, min_open=True), help="Stop there, over cuBLAS.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", default="auto", show_default=True, callback=_read_device, help=_DEVICE_HELP)
@click.option("-o", "--output", type=_PATH, help="Bundle to add the result to, unless it holds a better one.")
@click.option("--store", type=_PATH, help=f"{_STORE_HELP}, and none on replay.")
@click.option("--tables", type=_FOLDER, help=_TABLES_HELP)
@click.option("--cold", is_flag=True, help="Begin at random, not with the best configs of other recorded problems.")
@click.option("--l2-weight", type=click.FloatRange(min=0), default=0.02, show_default=True, help=_L2_WEIGHT_HELP)
@click.option("--spill-weight", type=click.FloatRange(min=0), default=0.05, show_default=True, help=_SPILL_WEIGHT_HELP)
@click.option("--l2-term", type=click.Choice(L2_TERMS), default="bytes", show_default=True, help=_L2_TERM_HELP)
@click.option("--counters", is_flag=True, help=_COUNTERS_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def tune_command(
    shape: str,
    dtype: str,
    out_dtype: str | None,
    layout: str,
    budget: int | None,
    seconds: float | None,
    stop_at_speedup: float | None,
    l2_weight: float,
    spill_weight: float,
    l2_term: str,
    **options: Any,
) -> None:
    """Search for the fastest kernel config of a problem. Ctrl-C ends the search and keeps the best so far."""
    problem = _parse(shape, dtype, out_dtype, layout)
    from cupygemm.search.rewards import RewardWeights
    from cupygemm.search.tune import Budget
    from cupygemm.search.tune_command import TuneRequest, run_tune

    unlimited = seconds is not None or options["strategy"] == "exhaustive"
    limits = Budget(budget or (None if unlimited else 100), seconds, stop_at_speedup)
    rewards = RewardWeights(l2_weight, spill_weight, l2_term)
    run_tune(TuneRequest(problem=problem, budget=limits, rewards=rewards, command=_command_line(), **options))


@main.command("record")
@click.argument("shapes", metavar="MxNxK...", nargs=-1, required=True)
@_shape_options
@click.option("--subspace", type=click.Choice(SUBSPACE_NAMES), default="core", show_default=True)
@click.option("--device", default="cuda:0", show_default=True, callback=_read_device, help="cuda or cuda:N.")
@click.option("-o", "--output", "folder", type=_FOLDER, required=True, help="Folder to write the tables in.")
@click.option("--commit", help="Commit to name in the provenance, where there is no git history.")
@click.option("--limit-seconds", type=click.FloatRange(min=0, min_open=True), help="Give up after this long.")
@click.option("--report", type=_PATH, help="JSON file for counts and rates.")
@click.option("--store", type=_PATH, help=f"{_STORE_HELP}.")
def record_command(
    shapes: tuple[str, ...], dtype: str, out_dtype: str | None, layout: str, device: int | str, **options: Any
) -> None:
    """Measure every config of a sub-space, for replaying later. Writes one table a problem, or none."""
    if isinstance(device, str):
        raise click.BadParameter("recording needs a GPU: cuda or cuda:N", param_hint="--device")
    problems = list(dict.fromkeys(_parse(shape, dtype, out_dtype, layout) for shape in shapes))
    from cupygemm.search.record_command import RecordRequest, run_record

    run_record(RecordRequest(problems=problems, device=device, command=_command_line(), **options))


@main.command("report")
@click.argument("documents", nargs=-1, type=_PATH)
@click.option("--results", type=_FOLDER, default="bench/results", show_default=True, help="Folder of recorded results.")
@click.option("--tables", type=_FOLDER, help=_TABLES_HELP)
@click.option("--write/--check", default=True, help="Write the documents, or fail if a block of one is out of date.")
def report_command(documents: tuple[Path, ...], results: Path, tables: Path | None, write: bool) -> None:
    """Write the generated blocks of Markdown DOCUMENTS anew. Without any: README.md, CONTRIBUTING.md and docs/*.md."""
    from cupygemm import blocks, command_help, report
    from cupygemm.search import knob_value

    recorded = report.read_results(results)
    renderers = {
        "results": lambda name: report.render(recorded.get(name)),
        "help": lambda name: command_help.render(main, name),
        "table": lambda name: knob_value.render(name, tables),
    }
    for path in documents or report.documents():
        click.echo(f"{path}: {blocks.update(path, renderers, write)}")


@main.command("bench")
@click.argument("targets", metavar="[SUITE | MxNxK...]", nargs=-1)
@_shape_options
@click.option("--bundle", type=_PATH, help="Whose configs. Default: CUPYGEMM_BUNDLE; without a config, cuBLAS runs.")
@click.option("--device", default="cuda:0", show_default=True, callback=_read_device, help="cuda or cuda:N.")
@click.option("--mode", "modes", type=click.Choice(MODE_NAMES), multiple=True, help="Repeatable. Default: both.")
@click.option("--commit", help="Commit to name in the provenance, where there is no git history.")
@click.option("-o", "--output", type=_PATH, help="JSON file for the rows.")
@click.option("--plot", type=_PATH, callback=_read_plot, help="Picture of the ratios, .png, .svg or .pdf.")
@click.option("--from", "recorded", type=_PATH, help="Show this JSON file in place of measuring.")
@click.option("--list", "list_suites", is_flag=True, help="Print the suites.")
@click.pass_context
def bench_command(
    ctx: click.Context, /, targets: tuple[str, ...], recorded: Path | None, list_suites: bool, **options: Any
) -> None:
    """Measure a suite, shapes or all problems of a bundle against cuBLAS and the best cublasLt algorithm."""
    if list_suites:
        for line in suites.listing():
            click.echo(line)
        return
    from cupygemm.bench_command import BenchRequest, run_bench, show_recorded

    if recorded is not None:
        _refuse(ctx, "with --from nothing is measured", {"recorded", "plot", "list_suites"})
        show_recorded(recorded, options["plot"])
        return
    if not targets or targets[0] in suites.SUITES:
        _refuse(ctx, "a suite and a bundle have their own", set(ctx.params) - {"dtype", "out_dtype", "layout"})
    try:
        problems, facts = suites.select(targets, *(options.pop(name) for name in ("dtype", "out_dtype", "layout")))
    except ProblemError as error:
        raise click.BadParameter(str(error), param_hint="SUITE or MxNxK") from error
    if isinstance(options["device"], str):
        raise click.BadParameter("measuring needs a GPU: cuda or cuda:N", param_hint="--device")
    options["modes"] = tuple(dict.fromkeys(options["modes"])) or MODE_NAMES
    run_bench(BenchRequest(problems=problems, facts=facts, command=_command_line(), **options))


def _refuse(ctx: click.Context, why: str, legal: set[str]) -> None:
    """Refuses options and arguments that were given and mean nothing here."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    extra = [param.get_error_hint(ctx) for param in ctx.command.params if param.name in set(given) - legal]
    if extra:
        raise click.UsageError(f"{', '.join(extra)}: {why}")


@main.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Say what works on this machine, and what to do where something does not. Exit status 1: something is broken."""
    from cupygemm.doctor_command import run_doctor

    if not run_doctor(SEARCH_PACKAGES, as_json):
        ctx.exit(1)


@main.command("explain")
@click.argument("shape", metavar="MxNxK")
@_shape_options
@click.option("--bundle", type=_PATH, help="Whose configs. Default: the bundle that CUPYGEMM_BUNDLE names.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain_command(
    shape: str, dtype: str, out_dtype: str | None, layout: str, bundle: Path | None, as_json: bool
) -> None:
    """Say what matmul would run for a problem, and why. Without a GPU, for the one that the bundle was measured on."""
    problem = _parse(shape, dtype, out_dtype, layout)
    from cupygemm.explain_command import run_explain

    run_explain(problem, bundle, as_json)


@main.group("export")
def export_group() -> None:
    """Write recorded tables for other programs."""


@export_group.command("kernel-tuner")
@click.argument("table", metavar="TABLE | MxNxK")
@_shape_options
@click.option("--tables", type=_FOLDER, help="Folder of recorded tables. Default: those of the package.")
@click.option("-o", "--output", type=_PATH, required=True, help="Cache file to write; its name must end in .json.")
def export_kernel_tuner(
    table: str, dtype: str, out_dtype: str | None, layout: str, tables: Path | None, output: Path
) -> None:
    """Write a recorded table as a cache file of Kernel Tuner, for its simulation mode."""
    if output.suffix != ".json":
        raise click.BadParameter(f"{output}: Kernel Tuner reads names that end in .json", param_hint="--output")
    path = Path(table)
    problem = None if path.name.endswith(TABLE_SUFFIX) else _parse(table, dtype, out_dtype, layout)
    from cupygemm.search.kernel_tuner_export import export
    from cupygemm.search.recorded import find_table
    from cupygemm.search.table import Table

    found = Table.read(path) if problem is None else find_table(problem, tables)
    export(found, output)
    click.echo(f"{output}: {count(len(found.rows), 'point')}, best {found.optimum_us:.2f} µs")


@main.group("bundle")
def bundle_group() -> None:
    """Look at bundles of tuned configs."""


@bundle_group.command("show")
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bundle_show(path: Path, as_json: bool) -> None:
    """Print what a bundle holds."""
    from cupygemm import bundle_view
    from cupygemm.bundle import Bundle

    bundle = Bundle.load(path)
    for line in [bundle_view.as_json(bundle)] if as_json else bundle_view.lines(bundle):
        click.echo(line)


@bundle_group.command("validate")
@click.argument("path", type=_PATH)
def bundle_validate(path: Path) -> None:
    """Check a bundle; say what is wrong and where."""
    from cupygemm.bundle import Bundle
    from cupygemm.bundle_check import findings

    bundle = Bundle.load(path)
    found = findings(bundle)
    if found:
        more = [f"and {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
        raise BundleError(f"{path}: {'; '.join(found[:MOST_FINDINGS] + more)}")
    click.echo(f"{path}: valid, {count(len(bundle.entries), 'entry', 'entries')}")


@bundle_group.command("merge")
@click.argument("paths", metavar="BUNDLE...", nargs=-1, required=True, type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Bundle to write.")
def bundle_merge(paths: tuple[Path, ...], output: Path) -> None:
    """Join bundles of one device and one version of the kernels; of two entries for a problem the better stays."""
    from cupygemm.bundle import Bundle, merged_all

    bundle = merged_all({path: Bundle.load(path) for path in paths})
    bundle.save(output)
    click.echo(f"{output}: {count(len(bundle.entries), 'entry', 'entries')} of {count(len(paths), 'bundle')}")


@main.group("cache")
def cache_group() -> None:
    """The compiled kernels on disk."""


@cache_group.command("show")
def cache_show() -> None:
    """Print where compiled kernels are kept, how many there are and how much room they take."""
    from cupygemm.kernel_cache import folder, kernels, size_bytes

    click.echo(f"{folder()}: {count(len(kernels()), 'kernel')}, {size_bytes() / 1e6:.1f} MB")


@cache_group.command("clear")
def cache_clear() -> None:
    """Delete all compiled kernels; those that are needed again are compiled again."""
    from cupygemm.kernel_cache import clear, folder

    click.echo(f"{folder()}: {count(clear(), 'kernel')} deleted")


def _parse(shape: str, dtype: str, out_dtype: str | None, layout: str) -> Problem:
    try:
        return Problem.parse(shape, dtype, out_dtype, layout)
    except ProblemError as error:
        raise click.BadParameter(str(error), param_hint="MxNxK") from error


def _command_line() -> str:
    return shlex.join(["cupygemm", *sys.argv[1:]])
