"""Spaces small enough to measure every point of: `SubSpace`, its knobs and its own restrictions beside legality.

A recorded table is exhaustive over one of these. A restriction leaves out points that differ in nothing that matters,
or that are known to be poor, or that would make the table too long; each has a name and says which, and the table's
header keeps both with the number of points it cost.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cupygemm.config import COMPILED_FIELDS, KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.legality import Violation, compiled_violation, launch_violations
from cupygemm.problem import Problem
from cupygemm.search.spaces.space import Knob, SearchSpace


@dataclass(frozen=True)
class Restriction:
    """A reason, other than legality, to leave a config out of a sub-space.

    Attributes:
        rule: short name, unique among `declared.RESTRICTIONS`.
        reason: why these points are left out.
        excludes: whether the config is left out.
        at_launch: whether it looks at what is told at launch, and not only at what is compiled.
    """

    rule: str
    reason: str
    excludes: Callable[[KernelConfig, KernelSpec], bool]
    at_launch: bool = False


@dataclass(frozen=True)
class SubSpace:
    """A declared part of the full space.

    Attributes:
        name: key in `SUBSPACES`.
        knobs: one for each config field.
        restrictions: asked after legality, in this order, those at launch last.
    """

    name: str
    knobs: tuple[Knob, ...]
    restrictions: tuple[Restriction, ...] = ()

    def exclusion(self, config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
        """The rule that keeps a point of the product out, with its reason; None for a point that has to be measured."""
        return self._of_what_is_compiled(config, spec, device) or self._at_launch(config, spec, device)

    def configs(self, spec: KernelSpec, device: DeviceSpec) -> Iterator[KernelConfig]:
        """Every point that has to be measured; those of one kernel follow one another."""
        for kernel, excluded in self._kernels(spec, device):
            if excluded is None:
                for config in self._launches(kernel):
                    if self._at_launch(config, spec, device) is None:
                        yield config

    def exclusions(self, spec: KernelSpec, device: DeviceSpec) -> tuple[tuple[Violation, int], ...]:
        """What keeps points of the product out, in the order in which it is found first, and how many each."""
        points: Counter[str] = Counter()
        first: dict[str, Violation] = {}
        for kernel, excluded in self._kernels(spec, device):
            if excluded is not None:
                found = [(excluded, self._launch_count)]
            else:
                launches = [self._at_launch(config, spec, device) for config in self._launches(kernel)]
                found = [(violation, 1) for violation in launches if violation is not None]
            for violation, count in found:
                points[violation.rule] += count
                first.setdefault(violation.rule, violation)
        return tuple((violation, points[rule]) for rule, violation in first.items())

    def space(self, problem: Problem, device: DeviceSpec) -> SearchSpace:
        """The sub-space as a `SearchSpace` with known members.

        Raises:
            ConfigError: nothing in it is legal for this problem on this device.
        """
        return SearchSpace.of_members(self.knobs, list(self.configs(KernelSpec.of(problem), device)))

    def _kernels(self, spec: KernelSpec, device: DeviceSpec) -> Iterator[tuple[KernelConfig, Violation | None]]:
        """The product of the compiled knobs, with the first value of the others, and what excludes all its launches."""
        kept = COMPILED_FIELDS
        knobs = [knob if knob.name in kept else Knob(knob.name, knob.values[:1], knob.ordered) for knob in self.knobs]
        for config in SearchSpace(knobs, lambda _: True).product():
            yield config, self._of_what_is_compiled(config, spec, device)

    def _launches(self, kernel: KernelConfig) -> Iterator[KernelConfig]:
        told = [knob for knob in self.knobs if knob.name not in COMPILED_FIELDS]
        for values in itertools.product(*(knob.values for knob in told)):
            yield kernel.swapped(**dict(zip((knob.name for knob in told), values, strict=True)))

    @property
    def _launch_count(self) -> int:
        return math.prod(len(knob.values) for knob in self.knobs if knob.name not in COMPILED_FIELDS)

    def _of_what_is_compiled(self, config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
        return compiled_violation(config, spec, device) or self._restricted(config, spec, at_launch=False)

    def _at_launch(self, config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
        illegal = next(launch_violations(config, spec, device), None)
        return illegal or self._restricted(config, spec, at_launch=True)

    def _restricted(self, config: KernelConfig, spec: KernelSpec, at_launch: bool) -> Violation | None:
        for restriction in self.restrictions:
            if restriction.at_launch == at_launch and restriction.excludes(config, spec):
                return Violation(restriction.rule, restriction.reason)
        return None
