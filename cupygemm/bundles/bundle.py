"""What ships: `Bundle`, the best configs of one device, as a YAML file that is safe to take from strangers.

A bundle is validated whole when it is read: an error names the key and says what is legal there. What is refused
before that, because nobody can trust it, is said in `plain_yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from cupygemm import __version__
from cupygemm.atomic import write_atomically
from cupygemm.bundles import plain_yaml
from cupygemm.bundles.validation import describe
from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.errors import BundleError
from cupygemm.measurement import Measurement
from cupygemm.problem import Problem

SCHEMA: Literal["cupygemm.bundle/1"] = "cupygemm.bundle/1"
ANEW = "`cupygemm tune` on a Hopper GPU measures anew"


def _reader(kind: type[Problem] | type[KernelConfig]) -> Callable[[Any], Any]:
    """A validator that takes an instance, or a mapping with the fields of `kind`; those with a default may miss."""
    names = tuple(kind.__dataclass_fields__)
    required = [field.name for field in fields(kind) if field.default is MISSING]

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"a mapping with the keys {', '.join(names)} belongs here")
        missing = [name for name in required if name not in value]
        unknown = [str(name) for name in value if name not in names]
        if missing or unknown:
            found = " and ".join(f"{what} {', '.join(keys)}" for what, keys in _named(missing, unknown))
            raise ValueError(f"{found}; its keys are {', '.join(names)}")
        return kind.from_dict(value)

    return read


def _named(missing: list[str], unknown: list[str]) -> list[tuple[str, list[str]]]:
    return [(what, keys) for what, keys in (("missing", missing), ("unknown", unknown)) if keys]


def _as_dict(value: Problem | KernelConfig) -> dict[str, Any]:
    return value.to_dict()


_ProblemField = Annotated[Problem, PlainValidator(_reader(Problem)), PlainSerializer(_as_dict)]
_ConfigField = Annotated[KernelConfig, PlainValidator(_reader(KernelConfig)), PlainSerializer(_as_dict)]
_Time = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    """No conversion, no infinities, and a key that is not known is an error."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _Open(BaseModel):
    """The same, but keys that a later version may have added are kept as they are."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)


class Tool(_Open):
    """What made the bundle: the package's version, and the digest of the kernel's sources.

    The digest is that of the entries whose provenance has none of its own.
    """

    version: str
    source_digest: str


class BundleDevice(_Open):
    """The GPU that the configs were measured on.

    Attributes:
        sm_count: its streaming multiprocessors.
        driver, cuda, nvrtc: versions; None where unknown.
    """

    name: str
    compute_capability: Annotated[list[int], Field(min_length=2, max_length=2)]
    sm_count: Annotated[int, Field(ge=1)]
    driver: str | None = None
    cuda: str | None = None
    nvrtc: str | None = None

    @classmethod
    def of(cls, device: DeviceSpec, provenance: dict[str, Any]) -> Self:
        """From a device and `provenance.collect`'s record of the versions."""
        versions = {key: _text(provenance.get(key)) for key in ("driver", "cuda", "nvrtc")}
        capability = list(device.compute_capability)
        return cls(name=device.name, compute_capability=capability, sm_count=device.sm_count, **versions)

    def difference(self, other: DeviceSpec | BundleDevice) -> str | None:
        """The first of name, compute capability and SM count that differs, or None where configs hold on both."""
        pairs = (
            ("name", self.name, other.name),
            ("compute capability", _dotted(self.compute_capability), _dotted(other.compute_capability)),
            ("number of SMs", self.sm_count, other.sm_count),
        )
        return next((f"its {what} is {mine}, not {theirs}" for what, mine, theirs in pairs if mine != theirs), None)

    def __str__(self) -> str:
        return gpu_words(self)


class Measured(_Open):
    """Times in µs, sizes in bytes, clock in MHz; None where something was not measured.

    Attributes:
        us: median GPU time of a launch, rotated operands.
        cublas_us, cublaslt_us: the baselines of the same run.
        speedup: cublas_us / us.
        spread: half the interquartile range over the median.
        error: relative Frobenius error against float64.
    """

    us: _Time
    cublas_us: _Time | None = None
    cublaslt_us: _Time | None = None
    speedup: _Time | None = None
    spread: float | None = None
    error: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    clock_mhz: int | None = None

    @classmethod
    def of(cls, measurement: Measurement, **known: float | None) -> Self:
        """From a measurement that is OK; `known` overrides single fields.

        Raises:
            BundleError: the measurement has no time.
        """
        if measurement.us is None:
            raise BundleError(f"a {measurement.status} measurement has no time to put in a bundle")
        names = ("us", "cublas_us", "speedup", "spread", "error", "registers", "spill_bytes", "clock_mhz")
        return cls(**{**{name: getattr(measurement, name) for name in names}, **known})


