"""A hundred shapes of the grid, which no table has: for each the best of at most 64 configs, found in this one run.

    python -m bench.grid --survey bench/results/survey.jsonl -o bench/results/grid_sample.json --bundle tuned.yaml

First come 36 configs by turns: what a survey found best for the problems most like it, suggestions of the policy that
ships, what bench/steps.py names for such problems, and guesses by the estimate. Then, twice, come neighbours of the two
that are fastest so far, a step in one knob away, those first that are the same kernel told otherwise. The three that
are fastest in a short run are measured with the baselines as everything that is reported is, and the best of them gets
the row. docs/grid.md has what came of it.

    python -m bench.grid splitk small --start cupygemm/bundles/h200.yaml --generations 4 -o climbed.json

searches other suites in the same way, beginning with what a bundle has for their problems: what is left to gain there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from bench.command import command_line
from bench.relatives import Best, bests, relatives
from bench.rows import over_cublas
from bench.steps import Steps, proven
from bench.timed_steps import fastest, keep, legal_steps, measured, ready
from cupygemm.bundles.bundle import Bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.suites import SUITES
from cupygemm.names import ROTATED
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.seeds import by_turns
from cupygemm.search.space import SearchSpace
from cupygemm.search.suggest import suggestions

SUITE = "grid_sample"
SEARCHED = (SUITE, "headline", "squares", "short_k", "ragged", "small", "splitk", "skinny")
"""Suites of plain products."""
BEFOREHAND = 36
"""Configs that are tried before anything is measured."""
GENERATIONS, NEIGHBOURS = 2, 14
"""How often neighbours of the fastest are tried, and how many each time."""
TRIED = BEFOREHAND + GENERATIONS * NEIGHBOURS
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


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(SEARCHED))
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
    help="A bundle whose config for a problem is tried as well. Repeatable.",
)
@click.option("--generations", type=int, default=GENERATIONS, show_default=True, help="Of neighbours.")
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
    """Searches and measures the problems of SUITES, by default of grid_sample."""
    known = bests(surveys)
    started = started_with([Bundle.load(path) for path in starts])
    chosen = [problem for suite in suites or (SUITE,) for problem in SUITES[suite].problems]
    problems = [problem for problem in dict.fromkeys(chosen) if not shapes or problem.shape in shapes]
    command = command_line("bench.grid")
    facts = provenance.collect(0, command, commit)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    with holding_gpu(0):
        for first in range(0, len(problems), AT_ONCE):
            group = {
                problem: beforehand(problem, known, started.get(problem, ()))
                for problem in problems[first : first + AT_ONCE]
            }
            tried = dict(group)
            for _ in range(generations):
                _compile(group)
                for problem, steps in group.items():
                    ranked = _ranked(problem, steps, failures)
                    group[problem] = next_run(problem, tried[problem], ranked)
                    tried[problem] = tried[problem] | group[problem]
            _compile(group)
            for problem, steps in group.items():
                bench = Bench(problem)
                launches, errors = ready(bench, steps, False, failures)
                last = fastest(bench, launches, FINALISTS)
                found = list(measured(bench, steps, last, errors, ROTATED, False))
                if not found:
                    continue
                best, number = max(found, key=over_cublas), len(tried[problem])
                click.echo(f"{problem} {over_cublas(best):.3f} of cuBLAS, of {number}: {best['step']}")
                rows.append(best)
                write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
                if bundle_path is not None:
                    keep(bundle_path, problem, best, number, facts, strategy="grid")
    if len(rows) < len(problems):
        sys.exit(1)


def started_with(bundles: Iterable[Bundle]) -> dict[Problem, list[KernelConfig]]:
    """What bundles have for each problem."""
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
        started: what is to be among it.
    """
    orders = by_turns(
        started,
        relatives(problem, known, RELATIVES),
        suggestions(problem, H200, SUGGESTED),
        proven(problem),
        guesses(problem, H200, BEFOREHAND),
    )
    legal = legal_steps(problem, {named(config): config for config in orders})
    return dict(islice(legal.items(), BEFOREHAND))


def next_run(problem: Problem, tried: Steps, ranked: Sequence[str]) -> Steps:
    """The fastest of a run, and neighbours of the very fastest that were not tried yet.

    Args:
        problem: that is searched.
        tried: all until now, by name.
        ranked: names of those that ran last, the fastest first.
    """
    space = SearchSpace.for_problem(problem, H200)
    parents = [tried[name] for name in ranked if space.is_legal(tried[name])][:PARENTS]
    around = by_turns(*(_neighbours(parent, space) for parent in parents))
    new = legal_steps(problem, {named(config): config for config in around if config not in tried.values()})
    again = {name: tried[name] for name in ranked[:AGAIN]}
    return again | dict(islice(new.items(), NEIGHBOURS))


def _neighbours(parent: KernelConfig, space: SearchSpace) -> list[KernelConfig]:
    """Those first that are the same kernel told otherwise at launch, those last that differ in what hardly matters."""
    compiled = parent.compiled()

    def rank(config: KernelConfig) -> int:
        differing = {name for name, value in config.compiled().items() if value != compiled[name]}
        return 2 if differing & HARDLY_MATTERS else 1 if differing else 0

    return sorted(space.neighbours(parent), key=rank)


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
    return f"{tile}, {how}, {told}{copied}{registers}"


NAMED_REGISTERS = 40
"""Of a producer, where a name does not say how many."""


def _compile(group: dict[Problem, Steps]) -> None:
    # What cannot be compiled, `ready` meets again, and says so.
    compile_ahead((KernelSpec.of(problem), config) for problem, steps in group.items() for config in steps.values())


def _ranked(problem: Problem, steps: Steps, failures: list[dict[str, Any]]) -> list[str]:
    """The names of those that run, the fastest in a short run first."""
    bench = Bench(problem)
    launches, _ = ready(bench, steps, False, failures)
    return list(fastest(bench, launches, len(launches)))


if __name__ == "__main__":
    main()
