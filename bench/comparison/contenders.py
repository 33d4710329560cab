"""Who takes part, by name: which program runs it, and what its results depend on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from bench.comparison import kernel_tuner_runs, optuna_runs, own
from bench.comparison.cases import RECORDED, Case
from bench.comparison.depends import digest_of
from cupygemm.errors import ConfigError, not_installed
from cupygemm.names import SEARCH_PACKAGES, STRATEGIES

OWN = ("local", "cma", "ppo", "hybrid")
SEEDED = (*own.WITHOUT_SEARCH, "local+", "cma+", "ppo+", "hybrid+")
KERNEL_TUNER = tuple(
    kernel_tuner_runs.PREFIX + name
    for name in (
        *("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm", "diff_evo", "simulated_annealing"),
        *("pso", "greedy_ils", "dual_annealing"),
    )
)
OPTUNA = (optuna_runs.CONDITIONAL, optuna_runs.PRUNED)
ALL = (*OWN, *KERNEL_TUNER, *OPTUNA, *SEEDED)
COMPILED = ("ppo", "hybrid")
"""Ours that JAX compiles something for: the same for all tables of a group."""
_compiled: set[tuple[str, str, int]] = set()


@dataclass(frozen=True)
class Outcome:
    """One search.

    Attributes:
        improvements: (evaluation counted from 1, time in µs) of each that was faster than all before.
        evaluations: how many there were.
        seconds: CPU time of the process, without what JAX compiles once for all its searches.
    """

    improvements: tuple[tuple[int, float], ...]
    evaluations: int
    seconds: float


def run(case: Case, name: str, seed: int, evaluations: int, work: Path) -> Outcome:
    """One search of a case.

    Args:
        case: what is searched.
        name: of the contender.
        seed: the same seed gives the same search.
        evaluations: different legal configs that may be measured.
        work: folder for files that a contender needs.

    Raises:
        ConfigError: an unknown name.
    """
    _compile_first(case, name, evaluations, work)
    return outcome_of(lambda: _runner(name, work)(case, name, seed, evaluations))


def outcome_of(search: Callable[[], Sequence[float]]) -> Outcome:
    """Makes a search that gives the time of each config in the order measured, µs; infinite where it failed."""
    started = time.process_time()
    times = search()
    best, improvements = float("inf"), []
    for index, us in enumerate(times, start=1):
        if us < best:
            best = us
            improvements.append((index, us))
    return Outcome(tuple(improvements), len(times), round(time.process_time() - started, 3))


def check(name: str) -> None:
    """Finds out now whether `run` will be able to.

    Raises:
        ConfigError: an unknown name, or a package is missing.
    """
    package = kind(name)
    if name == "random":
        raise ConfigError("strategy random: always takes part, as its exact expectation")
    if package == "cupygemm" and name not in own.WITHOUT_SEARCH:
        if name.removesuffix(own.SEEDED) not in STRATEGIES:
            raise ConfigError(f"strategy {name!r}: there are {', '.join(ALL)}")
    elif package != "cupygemm" and find_spec(package) is None:
        raise ConfigError(f"strategy {name}: {not_installed(package, 'compare')}")


def kind(name: str) -> str:
    """The package that a contender is from."""
    return name.partition(":")[0] if ":" in name else "cupygemm"


def is_seeded(name: str) -> bool:
    """Whether a contender's searches depend on the tables beside the one that is searched."""
    return name.endswith(own.SEEDED)


def different_seeds(name: str, group: str) -> int | None:
    """How many seeds make a difference to a contender on a group of tables; None for all of them."""
    return own.different_seeds(name, group) if kind(name) == "cupygemm" else None


def applies(name: str, group: str) -> bool:
    """Whether a contender searches a group of tables."""
    return own.applies(name, group) and not (name == optuna_runs.PRUNED and group == RECORDED)


@cache
def version_of(name: str) -> str:
    """What a recorded search is still good for: it is run anew where this has changed."""
    package = kind(name)
    if package != "cupygemm":
        module = {"kernel_tuner": kernel_tuner_runs, "optuna": optuna_runs}[package]
        return f"{package} {version(package)} {_digest(Path(str(module.__file__)))}"
    # Strategies are imported by name, so what they import is not found otherwise.
    strategies = (strategy.partition(":")[0] for strategy in STRATEGIES.values())
    return f"cupygemm {digest_of(frozenset((own.__name__, *strategies)))}"


def packages() -> dict[str, str]:
    """Versions of what the contenders are from, as far as it is installed."""
    found = {}
    for name in ("kernel_tuner", "optuna", *SEARCH_PACKAGES, "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _runner(name: str, work: Path) -> Callable[[Case, str, int, int], list[float]]:
    check(name)
    if kind(name) == "optuna":
        return optuna_runs.run
    program = kernel_tuner_runs.run if kind(name) == "kernel_tuner" else own.run
    return lambda case, name, seed, evaluations: program(case, name, seed, evaluations, work)


def _compile_first(case: Case, name: str, evaluations: int, work: Path) -> None:
    """Searches once for nothing where JAX would compile meanwhile: that takes ten times as long as the search."""
    if name.removesuffix(own.SEEDED) in COMPILED and (case.group, name, evaluations) not in _compiled:
        own.run(case, name, 0, evaluations, work)
        _compiled.add((case.group, name, evaluations))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
