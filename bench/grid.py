"""A hundred shapes of the grid: for each the best of at most 64 configs, found in one run.

    python -m bench.grid --survey bench/results/survey.jsonl -o bench/results/grid_sample.json --bundle tuned.yaml

First come 36 configs by turns: what a survey found best for the problems most like it, suggestions of the policy that
ships, what shared/steps.py names for such problems, guesses, also as kernels that begin sooner, and some of these with
A and B swapped. Then, twice, come 14 neighbours of the two that are fastest so far, a step in one knob away: by turns
the same kernel told otherwise, and another kernel. The three that are fastest in a short run are measured with the
baselines as everything that is reported is, and the best of them gets the row. docs/grid.md has what came of it.

    python -m bench.grid splitk small --start cupygemm/bundles/h200.yaml --generations 4 -o climbed.json

searches other suites in the same way, 14 configs more with each generation, from what a bundle has for their problems.
That is measured beside what is found, and gets a row of its own.

Candidates run in this process: a fault or a hang ends it, and what was written stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click

from bench.shared.command import Program, command_line
from bench.shared.relatives import Best, bests, relatives
from bench.shared.rows import over_cublas
from bench.shared.steps import Steps, proven
from bench.shared.timed_steps import Failures, fastest, keep, legal, measured, problems_of, ready
from cupygemm.bundles.bundle import Bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.measurement import Status
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.suites import select
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.policy.suggest import suggestions
from cupygemm.search.seeds import by_turns, sooner
from cupygemm.search.spaces.space import FULL_KNOBS

SUITE = "grid_sample"
SEARCHED = (SUITE, "headline", "squares", "short_k", "ragged", "layouts", "small", "splitk", "skinny", "tokens")
"""Suites of plain products."""
BEFOREHAND = 36
"""Configs that are tried before anything is measured."""
GENERATIONS, NEIGHBOURS = 2, 14
"""How often neighbours of the fastest are tried, and how many each time."""
RELATIVES, SUGGESTED = 10, 16
PARENTS = 2
FINALISTS = 3
"""That are measured thoroughly: those that are fastest in a short run."""
HARDLY_MATTERS = {"producer_registers", "wait_depth"}
"""Knobs (docs/kernel.md)."""
AGAIN = 8
"""Of a run, that are in the next one beside their neighbours: times of two runs do not compare."""
AT_ONCE = 20
"""Problems whose kernels are compiled together, so that rows are written long before the end."""
NAMED_REGISTERS = 40
"""Of a producer, where a name does not say how many."""


@click.command(cls=Program)
@click.argument("suites", nargs=-1, type=click.Choice(SEARCHED), metavar="[SUITE]...")
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the problems. Repeatable.")
@click.option(
    "--survey",
    "surveys",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Tries what was best there for such problems. Repeatable.",
)
@click.option(
    "--start",
    "starts",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="A bundle whose config for a problem is tried first, and measured beside what is found. Repeatable.",
)
@click.option(
    "--generations", type=click.IntRange(min=0), default=GENERATIONS, show_default=True, help="Of neighbours."
)
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the fastest configs.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    surveys: tuple[Path, ...],
    starts: tuple[Path, ...],
    generations: int,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Searches and measures the problems of suites of plain products, by default of grid_sample.

    Ends with status 1 where a kernel computed something wrong or a problem has no row. What could not be compiled or
    launched is listed as a failure in the file, and is part of a search.
    """
    problems = problems_of(suites or (SUITE,), shapes)
    known, started = bests(surveys), started_with(Bundle.load(path) for path in starts)
    command = command_line("bench.grid")
    facts = provenance.collect(0, command, commit)
    told = {} if len(suites) > 1 else select(suites or (SUITE,))[1]
    rows: list[dict[str, Any]] = []
    failures: Failures = []
    missed = 0
    with holding_gpu(0):
        for first in range(0, len(problems), AT_ONCE):
            group = [Search.of(each, known, started.get(each, ())) for each in problems[first : first + AT_ONCE]]
            for _ in range(generations):
                compile_ahead(kernel for search in group for kernel in search.kernels())
                for search in group:
                    search.go_on(failures)
            compile_ahead(kernel for search in group for kernel in search.kernels())
            for search in group:
                found = search.end(failures)
                missed += not found
                rows += found
                write_results(output, times_document(output.stem, command, facts, rows, failures=failures, **told))
                for row in found:
                    click.echo(
                        f"{search.problem} {over_cublas(row):.3f} of cuBLAS, of {len(search.ran)}: {row['step']}"
                    )
                if found and bundle_path is not None:
                    search.ship(found, bundle_path, facts)
    if missed or any(failure["status"] == Status.WRONG_RESULT for failure in failures):
        sys.exit(1)


