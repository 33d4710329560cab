"""What may be tried: `Knob`, the values of one config field, and `SearchSpace`, the knobs with what is legal.

A space is a Cartesian product of knobs with a legality predicate over whole configs. A strategy sees configs as tuples
of indices into the knobs' values (`encode`, `decode`), so that powers of two are as far apart as neighbours should be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.errors import ConfigError
from cupygemm.legality import RULES, Rule, illegal_reason
from cupygemm.problem import Problem

FIELD_NAMES = tuple(field.name for field in fields(KernelConfig))
"""Fields of a `KernelConfig` in declaration order: a space has one knob for each, in this order."""

ENUMERABLE = 100_000
"""Largest Cartesian product that is walked point by point without being asked to (about a second)."""

SAMPLE_LIMIT = 20_000
"""Draws without a legal config after which `SearchSpace.sample` gives up."""


@dataclass(frozen=True)
class Knob:
    """One field of `KernelConfig` and the values it may take.

    Attributes:
        name: the field.
        values: at least one, distinct; ascending when `ordered`.
        ordered: whether neighbouring values are alike (sizes, counts); False for booleans and true categories.

    Raises:
        ConfigError: an unknown field, no values, repeated values, or an ordered knob out of order.
    """

    name: str
    values: tuple[int | bool, ...]
    ordered: bool = True

    def __post_init__(self) -> None:
        if self.name not in FIELD_NAMES:
            raise ConfigError(f"knob {self.name!r}: the fields of a config are {', '.join(FIELD_NAMES)}")
        if not self.values or len(set(self.values)) != len(self.values):
            raise ConfigError(f"knob {self.name}: values {self.values} must be distinct and at least one")
        if self.ordered and list(self.values) != sorted(self.values):
            raise ConfigError(f"knob {self.name}: values {self.values} of an ordered knob must ascend")

    @property
    def varies(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.values) > 1


class SearchSpace:
    """The knobs and which combinations of them are legal.

    Attributes:
        knobs: one for each field of `KernelConfig`, in its order.
        members: every legal config where they are known beforehand (a small or recorded space), else None.
        rules: what legality consists of: each refuses by itself, reading only the fields that it is about.
    """

    def __init__(
        self,
        knobs: Sequence[Knob],
        is_legal: Callable[[KernelConfig], bool],
        members: Sequence[KernelConfig] | None = None,
        rules: Sequence[Callable[[KernelConfig], bool]] = (),
    ) -> None:
        """Builds a space.

        Args:
            knobs: one for each config field, in any order.
            is_legal: whether a config made of the knobs' values may be tried.
            members: the legal configs, where known; they must be what `is_legal` accepts.
            rules: `is_legal` in parts, where it has any.

        Raises:
            ConfigError: a field has no knob or two, or `members` is empty.
        """
        by_name = {knob.name: knob for knob in knobs}
        missing = [name for name in FIELD_NAMES if name not in by_name]
        if missing or len(by_name) != len(knobs):
            raise ConfigError(f"a space has one knob for each config field: {missing or 'a field twice'}")
        if members is not None and not members:
            raise ConfigError("the space is empty: no config in it is legal")
        self.knobs = tuple(by_name[name] for name in FIELD_NAMES)
        self.members = None if members is None else tuple(members)
        self.rules = tuple(rules) or (is_legal,)
        self._is_legal = is_legal
        self._index = [{value: i for i, value in enumerate(knob.values)} for knob in self.knobs]

    @classmethod
    def for_problem(cls, problem: Problem, device: DeviceSpec) -> Self:
        """The full default space: everything `illegal_reason` lets pass for this problem on this device."""
        spec = KernelSpec.of(problem)

        def accepts(rule: Rule) -> Callable[[KernelConfig], bool]:
            return lambda config: next(rule(config, spec, device), None) is None

        is_legal = lambda config: illegal_reason(config, spec, device) is None  # noqa: E731
        return cls(FULL_KNOBS, is_legal, rules=[accepts(rule) for rule in RULES])

    @classmethod
    def of_members(cls, knobs: Sequence[Knob], members: Sequence[KernelConfig]) -> Self:
        """The space of exactly these configs."""
        legal = frozenset(members)
        return cls(knobs, legal.__contains__, members)

    @property
    def names(self) -> tuple[str, ...]:
        """The knobs' names, in order."""
        return FIELD_NAMES

    @cached_property
    def size_cartesian(self) -> int:
        """Points of the product, legal or not."""
        return math.prod(len(knob.values) for knob in self.knobs)

    @property
    def size(self) -> int | None:
        """Number of legal configs where it is known, else None."""
        return None if self.members is None else len(self.members)

    def is_legal(self, config: KernelConfig) -> bool:
        """Whether the config is in the space: made of the knobs' values and legal."""
        return self._on_grid(config) and self._is_legal(config)

    def first_legal(self, indices: NDArray[np.intp]) -> int | None:
        """Which of many points is the first legal one; None where none is. Where members are known this is quick.

        Args:
            indices: (points, knobs), each within its knob.
        """
        if self.members is None:
            return next((row for row, point in enumerate(indices) if self._is_legal(self.decode(point))), None)
        numbers, known = indices @ self._strides, self._member_numbers
        places = np.searchsorted(known, numbers)
        legal = known[np.minimum(places, len(known) - 1)] == numbers
        return int(legal.argmax()) if legal.any() else None

    def encode(self, config: KernelConfig) -> tuple[int, ...]:
        """The index of each field's value in its knob.

        Raises:
            ConfigError: a value that the knob does not have.
        """
        indices = []
        for knob, index in zip(self.knobs, self._index, strict=True):
            value = getattr(config, knob.name)
            if value not in index:
                raise ConfigError(f"{knob.name} is {value}: this space has {', '.join(map(str, knob.values))}")
            indices.append(index[value])
        return tuple(indices)

    def decode(self, indices: Sequence[int]) -> KernelConfig:
        """The config with these indices, legal or not; the inverse of `encode`.

        Raises:
            ConfigError: not one index for each knob, or an index outside its knob.
        """
        if len(indices) != len(self.knobs):
            raise ConfigError(f"{len(indices)} indices for {len(self.knobs)} knobs")
        for knob, i in zip(self.knobs, indices, strict=True):
            if not 0 <= i < len(knob.values):
                raise ConfigError(f"index {i} of knob {knob.name}: it has {len(knob.values)} values")
        return KernelConfig(*(knob.values[i] for knob, i in zip(self.knobs, indices, strict=True)))  # type: ignore[arg-type]

    def sample(self, rng: np.random.Generator) -> KernelConfig:
        """A legal config, each as likely as any other.

        Raises:
            ConfigError: none was found in `SAMPLE_LIMIT` draws.
        """
        if self.members is not None:
            return self.members[int(rng.integers(len(self.members)))]
        for _ in range(SAMPLE_LIMIT):
            config = self._draw(rng)
            if self._is_legal(config):
                return config
        raise ConfigError(f"no legal config in {SAMPLE_LIMIT} draws: the space may be empty")

    def neighbours(self, config: KernelConfig, any_value: bool = False) -> list[KernelConfig]:
        """Legal configs that differ in one knob: by one step where it is ordered, by any value where it is not.

        With A and B swapped other knobs are exchanged too, so that tiles stay what they are: `KernelConfig.mirrored`.
        By itself that knob would make tiles of 208x64 of the result out of 64x208. A kernel that comes to copy its
        first stages may also give up at once what such kernels do not have: `KernelConfig.copying`.

        Args:
            config: of the space.
            any_value: by any value where it is ordered, too.
        """
        indices = self.encode(config)
        found = []
        for position, knob in enumerate(self.knobs):
            if knob.name == "swap_ab" and knob.varies:
                found += [mirror for mirror in [config.mirrored()] if self.is_legal(mirror)]
                continue
            here = indices[position]
            others = (here - 1, here + 1) if knob.ordered and not any_value else range(len(knob.values))
            for other in others:
                if other == here or not 0 <= other < len(knob.values):
                    continue
                neighbour = self.decode((*indices[:position], other, *indices[position + 1 :]))
                if self._is_legal(neighbour):
                    found.append(neighbour)
        if not config.cp_async_stages:
            found += [each for each in [config.copying()] if self.is_legal(each) and each not in found]
        return found

    def enumerate(self) -> Iterator[KernelConfig]:
        """Every legal config, once, in the order of the knobs' indices. Slow for a product of millions."""
        if self.members is not None:
            yield from sorted(self.members, key=self.encode)
            return
        for config in self.product():
            if self._is_legal(config):
                yield config

    def product(self) -> Iterator[KernelConfig]:
        """Every point of the Cartesian product, legal or not."""
        for values in itertools.product(*(knob.values for knob in self.knobs)):
            yield KernelConfig(*values)  # type: ignore[arg-type]

    @cached_property
    def _strides(self) -> NDArray[np.int64]:
        """With which the indices of a point become its number in the product, which is below 2**63 for any of ours."""
        sizes = [len(knob.values) for knob in self.knobs]
        return np.array([math.prod(sizes[position + 1 :]) for position in range(len(sizes))], dtype=np.int64)

    @cached_property
    def _member_numbers(self) -> NDArray[np.int64]:
        """Ascending."""
        members = np.array([self.encode(member) for member in self.members or ()], dtype=np.int64)
        return np.sort(members @ self._strides)

    def _draw(self, rng: np.random.Generator) -> KernelConfig:
        return self.decode([int(rng.integers(len(knob.values))) for knob in self.knobs])

    def _on_grid(self, config: KernelConfig) -> bool:
        return all(getattr(config, knob.name) in index for knob, index in zip(self.knobs, self._index, strict=True))


