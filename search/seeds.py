"""Configs to begin with: what was best for problems that are recorded, and what is estimated to be good.

A table of another shape does not say what is best here, but it knows which corners of so many points are any
good. On a GPU the table of the problem itself comes first, if there is one; on replay it is left out, so that a search
is never told its answer. Guesses are for GPUs only: they are not made for what a table holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from importlib.resources.abc import Traversable

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.recordings.recorded import Recorded, recorded_tables
from cupygemm.search.recordings.table import Table

GUESSES = 8
"""Half of what a strategy that is started measures first (`strategies.MOST_STARTS`): the tables' configs know
less than an estimate of products that none of them is like. Of both, shares were not compared."""
SUGGESTED = 16
"""Of a policy: as many as a strategy measures first (`strategies.MOST_STARTS`)."""
PER_TABLE = 3
"""Configs taken from each table, of different tiles."""
SOONER = 4
"""Of those, the first ones also as kernels that begin sooner: guesses do not have them, nor do most tables."""
SOON_ENOUGH = 1e10
"""FLOPs from which on an earlier start gains nothing (docs/small.md)."""
NEAREST = 6
"""Tables that they are taken from: reading one takes a third of a second, and no strategy begins with more configs."""


def seeds(
    problem: Problem,
    device: DeviceSpec,
    folder: Traversable | None = None,
    replayed: bool = True,
    guide: Guide | None = None,
) -> tuple[KernelConfig, ...]:
    """Configs to begin a search with, the most promising first.

    Args:
        problem, device: what is to be computed, and where.
        folder: of tables; None for those that ship with the package.
        replayed: whether the search is answered from a table.
        guide: a policy that has not learnt from the problem; its suggestions take turns with the others.

    Raises:
        FileError: there is no such folder, or a table in it cannot be read.
    """
    recorded = recorded_seeds(problem, folder, replayed)
    if replayed:
        return known_from_others(guide, recorded)
    known = known_from_others(guide, recorded, guesses(problem, device, GUESSES))
    return by_turns(known, sooner(problem, device, known[:SOONER]))


def known_from_others(guide: Guide | None, *orders: Iterable[KernelConfig]) -> tuple[KernelConfig, ...]:
    """What a policy suggests first, if there is one, and other orders of configs by turns."""
    return by_turns([] if guide is None else guide.ranked(SUGGESTED), *orders)


def sooner(problem: Problem, device: DeviceSpec, configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """The same tiles with two stages copied by the consumers; of a large product, or where that is illegal, none.

    Args:
        problem, device: what is to be computed, and where.
        configs: any.
    """
    if problem.flops > SOON_ENOUGH:
        return []
    spec = KernelSpec.of(problem)
    found = [config.copying() for config in configs]
    return [config for config in dict.fromkeys(found) if illegal_reason(config, spec, device) is None]


def by_turns(*orders: Iterable[KernelConfig]) -> tuple[KernelConfig, ...]:
    """The first of each order, then the second of each, and so on; each config once."""
    turns = itertools.zip_longest(*orders)
    return tuple(dict.fromkeys(config for turn in turns for config in turn if config is not None))


def recorded_seeds(
    problem: Problem, folder: Traversable | None = None, replayed: bool = True
) -> tuple[KernelConfig, ...]:
    """The best configs of the nearest recorded problems, those of the nearest one first.

    Args:
        problem: what is to be computed.
        folder: of tables; None for those that ship with the package.
        replayed: whether the search is answered from the table of the problem, which is then not looked at.

    Raises:
        FileError: there is no such folder, or a table in it cannot be read.
    """
    tables = [table for table in recorded_tables(folder) if not (replayed and table.problem == problem)]
    return best_of_nearest(problem, tables)


def best_of_nearest(
    problem: Problem, tables: Iterable[Recorded], read: Callable[[Traversable], Table] = Table.read
) -> tuple[KernelConfig, ...]:
    """The best configs of tables, those of the nearest problem first.

    Args:
        problem: to which they are near.
        tables: to choose from.
        read: reads a table; whoever asks often may remember them.

    Raises:
        FileError: a table cannot be read.
    """
    nearest = sorted(tables, key=lambda table: (_distance(table.problem, problem), table.problem, table.device.name))
    seeds = (config for recorded in nearest[:NEAREST] for config in _best(read(recorded.path)))
    return tuple(dict.fromkeys(seeds))


def _distance(one: Problem, other: Problem) -> float:
    """Between sizes, on a logarithmic scale; another dtype or layout counts as a factor of 1.4 in one size."""
    sizes = zip((one.m, one.n, one.k), (other.m, other.n, other.k), strict=True)
    unlike = (one.a_dtype != other.a_dtype) + (one.out_dtype != other.out_dtype) + (one.layout != other.layout)
    return sum(math.log2(a / b) ** 2 for a, b in sizes) + 0.25 * unlike


def _best(table: Table) -> Iterable[KernelConfig]:
    """The fastest config of a table, and the fastest of each of the next best tiles."""
    timed = [(us, config) for config, us in table.times_us.items() if us is not None]
    by_tile: dict[tuple[int, int], KernelConfig] = {}
    for _, config in sorted(timed):
        by_tile.setdefault((config.block_m, config.block_n), config)
    return list(by_tile.values())[:PER_TABLE]