@dataclass
class Search:
    """The search of one problem.

    Attributes:
        problem: that is searched.
        start: names of configs that were given.
        tried: all until now, by name.
        run: those of `tried` that are timed next, beside each other.
        ran: names of those that could be.
    """

    problem: Problem
    start: tuple[str, ...]
    tried: Steps
    run: Steps
    ran: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, problem: Problem, known: Sequence[Best], started: Sequence[KernelConfig] = ()) -> Search:
        """A search that has tried nothing.

        Args:
            problem: that is searched.
            known: what was best for other problems.
            started: what is tried first.
        """
        steps = beforehand(problem, known, started)
        start = tuple(named(config) for config in legal(problem, started))
        return cls(problem, start, steps, steps)

    def kernels(self) -> Iterator[tuple[KernelSpec, KernelConfig]]:
        """What has to be compiled for the next run; what cannot be, the run meets again, and says so."""
        return ((KernelSpec.of(self.problem), config) for config in self.run.values())

    def go_on(self, failures: Failures) -> None:
        """Times the run, and chooses the next one.

        Raises:
            LaunchError, VerificationError: as of `ready`.
        """
        bench = Bench(self.problem)
        launches, _ = ready(bench, self.run, False, failures)
        self.ran |= launches.keys()
        ranked = list(fastest(bench, launches, len(launches))) if launches else []
        kept = dict.fromkeys([*ranked[:AGAIN], *(name for name in self.start if name in launches)])
        new = untried(self.problem, self.tried, ranked)
        self.run = {name: self.tried[name] for name in kept} | new
        self.tried = self.tried | new

    def end(self, failures: Failures) -> list[dict[str, Any]]:
        """The row of the best config, given or found, and those of what was given besides; none where nothing runs.

        Raises:
            LaunchError, VerificationError: as of `ready`.
        """
        bench = Bench(self.problem)
        launches, errors = ready(bench, self.run, False, failures)
        self.ran |= launches.keys()
        if not launches:
            return []
        given = {name: launches[name] for name in self.start if name in launches}
        last = fastest(bench, launches, FINALISTS) | given
        found = sorted(measured(bench, self.run, last, errors, ROTATED, False), key=over_cublas, reverse=True)
        return [
            {**row, "given": index > 0, "tried": len(self.ran)}
            for index, row in enumerate(found)
            if index == 0 or row["step"] in given
        ]

    def ship(self, found: Sequence[dict[str, Any]], path: Path, facts: dict[str, Any]) -> None:
        """Writes the best row of `end` into a bundle, unless its entry is as good.

        An entry that was measured beside it is compared by that, and not by what it says, which is of another run.
        """
        entry = Bundle.load(path).entry(self.problem) if path.exists() else None
        best = found[0]
        beside = [row for row in found if entry is not None and row["config"] == entry.config.to_dict()]
        if not beside:
            keep(path, self.problem, best, len(self.ran), facts, strategy="grid")
        elif over_cublas(best) > over_cublas(beside[0]) * (1 + _spread(best) + _spread(beside[0])):
            keep(path, self.problem, best, len(self.ran), facts, strategy="grid", in_any_case=True)


def started_with(bundles: Iterable[Bundle]) -> dict[Problem, list[KernelConfig]]:
    """What bundles have for each problem, in their order."""
    found: dict[Problem, list[KernelConfig]] = {}
    for bundle in bundles:
        for entry in bundle.entries:
            found.setdefault(entry.problem, []).append(entry.config)
    return found


