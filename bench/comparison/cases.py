"""What is searched: recorded tables, ours and those of others, in the two forms that contenders need.

Our strategies search a `SearchSpace` and are answered by a runner; those of others search a cache file of Kernel Tuner
in simulation mode. A `Case` has both, of the same points and the same times, without the parameters that have one
value: nobody would declare those to a tuner, and our strategies never see them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from bench.comparison.policies import of_other_families
from cupygemm.config import FLAGS, KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.errors import FileError
from cupygemm.measurement import Measurement, Status
from cupygemm.names import TABLE_SUFFIX
from cupygemm.problem import Problem
from cupygemm.search.policy.families import family
from cupygemm.search.recordings.kernel_tuner_export import restrictions, to_text
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.runners.runner import Runner
from cupygemm.search.seeds import best_of_nearest
from cupygemm.search.spaces.space import FIELD_NAMES, Knob, SearchSpace

RECORDED = "recorded"
"""The group of our own tables; the others are named after their kernel. Groups are not averaged together."""
CACHE_SUFFIXES = (".json", ".json.gz")
PER_TABLE = 3
"""Configs to start from that each other cache file of a folder gives, as for our own tables."""
BOOLS = FLAGS
"""Fields that parameters of 0 and 1 borrow; the others go by the other fields, in order."""


@dataclass(frozen=True)
class Source:
    """A file with a table.

    Attributes:
        folder: where the others of its kind lie; None for those of the package.
        group: `RECORDED`, or the kernel's name.
    """

    path: Path
    folder: Path | None
    group: str

    @cached_property
    def digest_alone(self) -> str:
        """Of the file, which is all that cold searches depend on."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    @cached_property
    def digest(self) -> str:
        """Of the file and of those beside it, which seeded searches begin with."""
        whole = hashlib.sha256(self.path.read_bytes())
        for path in sorted(self.path.parent.glob("*.*")):
            if path.name.endswith((TABLE_SUFFIX, *CACHE_SUFFIXES)):
                whole.update(hashlib.sha256(path.read_bytes()).digest())
        return whole.hexdigest()[:16]

    def digest_for(self, seeded: bool) -> str:
        """Of all that a search depends on: whether it knows the tables beside this one makes the difference."""
        return self.digest if seeded else self.digest_alone


@dataclass(frozen=True, eq=False)
class Case:
    """A table to search.

    Attributes:
        name: for people.
        group, digest, folder: as in its `Source`.
        problem, space, runner: what our strategies search.
        device: of a table of ours, whose problems a policy knows something of; None for others.
        nearest: the best configs of other tables, the most promising first: of ours, those of the nearest problems of
            other families; of others, those of the other tables of the group.
        document: the same points as a cache file of Kernel Tuner; `time` in milliseconds.
    """

    name: str
    group: str
    digest: str
    folder: Path | None
    problem: Problem
    space: SearchSpace
    runner: Runner
    device: DeviceSpec | None
    nearest: tuple[KernelConfig, ...]
    document: dict[str, Any]

    @cached_property
    def times_us(self) -> dict[str, float]:
        """Of each point by its key in the document; infinite where it failed."""
        return {key: _time_us(result) for key, result in self.document["cache"].items()}

    @cached_property
    def optimum_us(self) -> float:
        """The least of them."""
        return min(self.times_us.values())


def sources(folders: Sequence[Path] = ()) -> list[Source]:
    """The tables of folders, ours first. Where none of them holds one of ours, those of the package.

    Raises:
        FileError: no such folder, one that holds no table, or a file that is none.
    """
    ours: list[Source] = []
    others: list[Source] = []
    for folder in folders:
        found = [Source(Path(str(each.path)), folder, RECORDED) for each in recorded_tables(folder)]
        caches = [Source(path, folder, _read_cache(path)["kernel_name"]) for path in _cache_paths(folder)]
        if not (found or caches):
            raise FileError(f"{folder}: holds neither {TABLE_SUFFIX} nor {' or '.join(CACHE_SUFFIXES)}")
        ours, others = ours + found, others + caches
    package = [] if ours else [Source(Path(str(each.path)), None, RECORDED) for each in recorded_tables()]
    return ours + package + others


@cache
def load(source: Source) -> Case:
    """Reads a table, once a process.

    Raises:
        FileError: it cannot be read.
    """
    return _load_ours(source) if source.group == RECORDED else _load_cache(source)


def _load_ours(source: Source) -> Case:
    table = _read_table(source.path)
    others = of_other_families(source.folder, family(table.problem))
    nearest = best_of_nearest(table.problem, others, _read_table)  # type: ignore[arg-type]  # paths can be hashed
    return Case(
        name=str(table.problem),
        group=RECORDED,
        digest=source.digest,
        folder=source.folder,
        problem=table.problem,
        space=table.space,
        runner=ReplayRunner(table),
        device=table.device,
        nearest=nearest,
        document=_of_varying(json.loads(to_text(table))),
    )


def _load_cache(source: Source) -> Case:
    document = _of_varying(_read_cache(source.path))
    borrowed = _Borrowed(document)
    beside = [_of_varying(_read_cache(path)) for path in _cache_paths(source.path.parent) if path != source.path]
    alike = [other for other in beside if other["tune_params"] == document["tune_params"]]
    nearest = [config for other in alike for config in borrowed.best(other)]
    times_us = borrowed.times_us(document)
    return Case(
        name=f"{document['kernel_name']} {document['device_name'].removeprefix('NVIDIA ')}",
        group=source.group,
        digest=source.digest,
        folder=source.folder,
        # Only its name is asked for: the runner answers whatever it is.
        problem=Problem(4096, 4096, 4096),
        space=SearchSpace.of_members(borrowed.knobs, list(times_us)),
        runner=_Answers(times_us),
        device=None,
        nearest=tuple(dict.fromkeys(nearest)),
        document=document,
    )


