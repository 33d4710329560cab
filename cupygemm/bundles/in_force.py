"""The bundles that `matmul` asks, in their order: those of `use`, that of CUPYGEMM_BUNDLE, and last the shipped one.

Each is read when it is first needed: the shipped one when no other has an entry for a product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from cupygemm import settings
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.device import DeviceSpec
from cupygemm.errors import BundleError
from cupygemm.problem import Problem

SHIPPED = "the shipped bundle"
"""What it is called where bundles have names."""


@cache
def shipped_bundle() -> Bundle:
    """The bundle of the package, read at the first call."""
    return Bundle.load(resources.files("cupygemm.bundles").joinpath("h200.yaml"))


@dataclass(frozen=True, eq=False)
class Source:
    """A bundle in force.

    Attributes:
        name: for a person: a path, or what the bundle is.
        bundle: what it holds.
        ships: whether it came with the package.
    """

    name: str
    bundle: Bundle
    ships: bool = False

    def entry(self, problem: Problem) -> Entry | None:
        """The entry for exactly this problem."""
        return self._by_problem.get(problem) if self.ships else self.bundle.entry(problem)

    @cached_property
    def _by_problem(self) -> dict[Problem, Entry]:
        """Of a bundle of many entries, which nobody changes."""
        return {entry.problem: entry for entry in self.bundle.entries}


class InForce:
    """The bundles in force, the newest first; whoever has one takes care that one thread at a time uses it."""

    def __init__(self, only: Mapping[str, Bundle] | None = None) -> None:
        """Nothing is read yet.

        Args:
            only: bundles by name, the first one asked first, in place of the environment's and the shipped one.
        """
        self._sources = None if only is None else [Source(name, bundle) for name, bundle in only.items()]
        self._ships = only is None
        self._shipped_one: Source | None = None

    def push(self, bundle: Bundle, name: str) -> Source:
        """Puts a bundle before the others; gives what `remove` takes.

        Raises:
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        source = Source(name, bundle)
        self._sources = [source, *self._named()]
        return source

    def remove(self, token: object) -> None:
        """Takes a bundle out again; one that is no longer in force is ignored."""
        self._sources = [source for source in self._named() if source is not token]

    def ships(self) -> bool:
        """Whether what comes with the package is asked, after all else.

        Raises:
            BundleError: as `push`.
        """
        self._named()
        return self._ships

    def sources(self) -> list[Source]:
        """All of them, read.

        Raises:
            BundleError: as `push`.
        """
        return [*self._named(), *self._shipped()]

    def entries(self, problem: Problem, device: DeviceSpec) -> Iterator[tuple[Source, Entry]]:
        """The entries for a problem: those measured on this very GPU first, then by age; the shipped one last.

        Raises:
            BundleError: as `push`.
        """
        named = sorted(self._named(), key=lambda source: source.bundle.elsewhere(device) is not None)
        for sources in (named, self._shipped()):
            for source in sources:
                entry = source.entry(problem)
                if entry is not None:
                    yield source, entry

    def _named(self) -> list[Source]:
        if self._sources is None:
            path = settings.bundle_path()
            self._ships = settings.shipped_in_force()
            self._sources = [] if path is None else [Source(str(path), _named_bundle(path))]
        return self._sources

    def _shipped(self) -> Iterator[Source]:
        if self._ships:
            if self._shipped_one is None:
                self._shipped_one = Source(SHIPPED, shipped_bundle(), ships=True)
            yield self._shipped_one


def _named_bundle(path: Path) -> Bundle:
    """The bundle that the environment names."""
    try:
        return Bundle.load(path)
    except BundleError as error:
        raise BundleError(f"{error} (CUPYGEMM_BUNDLE names it: name another bundle, or unset it)") from error