class SearchInfo(_Open):
    """How the config was found."""

    strategy: str
    seed: int | None = None
    evaluations: int


class Entry(_Strict):
    """One problem and the best config known for it.

    Attributes:
        provenance: date, commit, driver and so on of the measurement, as `provenance.collect` gives them; with
            `replayed: true` where they are those of a recorded table.
    """

    problem: _ProblemField
    config: _ConfigField
    measured: Measured
    search: SearchInfo
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """Over cuBLAS, as measured; None where that was not measured beside it."""
        measured = self.measured
        if measured.speedup is None and measured.cublas_us is not None:
            return measured.cublas_us / measured.us
        return measured.speedup

    @property
    def is_recorded(self) -> bool:
        """Whether its times are out of a recorded table, and none that its search has measured."""
        return self.provenance.get("replayed") is True

    @property
    def is_slower(self) -> bool:
        """Whether cuBLAS was measured to be faster."""
        return self.speedup is not None and self.speedup < 1

    def beats(self, other: Entry) -> bool:
        """Whether it is the better one for their problem: by speedup over cuBLAS, or by time where one has none.

        What a search measured is better than what a replay was answered, whatever the times are.
        """
        if self.is_recorded != other.is_recorded:
            return other.is_recorded
        if self.speedup is None or other.speedup is None:
            return self.measured.us < other.measured.us
        return self.speedup > other.speedup


