"""What `cupygemm tune` does: target, store, search, bundle, and what is said of them."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from cupygemm.bundles.bundle import SearchInfo
from cupygemm.commands.tune_event import result_event
from cupygemm.commands.tune_strategy import IMPORTING, Guidance, Watched, choose_strategy, find_guidance
from cupygemm.commands.tune_view import TuneView, counts, make_view
from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError, FileError, LaunchError
from cupygemm.kernels import driver
from cupygemm.measurement import Record
from cupygemm.names import LEARNING, SEEDED
from cupygemm.problem import Problem
from cupygemm.search.bundle_file import BundleFile
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.seeds import seeds
from cupygemm.search.store import TrialStore, default_store
from cupygemm.search.strategies import Strategy, StrategyContext, make_strategy
from cupygemm.search.target import Target, replay_target
from cupygemm.search.tune import Budget, Trial, TuneResult, tune
from cupygemm.text import one_line, printable


@dataclass(frozen=True)
class TuneRequest:
    """What was asked of `cupygemm tune`.

    Attributes:
        problem, seed, budget: of the search.
        strategy: its name; None for what is known to find most here.
        device: index of a CUDA device, "replay", or "auto" for the first Hopper GPU and replay where there is none.
        output: the bundle to add to.
        store: where trials go; None for the default, which is nowhere on replay.
        tables: folder of recorded tables; None for those of the package.
        policy: file of weights; None for the policy of the package.
        cold: begin with nothing known, not with the best configs of recorded problems.
        rewards: what learning strategies maximise.
        counters: count the L2 figures on a GPU, where that can be done.
        as_json: JSON lines, not words.
        command: the command line, for the provenance.
    """

    problem: Problem
    strategy: str | None
    seed: int
    budget: Budget
    device: int | str
    output: Path | None
    store: Path | None
    tables: Path | None
    policy: Path | None
    cold: bool
    rewards: RewardWeights
    counters: bool
    as_json: bool
    command: str


def run_tune(request: TuneRequest) -> None:
    """Searches, shows how it goes, and puts the best in the bundle. Ctrl-C ends the search and keeps the best so far.

    Raises:
        CupygemmError: it could not be done; what was found has been shown all the same.
        KeyboardInterrupt: interrupted before any config had a time.
    """
    target = _open_target(request)
    try:
        _tune(request, target)
    finally:
        target.runner.close()


def _open_target(request: TuneRequest) -> Target:
    if isinstance(request.device, int):
        return _gpu_target(request, request.device)
    if request.device == "replay":
        return replay_target(request.problem, request.tables)
    found = driver.hopper_devices()
    if found:
        return _gpu_target(request, found[0])
    try:
        return replay_target(request.problem, request.tables)
    except FileError as error:
        remedy = "name a problem that is recorded, or tune this one where there is a Hopper GPU"
        raise FileError(f"{_why_replayed()}, and nothing to replay: {error}; {remedy}") from error


def _why_replayed() -> str:
    why = driver.why_not_asked()
    return "no Hopper GPU found" if why is None else f"no GPU was looked for: {why}"


def _gpu_target(request: TuneRequest, index: int) -> Target:
    try:
        driver.device_spec(index)
    except LaunchError as error:
        instead = "--device replay answers for recorded problems, which `cupygemm bench --list recorded` prints"
        raise LaunchError(f"{error}; {instead}") from error
    from cupygemm.search.gpu_target import gpu_target  # imports pebble, which a replay does without

    return gpu_target(request.problem, index, request.command, request.counters)


def _tune(request: TuneRequest, target: Target) -> None:
    output = None if request.output is None else BundleFile(request.output, target)
    if output is not None and (why := output.replaces(request.problem)) is not None:
        _warn(f"{output.path}: its entry for {request.problem} {why} and will be replaced")
    view = make_view(click.echo, request.as_json, _expected(request, target))
    guidance = Guidance(None, "")
    seeded = request.strategy in (None, *SEEDED)
    if seeded:
        guidance = find_guidance(request.problem, target, request.policy, request.cold)
    chosen = choose_strategy(request.strategy, guidance)
    known = _known(request, target, guidance.guide) if seeded and not request.cold else ()
    context = StrategyContext(target.space, request.seed, known, request.rewards, guidance.guide)
    strategy = _strategy(chosen.strategy, context, view)
    store = _open_store(request, target)
    if request.device == "auto" and target.recorded is not None:
        view.note(f"{_why_replayed()}: replaying times recorded on {printable(target.device.name)}")
    _warn(printable(str(chosen)))
    with nullcontext() if store is None else closing(store):
        log = _TrialLog(store, target, request.problem)

        def on_trial(trial: Trial) -> None:
            log.add(trial)
            view.add(trial)

        with view.running():
            result = tune(request.problem, target.space, strategy, target.runner, request.budget, on_trial)
    search = SearchInfo(strategy=chosen.strategy, seed=request.seed, evaluations=len(result.trials))
    _finish(request.problem, target, output, view, result, search)


def _known(request: TuneRequest, target: Target, guide: Guide | None) -> tuple[KernelConfig, ...]:
    """What the search begins with."""
    return tuple(seeds(request.problem, target.device, request.tables, target.recorded is not None, guide))


def _strategy(name: str, context: StrategyContext, view: TuneView) -> Strategy:
    """A strategy, ready to be asked; what takes long of one that learns is shown."""
    if name not in LEARNING:
        return make_strategy(name, context)
    with view.busy(IMPORTING):
        strategy = make_strategy(name, context)
    return Watched(strategy, view)


def _finish(
    problem: Problem,
    target: Target,
    output: BundleFile | None,
    view: TuneView,
    result: TuneResult,
    search: SearchInfo,
) -> None:
    saved = None
    try:
        if output is not None and result.best is not None:
            saved = output.add(result.best, search)
    finally:  # A search that cannot be saved is shown before the error that says so.
        view.end(result_event(problem, target, result, search, saved))
    if result.best is None:
        if result.stopped_by == "interrupted":
            raise KeyboardInterrupt
        raise ConfigError(f"no config of {problem} ran on {target.runner.device}: {counts(result.failures)}")


def _expected(request: TuneRequest, target: Target) -> int | None:
    limits = [limit for limit in (request.budget.evaluations, target.space.size) if limit is not None]
    return min(limits, default=None)


def _open_store(request: TuneRequest, target: Target) -> TrialStore | None:
    """Where trials go: as asked for; else the default, which a search can do without and replay leaves out."""
    if request.store is not None:
        return TrialStore(request.store)
    if target.recorded is not None:
        return None  # answers from a table, which is stored already
    try:
        return TrialStore(default_store())
    except FileError as error:
        _warn(f"{one_line(error)}; going on without")
        return None


class _TrialLog:
    """Puts trials in a store for as long as it takes them: a full disk does not end a search."""

    def __init__(self, store: TrialStore | None, target: Target, problem: Problem) -> None:
        self._store, self._target, self._problem = store, target, problem

    def add(self, trial: Trial) -> None:
        if self._store is None:
            return
        record = Record(self._problem, trial.config, trial.measurement, self._target.provenance)
        try:
            self._store.append(record, self._target.runner.device)
        except FileError as error:
            _warn(f"{one_line(error)}; going on without")
            self._store = None


def _warn(text: str) -> None:
    click.echo(text, err=True)
