"""`tune`: a strategy asks, a runner measures, until the budget is spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from cupygemm.config import KernelConfig
from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement, Record, Status, paired_cost
from cupygemm.problem import Problem
from cupygemm.search.interruption import uninterrupted
from cupygemm.search.runners.runner import Confirming, Runner
from cupygemm.search.spaces.space import SearchSpace
from cupygemm.search.strategies import Strategy

CONFIRMED = 8
"""Configs that race at the end: the least of many noisy times is more often lucky than best."""
ALIKE = 2
"""Of these, at most, that have a tile and a way to share it in common, as long as there are others. The fastest few of
a search mostly do, and which kind is fastest depends on how long the GPU is kept busy: at 2048x2048x4096 tiles of
128x256 win the short runs of a search, and lose by 1% after half a second of load, when power sets the clock."""
NEAR = 1.1
"""Times the cost of the last of the fastest few: beyond that another kind of config cannot win, whatever a load
changes, and takes no place from a third of the same kind."""
BARREN_ASKS = 25
"""Asks in a row without a new config after which a strategy has nothing more to say."""

Timed = tuple[KernelConfig, Measurement]
_KIND = attrgetter("block_m", "block_n", "ping_pong", "cluster_k", "swap_ab")


@dataclass(frozen=True)
class Budget:
    """When to stop: at whichever comes first.

    Attributes:
        evaluations: different configs measured; None for no limit.
        seconds: wall time; a measurement under way is finished. None for no limit.
        stop_at_speedup: over cuBLAS; None to go on.

    Raises:
        ConfigError: a limit that is not positive.
    """

    evaluations: int | None = 100
    seconds: float | None = None
    stop_at_speedup: float | None = None

    def __post_init__(self) -> None:
        for name in ("evaluations", "seconds", "stop_at_speedup"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ConfigError(f"budget: {name} is {limit}: it must be more than 0")


@dataclass(frozen=True)
class Trial:
    """One evaluation as it ended.

    Attributes:
        index: counts from 0.
        best_us: least time so far, this one included, µs; None before the first.
    """

    index: int
    config: KernelConfig
    measurement: Measurement
    best_us: float | None


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run found.

    Attributes:
        best: the config that won when the fastest were measured again; None where nothing ran.
        trials: every evaluation, in order.
        failures: status → count, of what was not OK.
        seconds: wall time, confirmation included.
        stopped_by: "evaluations", "seconds", "speedup", "exhausted", "stagnation" or "interrupted".
    """

    best: Record | None
    trials: tuple[Trial, ...]
    failures: Counter[str]
    seconds: float
    stopped_by: str


