"""Recorded tables: every legal point of a sub-space, measured for one problem on one device.

A file is gzip over lines of JSON: a header, then one array a point. It is exhaustive: what is not in it is excluded
by a rule that the header names, and `Table.check_exhaustive` proves that from the knobs alone.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import median
from typing import Any, Self

from cupygemm.atomic import write_atomically
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.errors import CupygemmError, FileError
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.search.spaces.declared import RESTRICTIONS
from cupygemm.search.spaces.space import Knob, SearchSpace, completed
from cupygemm.search.spaces.subspace import SubSpace

SCHEMA = "cupygemm.table/1"
MAX_BYTES = 256 * 1024 * 1024
"""Most bytes that a table may unpack to: a million points."""
COLUMNS = ("status", "us", "spread", "registers", "spill_bytes", "error", "cublas_us", "clock_mhz", "detail")
"""What a line holds after the knobs' indices: the fields of `Row`."""


@dataclass(frozen=True)
class Row:
    """The outcome of one point.

    Attributes:
        us: median GPU time of a launch, µs; None unless OK.
        spread: half the interquartile range over the median.
        error: relative Frobenius error against float64.
        cublas_us: cuBLAS in the same rounds, µs.
        detail: one line for a person: why it failed.
    """

    status: Status
    us: float | None = None
    spread: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    error: float | None = None
    cublas_us: float | None = None
    clock_mhz: int | None = None
    detail: str = ""

    @classmethod
    def of(cls, measurement: Measurement) -> Self:
        """What a table keeps of a measurement."""
        values = {name: getattr(measurement, name) for name in COLUMNS}
        return cls(**{**values, **{name: _rounded(values[name]) for name in ("us", "spread", "error", "cublas_us")}})

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != (self.us is not None):
            raise FileError(f"status {self.status.value} with us {self.us}: a time belongs to ok and to nothing else")
        for name in COLUMNS[1:-1]:
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
                raise FileError(f"{name} is {value!r}: it must be a number or null")
        if self.us is not None and self.us <= 0:
            raise FileError(f"us is {self.us}: a time is a positive number")


@dataclass(frozen=True)
class Exclusion:
    """A rule that keeps points of the knobs' product out of the table.

    Attributes:
        rule: of `legality.violation`, or of `declared.RESTRICTIONS`.
        reason: the rule's words for one of the points.
        points: how many this rule was the first to exclude.
    """

    rule: str
    reason: str
    points: int


