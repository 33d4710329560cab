"""Which values of the next knob still lead to a legal config: the masks of a policy that fills in one knob at a time.

`Choices` answers for a prefix of knob indices, exactly: a value is open if at least one legal config that was not
taken yet begins with the prefix and the value. Where a space's members are known they are counted in a trie. Else a
completion is looked for, and every config that is refused says by which knobs: those that legality read before it
refused. The search jumps back to the last of them (conflict-directed backjumping, Prosser 1993), so that most prefixes
take a handful of checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupygemm.config import KernelConfig
from cupygemm.search.spaces.space import SearchSpace

Indices = tuple[int, ...]


class Choices:
    """The open values of each next knob. Knobs with one value are no choice and do not appear.

    Attributes:
        sizes: number of values of each knob that varies; of the first knob where none does.
        width: the largest of them, the length of a mask.
    """

    def __init__(self, space: SearchSpace) -> None:
        varying = [position for position, knob in enumerate(space.knobs) if knob.varies]
        self._positions = varying or [0]
        self._space = space
        self.sizes = tuple(len(space.knobs[position].values) for position in self._positions)
        self.width = max(self.sizes)
        self._source: _Trie | _Completions = (
            _Completions(space, self._positions) if space.members is None else _Trie(map(self.encode, space.members))
        )
        self._taken = _Trie(())

    def encode(self, config: KernelConfig) -> Indices:
        """The index of each choice.

        Raises:
            ConfigError: a value that the space does not have.
        """
        indices = self._space.encode(config)
        return tuple(indices[position] for position in self._positions)

    def decode(self, choices: Indices) -> KernelConfig:
        """The config of a choice for each knob; the inverse of `encode`."""
        return _decode(self._space, self._positions, choices)

    def legal(self, prefix: Indices) -> NDArray[np.bool_]:
        """Which values of the knob after a prefix begin a legal config; shape (width,)."""
        return self._mask([self._source.count((*prefix, i)) > 0 for i in self._next(prefix)])

    def open(self, prefix: Indices) -> NDArray[np.bool_]:
        """As `legal`, of configs that were not taken; all False where there is none left."""
        return self._mask([self._is_open((*prefix, i)) for i in self._next(prefix)])

    def take(self, choices: Indices) -> None:
        """Closes a config: it will not be proposed again. Taking it twice is the same as once."""
        if not self._taken.count(choices):
            self._taken.add(choices)

    def _next(self, prefix: Indices) -> range:
        return range(self.sizes[len(prefix)])

    def _mask(self, values: Sequence[bool]) -> NDArray[np.bool_]:
        mask = np.zeros(self.width, dtype=bool)
        mask[: len(values)] = values
        return mask

    def _is_open(self, prefix: Indices) -> bool:
        taken = self._taken.count(prefix)
        return self._source.count(prefix, taken + 1) > taken


def _decode(space: SearchSpace, positions: Sequence[int], choices: Sequence[int]) -> KernelConfig:
    indices = [0] * len(space.knobs)
    for position, choice in zip(positions, choices, strict=True):
        indices[position] = choice
    return space.decode(indices)


class _Trie:
    """Counts the members that begin with a prefix."""

    def __init__(self, members: Iterable[Indices]) -> None:
        self._counts: dict[Indices, int] = {}
        for member in members:
            self.add(member)

    def add(self, member: Indices) -> None:
        for end in range(len(member) + 1):
            prefix = member[:end]
            self._counts[prefix] = self._counts.get(prefix, 0) + 1

    def count(self, prefix: Indices, most: int = 1) -> int:
        """How many members begin with the prefix; what is beyond `most` may be left uncounted."""
        return self._counts.get(prefix, 0)


class _Completions:
    """Counts legal configs that begin with a prefix by looking for them."""

    def __init__(self, space: SearchSpace, positions: Sequence[int]) -> None:
        self._space, self._positions = space, positions
        self._sizes = tuple(len(space.knobs[position].values) for position in positions)
        self._depth_of = {space.names[position]: depth for depth, position in enumerate(positions)}
        self._known: dict[Indices, tuple[int, bool]] = {}

    def count(self, prefix: Indices, most: int = 1) -> int:
        """How many legal configs begin with the prefix, counted up to `most`."""
        found, whole = self._known.get(prefix, (0, False))
        if found < most and not whole:
            wanted = 2 * most  # more will be asked for as configs are taken, and each look starts from the beginning
            found = self._look(prefix, wanted)
            self._known[prefix] = (found, found < wanted)
        return found

    def _look(self, prefix: Indices, most: int) -> int:
        start, found = len(prefix), 0
        indices = [*prefix, *[0] * (len(self._sizes) - start)]
        blamed: list[set[int]] = [set() for _ in self._sizes]
        while True:
            conflict = self._conflict(indices)
            if conflict is None:
                found += 1
                if found == most:
                    return found
                conflict = set(range(len(self._sizes)))  # the next one differs anywhere
            if not self._step(indices, blamed, conflict, start):
                return found

    def _step(self, indices: list[int], blamed: list[set[int]], conflict: set[int], start: int) -> bool:
        """Changes the last knob that had a part in the conflict and has values left; False when there is none."""
        while True:
            position = max(conflict, default=-1)
            if position < start:
                return False
            blamed[position] |= conflict - {position}
            if indices[position] + 1 < self._sizes[position]:
                indices[position] += 1
                for later in range(position + 1, len(indices)):
                    indices[later] = 0
                    blamed[later].clear()
                return True
            conflict, blamed[position] = blamed[position], set()
            indices[position] = 0

    def _conflict(self, indices: Sequence[int]) -> set[int] | None:
        """The positions of the knobs that a rule read before it refused; None for a legal config.

        Of several rules that refuse, the one that looks least far: it leaves the most out.
        """
        config = _decode(self._space, self._positions, indices)
        if self._space.is_legal(config):
            return None
        conflicts = []
        for rule in self._space.rules:
            reads: set[str] = set()
            watched = object.__new__(_Watched)
            watched.__dict__.update(config.__dict__, _reads=reads)
            if not rule(watched):
                conflicts.append({self._depth_of[name] for name in reads if name in self._depth_of})
        return min(conflicts, key=lambda conflict: max(conflict, default=-1))


_FIELDS = frozenset(field.name for field in fields(KernelConfig))


class _Watched(KernelConfig):
    """A config that notes in `_reads` which of its fields were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            super().__getattribute__("_reads").add(name)
        return super().__getattribute__(name)