class Bundle(_Strict):
    """Best configs of one device.

    Attributes:
        schema_: "cupygemm.bundle/1" (the key is `schema`).
        created: when it was first written, ISO 8601.
        entries: at most one a problem.
    """

    model_config = ConfigDict(populate_by_name=True, protected_namespaces=())

    schema_: Literal["cupygemm.bundle/1"] = Field(default=SCHEMA, alias="schema")
    created: str
    tool: Tool
    device: BundleDevice
    entries: list[Entry] = Field(default_factory=list)

    def model_post_init(self, context: Any, /) -> None:
        """Refuses two entries for one problem."""
        super().model_post_init(context)
        seen: set[Problem] = set()
        for i, entry in enumerate(self.entries):
            if entry.problem in seen:
                raise ValueError(f"entries[{i}]: a second entry for {entry.problem}")
            seen.add(entry.problem)

    @classmethod
    def load(cls, path: Path | Traversable) -> Self:
        """Reads and validates a bundle.

        Raises:
            BundleError: the file cannot be read, is no YAML, or is not a bundle; the message names the key.
        """
        document = plain_yaml.read(path)
        if not isinstance(document, dict):
            raise BundleError(f"{path}: a bundle is a mapping that starts with `schema: {SCHEMA}`")
        if document.get("schema") != SCHEMA:
            raise BundleError(f"{path}: schema is {document.get('schema')!r}: this version reads {SCHEMA}")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise BundleError(f"{path}: {describe(error)}") from error

    def save(self, path: Path) -> None:
        """Writes the bundle atomically; `load` gives an equal one.

        Raises:
            OSError: the file cannot be written.
        """
        write_atomically(path, self.to_yaml().encode())

    def to_yaml(self) -> str:
        """The whole file."""
        return plain_yaml.dump(self.model_dump(mode="json", by_alias=True))

    def to_json(self) -> str:
        """The whole file as JSON, a line an entry: YAML too, read seven times as fast, and not for a person."""
        head = self.model_dump(mode="json", by_alias=True)
        entries = ",\n".join(json.dumps(entry) for entry in head.pop("entries"))
        return f'{json.dumps(head)[:-1]}, "entries": [\n{entries}\n]}}\n'

    def entry(self, problem: Problem) -> Entry | None:
        """The entry for exactly this problem, wherever it was measured."""
        return next((entry for entry in self.entries if entry.problem == problem), None)

    def merged(self, other: Bundle) -> Bundle:
        """This bundle with another's entries: theirs replace those for the same problem.

        Raises:
            BundleError: the other is of another device.
        """
        difference = self.device.difference(other.device)
        if difference is not None:
            raise BundleError(
                f"entries of {other.device.name} do not belong in a bundle of {self.device.name}: {difference}; keep a "
                "bundle for each device"
            )
        mixed = self.tool.source_digest != other.tool.source_digest
        found = [entry for bundle in (self, other) for entry in (bundle._traced() if mixed else bundle.entries)]
        entries = {entry.problem: entry for entry in found}
        return Bundle(created=self.created, tool=other.tool, device=other.device, entries=list(entries.values()))

    def _traced(self) -> list[Entry]:
        """Its entries, each with the digest of the kernel's sources that it was measured with."""
        return [
            entry.model_copy(update={"provenance": {**entry.provenance, "source_digest": self.source_digest_of(entry)}})
            for entry in self.entries
        ]

    def source_digest_of(self, entry: Entry) -> str:
        """The digest of the kernel's sources that an entry was measured with: its own, or else the bundle's."""
        own = entry.provenance.get("source_digest")
        return own if isinstance(own, str) else self.tool.source_digest

    def mismatch(self, device: DeviceSpec) -> str | None:
        """Why its entries do not hold on a device, or None when they do.

        They hold on every GPU of the same compute capability, which need not be the one they were measured on: see
        `elsewhere`. They hold for other kernel sources too, since a kernel is compiled from those at hand: see
        `outdated`.
        """
        mine, theirs = _dotted(self.device.compute_capability), _dotted(device.compute_capability)
        if mine != theirs:
            return f"it was measured on another kind of GPU: its compute capability is {mine}, not {theirs}"
        return None

    def remark(self, entry: Entry, source_digest: str) -> str | None:
        """What to say of where an entry's times are from; None where its search measured the kernel at hand.

        Args:
            source_digest: of the sources at hand of the entry's kernel.
        """
        outdated = self.outdated(entry, source_digest)
        if outdated is None and entry.is_recorded:
            return f"recorded elsewhere and replayed: nothing was measured here, {ANEW}"
        return outdated

    def outdated(self, entry: Entry, source_digest: str) -> str | None:
        """What to say where an entry was measured with other kernel sources than these; None where it was not."""
        theirs = self.source_digest_of(entry)
        if theirs == source_digest:
            return None
        sources = f"with other kernel sources ({theirs[:16]}, now {source_digest[:16]})"
        if entry.is_recorded:
            return f"recorded {sources}: nothing was measured here, {ANEW}"
        return f"measured {sources}: its times may be others now, {ANEW}"

    def elsewhere(self, device: DeviceSpec) -> str | None:
        """What to say where entries measured on another GPU are used on this one; None on the GPU they are of."""
        if self.device.difference(device) is None:
            return None
        return (
            f"measured on {self.device}, not on this {gpu_words(device)}: another config may be faster here, "
            "`cupygemm tune` finds it"
        )


def gpu_words(device: DeviceSpec | BundleDevice) -> str:
    """A GPU for a person, with what tells products of one name apart: "NVIDIA H200 (132 SMs)"."""
    return f"{device.name} ({device.sm_count} SMs)"


def merged_all(bundles: Mapping[Path, Bundle]) -> Bundle:
    """All bundles in one; of two entries for a problem the better stays.

    Args:
        bundles: at least one, by the file they are from.

    Raises:
        BundleError: they are not all of one device; the message names the file.
    """
    (_, whole), *others = bundles.items()
    for path, bundle in others:
        known = {entry.problem: entry for entry in whole.entries}
        better = [entry for entry in bundle.entries if entry.problem not in known or entry.beats(known[entry.problem])]
        try:
            whole = whole.merged(bundle.model_copy(update={"entries": better}))
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from error
    return whole


def new_bundle(device: BundleDevice, source_digest: str, entries: Iterable[Entry] = ()) -> Bundle:
    """A bundle made now by this version of the package."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tool = Tool(version=__version__, source_digest=source_digest)
    return Bundle(created=now, tool=tool, device=device, entries=list(entries))


def _dotted(capability: Iterable[int]) -> str:
    return ".".join(map(str, capability))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