@dataclass(frozen=True)
class Table:
    """An exhaustive recording.

    Attributes:
        problem: what was computed.
        device: the GPU it was measured on.
        provenance: as `provenance.collect` gives it.
        subspace: name of the declared sub-space.
        knobs: one for each config field, with the values tried.
        restrictions: the rules that excluded points, in the order they are asked.
        baselines: `cublas_us`, `cublaslt_us` and what else `GpuRunner.baselines` gives.
        rows: an outcome for each legal point.
    """

    problem: Problem
    device: DeviceSpec
    provenance: dict[str, Any]
    subspace: str
    knobs: tuple[Knob, ...]
    restrictions: tuple[Exclusion, ...]
    baselines: dict[str, Any]
    rows: Mapping[KernelConfig, Row]

    @property
    def spec(self) -> KernelSpec:
        """What the problem fixes at compile time."""
        return KernelSpec.of(self.problem)

    @cached_property
    def space(self) -> SearchSpace:
        """The recorded points as a space."""
        return SearchSpace.of_members(self.knobs, list(self.rows))

    @cached_property
    def cublas_us(self) -> float | None:
        """cuBLAS's time, µs: the median over all rows, which were measured for minutes at changing clocks."""
        found = [row.cublas_us for row in self.rows.values() if row.cublas_us is not None]
        return median(found) if found else self.baselines.get("cublas_us")

    @cached_property
    def times_us(self) -> dict[KernelConfig, float | None]:
        """The time of each point, µs, at the clock at which cuBLAS takes `cublas_us`; None where it failed.

        Times of different rounds do not compare: each is scaled by cuBLAS's in its own rounds.
        """
        return {config: self._comparable_us(row) for config, row in self.rows.items()}

    @cached_property
    def optimum(self) -> tuple[KernelConfig, Row]:
        """The fastest point.

        Raises:
            FileError: no point of the table is OK.
        """
        timed = [(us, config) for config, us in self.times_us.items() if us is not None]
        if not timed:
            raise FileError(f"table of {self.problem}: no config has a time")
        config = min(timed)[1]
        return config, self.rows[config]

    @property
    def optimum_us(self) -> float:
        """Time of the fastest point, µs, as in `times_us`."""
        us = self.times_us[self.optimum[0]]
        assert us is not None  # the optimum is taken among points with a time
        return us

    def _comparable_us(self, row: Row) -> float | None:
        if row.us is None or row.cublas_us is None or self.cublas_us is None:
            return row.us
        return row.us * self.cublas_us / row.cublas_us

    @property
    def statuses(self) -> Counter[str]:
        """How many points ended how."""
        return Counter(row.status.value for row in self.rows.values())

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: DeviceSpec,
        subspace: SubSpace,
        measurements: Mapping[KernelConfig, Measurement],
        provenance: dict[str, Any],
        baselines: dict[str, Any],
    ) -> Self:
        """The table of a finished sweep over a sub-space.

        Raises:
            FileError: a legal point was not measured, or one outside the sub-space was.
        """
        spec = KernelSpec.of(problem)
        rows = {config: Row.of(measurement) for config, measurement in measurements.items()}
        excluded = _count_exclusions(subspace, spec, device)
        table = cls(problem, device, provenance, subspace.name, subspace.knobs, excluded, baselines, rows)
        table.check_exhaustive()
        return table

    def check_exhaustive(self) -> None:
        """Proves that every point of the product has a row or a rule that excludes it, and none has both.

        Raises:
            FileError: a legal point without a row, a row that a rule excludes, an unknown rule, or wrong counts.
        """
        subspace = SubSpace(self.subspace, self.knobs, tuple(_named_restrictions(self.restrictions)))
        expected = _points(subspace, self.spec, self.device)
        missing, surplus = expected - self.rows.keys(), self.rows.keys() - expected
        if missing:
            raise FileError(f"{self}: {len(missing)} legal points have no row, for example {min(missing)}")
        if surplus:
            raise FileError(f"{self}: {len(surplus)} rows are of excluded points, for example {min(surplus)}")
        counted = sum(exclusion.points for exclusion in self.restrictions)
        if len(self.rows) + counted != self.space.size_cartesian:
            total = self.space.size_cartesian
            raise FileError(f"{self}: {len(self.rows)} rows and {counted} excluded points do not make {total}")

    def write(self, path: Path) -> None:
        """Writes the table atomically; the same table always gives the same bytes.

        Raises:
            OSError: the file cannot be written.
        """
        lines = [_json(self._header())]
        for config in self.space.enumerate():
            row = self.rows[config]
            outcome = [row.status.value, *(getattr(row, name) for name in COLUMNS[1:])]
            lines.append(_json([*self.space.encode(config), *outcome]))
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        write_atomically(path, packed.getvalue())

    @classmethod
    def read(cls, path: Traversable) -> Table:
        """Reads and validates a table (`check_exhaustive` apart, which takes a second).

        Raises:
            FileError: the file cannot be read or is no table; the message names the line and what is wrong.
        """
        lines = _read_lines(path)
        header = _parse_header(path, lines[0])
        table = _from_header(path, header)
        rows = _parse_rows(path, lines[1:], header["columns"], table.knobs)
        points = header.get("points")
        if points != len(rows):
            raise FileError(f"{path}: {len(rows)} rows where the header says {points}: the file is not whole")
        return replace(table, rows=rows)

    def _header(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "problem": self.problem.to_dict(),
            "spec": self.spec.to_dict(),
            "device": self.device.to_dict(),
            "provenance": self.provenance,
            "subspace": self.subspace,
            "knobs": [{**asdict(knob), "values": list(knob.values)} for knob in self.knobs],
            "restrictions": [asdict(exclusion) for exclusion in self.restrictions],
            "baselines": self.baselines,
            "columns": [*(knob.name for knob in self.knobs), *COLUMNS],
            "points": len(self.rows),
        }

    def __str__(self) -> str:
        return f"table of {self.problem} on {self.device.name}"


def read_head(path: Traversable) -> tuple[Problem, DeviceSpec]:
    """What a table is of, from its first line.

    Raises:
        FileError: the file is no table.
    """
    table = _from_header(path, _parse_header(path, _read_lines(path, most=1)[0]))
    return table.problem, table.device