def completed(knobs: Sequence[Knob]) -> tuple[Knob, ...]:
    """The knobs, and for each config field added since they were written down one with its default as only value.

    In the order of the fields.
    """
    names = {knob.name for knob in knobs}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(KernelConfig)}
    added = [name for name, default in defaults.items() if name not in names and default is not MISSING]
    whole = (*knobs, *(Knob(name, (defaults[name],)) for name in added))
    return tuple(sorted(whole, key=lambda knob: FIELD_NAMES.index(knob.name)))


FULL_KNOBS = (
    Knob("block_m", (64, 128, 192, 256)),
    # Among them what 72, 100, 200 and 300 rows come to, as columns.
    Knob(
        "block_n", (8, 16, 24, 32, 48, 64, 72, 80, 96, 104, 112, 128, 144, 152, 160, 176, 192, 200, 208, 224, 240, 256)
    ),
    Knob("block_k", (64, 128)),
    Knob("stages", tuple(range(2, 13))),
    Knob("consumers", (1, 2, 3)),
    Knob("split_n", (False, True), ordered=False),
    Knob("cluster_m", (1, 2, 4)),
    Knob("cluster_n", (1, 2, 4)),
    Knob("raster_along_n", (False, True), ordered=False),
    Knob("group", (1, 2, 4, 8, 16)),
    Knob("producer_registers", (24, 32, 40, 56)),
    Knob("wait_depth", (0, 1)),
    Knob("store_stages", (0, 1, 2, 4)),
    Knob("ping_pong", (False, True), ordered=False),
    Knob("cluster_k", (1, 2, 3, 4, 6, 8)),
    Knob("l2_promotion", (0, 128, 256)),
    Knob("keep_a", (-1, 0, 1)),
    Knob("keep_b", (-1, 0, 1)),
    Knob("keep_out", (-1, 0)),
    Knob("prefetch", (0, 1, 2, 4, 8, 12)),
    Knob("cp_async_stages", (0, 1, 2, 4, 8)),
    Knob("swap_ab", (False, True), ordered=False),
)
"""The default space, some 10¹² points before legality."""