def beforehand(problem: Problem, known: Sequence[Best], started: Sequence[KernelConfig] = ()) -> Steps:
    """What is tried before anything is measured, by name.

    Args:
        problem: that is searched.
        known: what was best for other problems.
        started: what is among it in any case.
    """
    alike, steps = relatives(problem, known, RELATIVES), proven(problem)
    guessed = guesses(problem, H200, BEFOREHAND)
    mirrored = [config.mirrored() for config in by_turns(started, alike, steps)]
    orders = by_turns(
        alike,
        suggestions(problem, H200, SUGGESTED),
        steps,
        guessed,
        sooner(problem, H200, by_turns(guessed, mirrored, alike)),
        mirrored,
    )
    return {named(config): config for config in islice(legal(problem, [*started, *orders]), BEFOREHAND)}


def untried(problem: Problem, tried: Steps, ranked: Sequence[str]) -> Steps:
    """Neighbours of the very fastest that were not tried yet, by name.

    Args:
        problem: that is searched.
        tried: all until now, by name.
        ranked: names of those that ran last, the fastest first.
    """
    around = by_turns(*(neighbours(problem, tried[name]) for name in ranked[:PARENTS]))
    new = (config for config in legal(problem, around) if config not in tried.values())
    return {named(config): config for config in islice(new, NEIGHBOURS)}


def neighbours(problem: Problem, parent: KernelConfig) -> tuple[KernelConfig, ...]:
    """Configs a step in one knob away, legal or not: by turns the same kernel told otherwise, and another kernel.

    A step is to the next value below or above, or to any that is no size or count; with A and B swapped tiles stay what
    they are, and a kernel that copies its first stages gives up what such kernels do not have. Those come last that
    differ in what hardly matters.
    """
    told: list[KernelConfig] = []
    others: list[KernelConfig] = []
    hardly: list[KernelConfig] = []
    compiled = parent.compiled()
    for knob in FULL_KNOBS:
        if knob.name == "swap_ab":
            others.insert(0, parent.mirrored())
            continue
        if knob.name == "cp_async_stages" and not parent.cp_async_stages:
            others[:0] = sooner(problem, H200, [parent])
            continue
        here = getattr(parent, knob.name)
        if knob.ordered:
            below, above = [each for each in knob.values if each < here], [each for each in knob.values if each > here]
            values = [*below[-1:], *above[:1]]
        else:
            values = [each for each in knob.values if each != here]
        kind = hardly if knob.name in HARDLY_MATTERS else others if knob.name in compiled else told
        kind += [parent.swapped(**{knob.name: value}) for value in values]
    return by_turns(told, [*others, *hardly])


def named(config: KernelConfig) -> str:
    """A config in words: what tells those apart that are tried."""
    c = config
    tile = f"{c.block_m}x{c.block_n}x{c.block_k}, {c.stages} stages, cluster {c.cluster_m}x{c.cluster_n}x{c.cluster_k}"
    divided = "by turns" if c.ping_pong else "dividing columns" if c.split_n else ""
    how = f"{c.consumers} consumers {divided}".rstrip() + f", depth {c.wait_depth}, {c.store_stages} buffers"
    order = "" if c.raster_along_n else " along m"
    told = f"group {c.group}{order}, L2 {c.l2_promotion} {c.keep_a} {c.keep_b} {c.keep_out}, {c.prefetch} prefetched"
    copied = f", {c.cp_async_stages} copied" if c.cp_async_stages else ""
    registers = f", {c.producer_registers} registers" if c.producer_registers != NAMED_REGISTERS else ""
    swapped = ", A and B swapped" if c.swap_ab else ""
    return f"{tile}, {how}, {told}{copied}{registers}{swapped}"


def _spread(row: Mapping[str, Any]) -> float:
    """Of the ratio to cuBLAS."""
    return float(row["ratio_spread"] or 0.0)


if __name__ == "__main__":
    main()