def _count_exclusions(subspace: SubSpace, spec: KernelSpec, device: DeviceSpec) -> tuple[Exclusion, ...]:
    found = {violation.rule: Exclusion(*violation, points) for violation, points in subspace.exclusions(spec, device)}
    # A declared restriction stays in the header even where legality left it nothing to exclude.
    declared = {each.rule: found.pop(each.rule, Exclusion(each.rule, each.reason, 0)) for each in subspace.restrictions}
    return (*found.values(), *declared.values())


@lru_cache(maxsize=4)
def _points(subspace: SubSpace, spec: KernelSpec, device: DeviceSpec) -> frozenset[KernelConfig]:
    """All that has to be measured; kept, since the tables of one recording share it and it takes seconds to find."""
    return frozenset(subspace.configs(spec, device))


def _named_restrictions(exclusions: Iterable[Exclusion]) -> list[Any]:
    """The declared restrictions among the rules; the others are of `legality.violation`."""
    return [RESTRICTIONS[exclusion.rule] for exclusion in exclusions if exclusion.rule in RESTRICTIONS]


def _from_header(path: Traversable, header: dict[str, Any]) -> Table:
    """A table without its rows.

    Raises:
        FileError: a key is missing or what it holds makes no sense.
    """
    try:
        table = Table(
            problem=Problem.from_dict(header["problem"]),
            device=DeviceSpec.from_dict(header["device"]),
            provenance=dict(header["provenance"]),
            subspace=header["subspace"],
            knobs=completed([Knob(knob["name"], tuple(knob["values"]), knob["ordered"]) for knob in header["knobs"]]),
            restrictions=tuple(Exclusion(**exclusion) for exclusion in header["restrictions"]),
            baselines=dict(header["baselines"]),
            rows={},
        )
        _check_derived(header, table)
    except KeyError as error:
        raise FileError(f"{path}, line 1: the key {error} is missing") from error
    except (CupygemmError, TypeError, ValueError) as error:
        raise FileError(f"{path}, line 1: {error}") from error
    return table


def _check_derived(header: dict[str, Any], table: Table) -> None:
    """What the header says twice must agree."""
    spec = table.spec.to_dict()
    if header["spec"] != {name: spec.get(name) for name in header["spec"]}:
        raise FileError("spec does not follow from problem")
    knobs, columns = [knob["name"] for knob in header["knobs"]], header["columns"]
    outcome = columns[len(knobs) :]
    unknown, missing = set(outcome) - set(COLUMNS), {"status", "us"} - set(outcome)
    if columns[: len(knobs)] != knobs or unknown or missing or len(set(outcome)) != len(outcome):
        raise FileError(f"columns are {columns}: the knobs {knobs} and then some of {COLUMNS} belong there")


def _read_lines(path: Traversable, most: int | None = None) -> list[bytes]:
    """The lines of the unpacked file, at least one, or only the first `most`."""
    try:
        with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as file:
            if most is not None:
                lines = [file.readline(MAX_BYTES) for _ in range(most)]
            else:
                data = file.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    raise FileError(f"{path}: unpacks to more than {MAX_BYTES} bytes, no table does")
                lines = data.splitlines()
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a readable gzip file: {error}") from error
    if not lines:
        raise FileError(f"{path}: empty: a table starts with a header")
    return lines


def _parse_header(path: Traversable, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError as error:
        raise FileError(f"{path}, line 1: not JSON: {error}") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else type(header).__name__
        raise FileError(f"{path}, line 1: schema is {found!r}: this version reads {SCHEMA}")
    return header


def _parse_rows(
    path: Traversable, lines: Sequence[bytes], columns: Sequence[str], knobs: Sequence[Knob]
) -> dict[KernelConfig, Row]:
    """The rows, each with an index for every recorded knob; the others have one value."""
    rows: dict[KernelConfig, Row] = {}
    space = SearchSpace(knobs, lambda _: True)
    for number, line in enumerate(lines, start=2):
        try:
            values = dict(zip(columns, json.loads(line), strict=True))
            config = space.decode([values.get(knob.name, 0) for knob in space.knobs])
            outcome = {name: values[name] for name in COLUMNS if name in values}
            row = Row(**{**outcome, "status": Status(outcome["status"])})
        except (CupygemmError, ValueError, TypeError) as error:
            raise FileError(f"{path}, line {number}: {error}") from error
        if config in rows:
            raise FileError(f"{path}, line {number}: a second row for {config}")
        rows[config] = row
    if not rows:
        raise FileError(f"{path}: a header and no rows")
    return rows


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _rounded(value: float | None) -> float | None:
    """Six significant digits: more than any timing has, and half the file."""
    return None if value is None else float(f"{value:.6g}")
