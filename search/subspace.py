"""Spaces small enough to measure every point of: `SubSpace`, its knobs and its own restrictions beside legality.

A recorded table is exhaustive over one of these. A restriction leaves out points that differ in nothing that matters,
or that are known to be poor, or that would make the table too long; each has a name and says which, and the table's
header keeps both with the number of points it cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cupygemm.config import KernelConfig, KernelSpec, Violation, stage_bytes, violation
from cupygemm.device import DeviceSpec
from cupygemm.names import CORE
from cupygemm.problem import Problem
from cupygemm.search.space import Knob, SearchSpace, completed


@dataclass(frozen=True)
class Restriction:
    """A reason, other than legality, to leave a config out of a sub-space.

    Attributes:
        rule: short name, unique among `RESTRICTIONS`.
        reason: why these points are left out.
        excludes: whether the config is left out.
    """

    rule: str
    reason: str
    excludes: Callable[[KernelConfig, KernelSpec], bool]


@dataclass(frozen=True)
class SubSpace:
    """A declared part of the full space.

    Attributes:
        name: key in `SUBSPACES`.
        knobs: one for each config field.
        restrictions: asked after legality, in this order.
    """

    name: str
    knobs: tuple[Knob, ...]
    restrictions: tuple[Restriction, ...] = ()

    def exclusion(self, config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
        """The rule that keeps a point of the product out, with its reason; None for a point that has to be measured."""
        illegal = violation(config, spec, device)
        if illegal is not None:
            return illegal
        for restriction in self.restrictions:
            if restriction.excludes(config, spec):
                return Violation(restriction.rule, restriction.reason)
        return None

    def configs(self, spec: KernelSpec, device: DeviceSpec) -> Iterator[KernelConfig]:
        """Every point that has to be measured, in the order of the knobs."""
        for config in SearchSpace(self.knobs, lambda _: True).product():
            if self.exclusion(config, spec, device) is None:
                yield config

    def space(self, problem: Problem, device: DeviceSpec) -> SearchSpace:
        """The sub-space as a `SearchSpace` with known members.

        Raises:
            ConfigError: nothing in it is legal for this problem on this device.
        """
        return SearchSpace.of_members(self.knobs, list(self.configs(KernelSpec.of(problem), device)))


def _wastes_consumers(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.consumers != (1 if config.block_m == 64 and not config.ping_pong else 2)


def _is_shallow(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.stages * stage_bytes(config, spec) < 96 * 1024


def _pairs_twice(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.cluster_size > 2


def _registers_idle(config: KernelConfig, spec: KernelSpec) -> bool:
    usual = config.swapped(producer_registers=USUAL["producer_registers"])
    same = usual.consumer_registers == config.consumer_registers
    return same and config.producer_registers != usual.producer_registers


def _departs_twice(config: KernelConfig, spec: KernelSpec) -> bool:
    departures = [name for name, value in USUAL.items() if getattr(config, name) != value]
    return len(departures) > 1


USUAL = {"producer_registers": 40, "wait_depth": 1, "store_stages": 2}
"""The ordinary values of the knobs that are moved one at a time."""

RESTRICTIONS = {
    restriction.rule: restriction
    for restriction in (
        Restriction(
            "consumers by rows",
            "64 rows feed one consumer, more are divided by two, ping-pong has two",
            _wastes_consumers,
        ),
        Restriction("pipeline depth", "less than 96 KiB in flight does not cover the latency of memory", _is_shallow),
        Restriction("cluster pairs", "clusters of four are left to the full space, for length", _pairs_twice),
        Restriction("idle registers", "the consumers' registers do not change with the producer's", _registers_idle),
        Restriction(
            "one departure",
            "producer_registers, wait_depth and store_stages leave 40, 1 and 2 one at a time, for length",
            _departs_twice,
        ),
    )
}
"""Every restriction a table may name, by rule: reading a table looks them up to prove that it is exhaustive."""

_CORE = SubSpace(
    name=CORE,
    knobs=completed(
        (
            Knob("block_m", (64, 128, 256)),
            Knob("block_n", (64, 128, 192, 256)),
            Knob("block_k", (64, 128)),
            Knob("stages", (3, 4, 6, 8)),
            Knob("consumers", (1, 2)),
            Knob("split_n", (False,), ordered=False),
            Knob("cluster_m", (1, 2)),
            Knob("cluster_n", (1, 2)),
            Knob("raster_along_n", (True,), ordered=False),
            Knob("group", (1, 4, 8, 16)),
            Knob("producer_registers", (24, 40)),
            Knob("wait_depth", (0, 1)),
            Knob("store_stages", (1, 2)),
            Knob("ping_pong", (False, True), ordered=False),
        )
    ),
    restrictions=tuple(RESTRICTIONS.values()),
)

SUBSPACES = {_CORE.name: _CORE}
"""The sub-spaces that `cupygemm record` can measure whole, by name."""
