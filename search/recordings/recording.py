"""`record`: measures a whole sub-space on a GPU and makes the replay tables of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.measuring.telemetry import Reading
from cupygemm.problem import Problem
from cupygemm.search.recordings.table import Table
from cupygemm.search.runners.runner import Sweeping
from cupygemm.search.spaces.subspace import SubSpace

Known = Mapping[Problem, Mapping[KernelConfig, Measurement]]

MAX_FAILURES = 200
"""Failures that a report spells out; it counts all."""


@dataclass
class Recording:
    """A sweep, finished or not.

    Attributes:
        wanted: (problem, config) pairs that the tables need.
        pairs: pairs measured, by problem.
        resumed: of them, how many were measured before.
        seconds: wall time of the sweep, once all is compiled.
        compiles, compile_seconds: kernels compiled ahead of it, and the wall time that took.
        stopped_by: "done", "seconds" or "interrupted".
    """

    wanted: int = 0
    pairs: dict[Problem, dict[KernelConfig, Measurement]] = field(default_factory=dict)
    resumed: int = 0
    seconds: float = 0.0
    compiles: int = 0
    compile_seconds: float = 0.0
    stopped_by: str = "done"

    @property
    def measured(self) -> int:
        """Pairs measured."""
        return sum(map(len, self.pairs.values()))

    @property
    def pairs_per_minute(self) -> float | None:
        """Of wall time, those measured before left out; None before any time has passed."""
        return _per_minute(self.measured - self.resumed, self.seconds)

    @property
    def complete(self) -> bool:
        """Whether every pair has a measurement."""
        return self.measured == self.wanted

    @property
    def reading(self) -> Reading:
        """Medians of the clocks and powers read beside the measurements."""
        found = [measurement for measurements in self.pairs.values() for measurement in measurements.values()]
        clocks = [each.clock_mhz for each in found if each.clock_mhz is not None]
        powers = [each.power_w for each in found if each.power_w is not None]
        return Reading(round(median(clocks)) if clocks else None, round(median(powers), 1) if powers else None)

    def summary(self) -> dict[str, Any]:
        """Counts, and rates per minute of wall time of the two phases: compiling, then measuring."""
        statuses: Counter[str] = Counter()
        for measurements in self.pairs.values():
            statuses.update(m.status.value for m in measurements.values())
        return {
            "problems": [str(problem) for problem in self.pairs],
            "configs": len({config for measurements in self.pairs.values() for config in measurements}),
            "pairs": self.measured,
            "pairs_wanted": self.wanted,
            "seconds": round(self.seconds, 3),
            "pairs_resumed": self.resumed,
            "pairs_per_minute": self.pairs_per_minute,
            "compiles": self.compiles,
            "compile_seconds": round(self.compile_seconds, 3),
            "compiles_per_minute": _per_minute(self.compiles, self.compile_seconds),
            "statuses": dict(statuses),
            "stopped_by": self.stopped_by,
        }

    def failures(self) -> list[dict[str, Any]]:
        """The first pairs that were not OK, spelt out."""
        found = [
            {"problem": str(problem), "config": config.to_dict(), "status": m.status.value, "detail": m.detail}
            for problem, measurements in self.pairs.items()
            for config, m in measurements.items()
            if m.status is not Status.OK
        ]
        return found[:MAX_FAILURES]


def record(
    problems: Sequence[Problem],
    subspace: SubSpace,
    runner: Sweeping,
    device: DeviceSpec,
    limit_s: float | None = None,
    on_record: Callable[[Record, Recording], None] = lambda record, recording: None,
    known: Known = MappingProxyType({}),
) -> Recording:
    """Compiles and then measures every legal point of a sub-space for every problem. Ctrl-C and the limit end it early.

    Compiling comes first and not beside the measuring, so that the two rates are what they say.

    Args:
        problems: what to record; those that share a spec share each compiled kernel.
        subspace: which configs.
        runner: measures.
        device: the GPU, for what is legal.
        limit_s: wall time of the measuring after which to stop, seconds.
        on_record: called after each pair, with the recording so far.
        known: by problem, what was measured before. A config that is known for all problems of its spec is not measured
            again; another one is, for all of them, since its kernel is loaded anyway.
    """
    plan = [(group, list(subspace.configs(spec, device))) for spec, group in _by_spec(problems).items()]
    recording = Recording(sum(len(group) * len(configs) for group, configs in plan), {p: {} for p in problems})
    left = [(group, _not_known(group, configs, known, recording)) for group, configs in plan]
    recording.resumed = recording.measured
    started = time.monotonic()
    try:
        recording.compiles = sum(runner.compile_ahead(group, configs) for group, configs in left)
        recording.compile_seconds = time.monotonic() - started
        started = time.monotonic()
        for group, configs in left:
            for found in runner.sweep(group, configs):
                recording.pairs[found.problem][found.config] = found.measurement
                recording.seconds = time.monotonic() - started
                on_record(found, recording)
                if limit_s is not None and recording.seconds >= limit_s and not recording.complete:
                    recording.stopped_by = "seconds"
                    return recording
    except KeyboardInterrupt:
        recording.stopped_by = "interrupted"
    finally:
        recording.seconds = time.monotonic() - started
    return recording


def tables_of(
    recording: Recording,
    subspace: SubSpace,
    device: DeviceSpec,
    provenance: dict[str, Any],
    baselines: dict[Problem, dict[str, Any]],
) -> list[Table]:
    """The tables of a complete recording.

    Raises:
        FileError: a legal point was not measured.
    """
    return [
        Table.of(problem, device, subspace, measurements, provenance, baselines[problem])
        for problem, measurements in recording.pairs.items()
    ]


def _not_known(
    group: Sequence[Problem], configs: Sequence[KernelConfig], known: Known, recording: Recording
) -> list[KernelConfig]:
    """The configs to be measured; what is known of the others goes into the recording."""
    left = []
    for config in configs:
        if all(config in known.get(problem, {}) for problem in group):
            for problem in group:
                recording.pairs[problem][config] = known[problem][config]
        else:
            left.append(config)
    return left


def _per_minute(count: int, seconds: float) -> float | None:
    return round(60 * count / seconds, 1) if seconds else None


def _by_spec(problems: Sequence[Problem]) -> dict[KernelSpec, list[Problem]]:
    groups: dict[KernelSpec, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(KernelSpec.of(problem), []).append(problem)
    return groups