def tune(
    problem: Problem,
    space: SearchSpace,
    strategy: Strategy,
    runner: Runner,
    budget: Budget,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> TuneResult:
    """Searches for the fastest config. Ctrl-C ends the search early and still returns the best so far.

    A config is measured once: when the strategy asks for it again it is told what was found, at no cost.

    Args:
        problem: what is to be computed.
        space: where to look; the strategy proposes from it.
        strategy: proposes and learns.
        runner: measures.
        budget: when to stop.
        on_trial: called after each evaluation.
    """
    run = _Run(problem, space, runner, budget, on_trial)
    try:
        stopped_by = _search(run, strategy)
        best = _confirm(run)
    except KeyboardInterrupt:
        stopped_by = "interrupted"
        best = run.fastest(1)
    record = Record(problem, *best[0]) if best else None
    failures = Counter(t.measurement.status.value for t in run.trials if t.measurement.status is not Status.OK)
    return TuneResult(record, tuple(run.trials), failures, run.seconds, stopped_by)


@dataclass
class _Run:
    """A search under way: what it was given, and what is known so far."""

    problem: Problem
    space: SearchSpace
    runner: Runner
    budget: Budget
    on_trial: Callable[[Trial], None]
    known: dict[KernelConfig, Measurement] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    best_us: float | None = None
    best_speedup: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def spent(self) -> str | None:
        """The limit that has been reached, if any."""
        budget = self.budget
        if budget.evaluations is not None and len(self.trials) >= budget.evaluations:
            return "evaluations"
        if budget.stop_at_speedup is not None and self.best_speedup >= budget.stop_at_speedup:
            return "speedup"
        if budget.seconds is not None and self.seconds >= budget.seconds:
            return "seconds"
        if self.space.size is not None and len(self.known) >= self.space.size:
            return "exhausted"
        return None

    def evaluate(self, configs: Sequence[KernelConfig]) -> None:
        """Measures configs, none of them known, until they or the budget end."""
        measurements = self.runner.run(self.problem, configs)
        for config, measurement in zip(configs, measurements, strict=True):
            self._learn(config, measurement)
            if self.spent():
                _close(measurements)
                return

    def fastest(self, most: int) -> list[Timed]:
        """The configs of the least cost, ascending."""
        timed = [(cost, config) for config, measurement in self.known.items() if (cost := measurement.cost) is not None]
        return [(config, self.known[config]) for _, config in sorted(timed)[:most]]

    def _learn(self, config: KernelConfig, measurement: Measurement) -> None:
        self.known[config] = measurement
        us = measurement.us
        if us is not None:
            self.best_us = us if self.best_us is None else min(us, self.best_us)
            self.best_speedup = max(self.best_speedup, measurement.speedup or 0.0)
        trial = Trial(len(self.trials), config, measurement, self.best_us)
        self.trials.append(trial)
        self.on_trial(trial)


def _search(run: _Run, strategy: Strategy) -> str:
    """Asks, measures and tells until a limit is reached, and names it."""
    barren = 0
    while (limit := run.spent()) is None:
        with uninterrupted():
            asked = strategy.ask()
        if not asked:
            return "exhausted"
        new = [config for config in dict.fromkeys(asked) if config not in run.known]
        barren = 0 if new else barren + 1
        if barren >= BARREN_ASKS:
            return "stagnation"
        run.evaluate(_affordable(new, run))
        if all(config in run.known for config in asked):
            with uninterrupted():
                strategy.tell(asked, [run.known[config] for config in asked])
    return limit


def _affordable(configs: list[KernelConfig], run: _Run) -> list[KernelConfig]:
    if run.budget.evaluations is None:
        return configs
    return configs[: run.budget.evaluations - len(run.trials)]


def _confirm(run: _Run) -> list[Timed]:
    """The winner: of the finalists, measured again, the one of the least cost of those measured longest."""
    finalists = _finalists(run.fastest(len(run.known)))
    if not finalists or not isinstance(run.runner, Confirming):
        return finalists
    configs = [config for config, _ in finalists]
    again = zip(configs, run.runner.confirm(run.problem, configs), strict=True)
    confirmed = [(_place(found), config, found) for config, found in again if found.us is not None]
    # Where none can be measured again (a device lost at the end), what was verified in the search still stands.
    return [(config, measurement) for _, config, measurement in sorted(confirmed, key=lambda c: c[:2])] or finalists


def _finalists(ranked: Sequence[Timed]) -> list[Timed]:
    """The fastest: first those `NEAR` the fastest few, of each kind `ALIKE` at most, then whoever is left."""
    few = [measurement.cost or 0.0 for _, measurement in ranked[:CONFIRMED]]
    most = NEAR * max(few, default=0.0)
    seen: Counter[tuple[int | bool, ...]] = Counter()
    first: list[Timed] = []
    others: list[Timed] = []
    for config, measurement in ranked:
        seen[_KIND(config)] += 1
        is_first = seen[_KIND(config)] <= ALIKE and (measurement.cost or 0.0) <= most
        (first if is_first else others).append((config, measurement))
    kept = {config for config, _ in [*first, *others][:CONFIRMED]}
    return [timed for timed in ranked if timed[0] in kept]


def _place(found: Measurement) -> tuple[int, float]:
    """Orders what was measured again: what stayed in the race before what was given up, then by the paired cost."""
    return -len(found.samples_us), paired_cost(found.samples_us, found.baseline_us)


def _close(measurements: Iterable[Measurement]) -> None:
    """Tells a runner's generator at once that no more is wanted, so that it stops its processes."""
    close = getattr(measurements, "close", None)
    if close is not None:
        close()