@cache
def _read_table(path: Traversable) -> Table:
    """Once a process: each table is among the nearest of others."""
    return Table.read(path)


class _Answers:
    """A runner that knows times and nothing else."""

    device = "replay"

    def __init__(self, times_us: dict[KernelConfig, float]) -> None:
        self._times_us = times_us

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Measurement]:
        """The time of each config."""
        return map(self._answer, configs)

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, config: KernelConfig) -> Measurement:
        us = self._times_us.get(config)
        if us is None:
            return Measurement(Status.ILLEGAL, detail="not in the file")
        return Measurement(Status.LAUNCH_FAILED) if math.isinf(us) else Measurement(Status.OK, (us,))


class _Borrowed:
    """Somebody else's parameters under the names of our fields: strategies look at places and values, not at names.

    Attributes:
        knobs: one for each field; those that no parameter borrows have one value.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """Raises FileError where there are more parameters than fields, or values that are no whole numbers."""
        free = {True: list(BOOLS), False: [name for name in FIELD_NAMES if name not in BOOLS]}
        borrowed: dict[str, Knob] = {}
        self._fields: list[tuple[str, type]] = []
        for name, values in document["tune_params"].items():
            if any(type(value) is not int for value in values):
                raise FileError(f"parameter {name}: values {values} must be whole numbers")
            binary = sorted(values) == [0, 1] and bool(free[True])
            if not free[binary]:
                raise FileError(f"{len(document['tune_params'])} parameters: there are {len(FIELD_NAMES)} fields")
            field, kind = free[binary].pop(0), bool if binary else int
            borrowed[field] = Knob(field, tuple(sorted(map(kind, values))), ordered=not binary)
            self._fields.append((field, kind))
        self._rest = {name: False if name in BOOLS else 0 for name in FIELD_NAMES if name not in borrowed}
        single = (Knob(name, (value,)) for name, value in self._rest.items())
        self.knobs = (*borrowed.values(), *single)

    def times_us(self, document: dict[str, Any]) -> dict[KernelConfig, float]:
        """The points of a file with these parameters."""
        names = document["tune_params_keys"]

        def config_of(result: dict[str, Any]) -> KernelConfig:
            told = {field: kind(result[name]) for name, (field, kind) in zip(names, self._fields, strict=True)}
            values: dict[str, Any] = {**self._rest, **told}
            return KernelConfig(**values)

        return {config_of(result): _time_us(result) for result in document["cache"].values()}

    def best(self, document: dict[str, Any]) -> list[KernelConfig]:
        """The fastest point, and the fastest of the next best with other values in the first two parameters."""
        found: dict[tuple[Any, ...], KernelConfig] = {}
        first = [field for field, _ in self._fields[:2]]
        times = self.times_us(document)
        for config in sorted(times, key=lambda config: (times[config], config)):
            found.setdefault(tuple(getattr(config, field) for field in first), config)
        return list(found.values())[:PER_TABLE]


def _of_varying(document: dict[str, Any]) -> dict[str, Any]:
    """A cache file without the parameters of one value, and of each result no more than its time or failure."""
    params = {name: values for name, values in document["tune_params"].items() if len(values) > 1}
    cache = {}
    for result in document["cache"].values():
        values = {name: result[name] for name in params}
        failed = math.isinf(_time_us(result))
        outcome = {"time": "RuntimeFailedConfig", "__error__": "RuntimeFailedConfig"} if failed else {}
        cache[",".join(map(str, values.values()))] = {**values, **(outcome or {"time": result["time"]})}
    points = [[result[name] for name in params] for result in cache.values()]
    sizes = {name: len(values) for name, values in params.items()}
    head = {key: document[key] for key in ("device_name", "kernel_name", "problem_size")}
    return {
        **head,
        "objective": "time",
        "tune_params_keys": list(params),
        "tune_params": params,
        "restrictions": restrictions(list(params), sizes, points),
        "cache": cache,
    }


def _time_us(result: dict[str, Any]) -> float:
    """Of one result; older files have the name of a failure, or 1e20, in place of a time."""
    time_ms = result.get("time")
    if "__error__" in result or not isinstance(time_ms, int | float) or time_ms >= 1e20:
        return math.inf
    return float(time_ms) * 1000


def _cache_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(CACHE_SUFFIXES))


@cache
def _read_cache(path: Path) -> dict[str, Any]:
    """A cache file of Kernel Tuner; one that was left open lacks its last brackets.

    Raises:
        FileError: it is none.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().rstrip().rstrip(",")
        document: dict[str, Any] = json.loads(text if text.endswith("}}") or text.endswith("}\n}") else text + "}}")
    except (OSError, EOFError, ValueError) as error:
        raise FileError(f"{path}: no cache file of Kernel Tuner: {error}") from error
    missing = [
        key for key in ("device_name", "kernel_name", "problem_size", "tune_params", "cache") if key not in document
    ]
    if missing:
        raise FileError(f"{path}: no cache file of Kernel Tuner: {', '.join(missing)} missing")
    return document
