"""A recorded table as a cache file of Kernel Tuner, on which its strategies run unchanged in simulation mode.

    document = json.loads(Path("cache.json").read_text())
    kernel_tuner.tune_kernel(
        document["kernel_name"], "", document["problem_size"], [], document["tune_params"],
        restrictions=document["restrictions"], cache="cache.json", simulation_mode=True, strategy="genetic_algorithm",
    )

The format is the one that Kernel Tuner 1.5 reads and writes (tried with 1.5.0, 2026-11): a header, and a result for
each point under its values, joined by commas. Beside its own keys the header has `restrictions`, `excluded` and more of
the table's; Kernel Tuner passes over keys that it does not know. A table says nothing of the time that compiling
and measuring a point took, so the file does not either: budgets are counts of evaluations (`max_fevals`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cupygemm.atomic import write_atomically
from cupygemm.config import KernelConfig
from cupygemm.measurement import Status
from cupygemm.search.recordings.table import Row, Table

KERNEL_NAME = "gemm_kernel"

ERRORS = {
    Status.ILLEGAL: "InvalidConfig",
    Status.COMPILE_FAILED: "CompilationFailedConfig",
    Status.SERIALISED: "CompilationFailedConfig",
    Status.LAUNCH_FAILED: "RuntimeFailedConfig",
    Status.WRONG_RESULT: "RuntimeFailedConfig",
    Status.TIMED_OUT: "RuntimeFailedConfig",
    Status.CRASHED: "RuntimeFailedConfig",
}
"""Kernel Tuner's names for what can go wrong."""


def export(table: Table, path: Path) -> None:
    """Writes a table as a cache file.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, to_text(table).encode())


def to_text(table: Table) -> str:
    """The file: one line for the header, one for each point, and the three brackets that tell a closed file."""
    header = json.dumps(_header(table))
    results = ",\n".join(
        f"{json.dumps(_key(config))}: {json.dumps(_result(config, row, table.times_us[config]))}"
        for config, row in table.rows.items()
    )
    return f'{header[:-1]}, "cache": {{\n{results}}}}}'


def _header(table: Table) -> dict[str, Any]:
    problem, tune_params = table.problem, {knob.name: list(map(int, knob.values)) for knob in table.space.knobs}
    return {
        "device_name": table.device.name,
        "kernel_name": KERNEL_NAME,
        "problem_size": [problem.m, problem.n, problem.k],
        "tune_params_keys": list(tune_params),
        "tune_params": tune_params,
        "objective": "time",
        "restrictions": _restrictions(table),
        "excluded": [asdict(exclusion) for exclusion in table.restrictions],
        "problem": problem.to_dict(),
        "provenance": table.provenance,
        "baselines": table.baselines,
    }


def _restrictions(table: Table) -> list[str]:
    names = [knob.name for knob in table.space.knobs if knob.varies]
    points = [tuple(int(getattr(config, name)) for name in names) for config in table.rows]
    return restrictions(names, {knob.name: len(knob.values) for knob in table.space.knobs}, points)


def restrictions(names: Sequence[str], sizes: Mapping[str, int], points: Collection[Sequence[int]]) -> list[str]:
    """Points as expressions that together hold for them and for no other: nothing of the rules is said twice.

    There is one for each prefix of the names after which something is left out. The last one says it all, but Kernel
    Tuner, which fills in one parameter after the other, would walk the whole product for it: 52 s for a product of
    11,059,200 points with 3,486 in the table, against 1 s (2026-11, one core).

    Args:
        names: the parameters that vary.
        sizes: how many values each has.
        points: their values; all different.
    """
    found: list[str] = []
    before = 1
    for length in range(1, len(names) + 1):
        prefixes = sorted({tuple(point[:length]) for point in points})
        if len(prefixes) < before * sizes[names[length - 1]] or (length == len(names) and not found):
            found.append(f"({', '.join(names[:length])},) in {{{', '.join(map(str, prefixes))}}}")
        before = len(prefixes)
    return found


def _values(config: KernelConfig) -> dict[str, int]:
    """Every knob as a number: some of Kernel Tuner's strategies fail on booleans."""
    return {name: int(value) for name, value in config.to_dict().items()}


def _key(config: KernelConfig) -> str:
    return ",".join(map(str, _values(config).values()))


def _result(config: KernelConfig, row: Row, us: float | None) -> dict[str, Any]:
    """What Kernel Tuner would have noted: `time` in milliseconds, or the name of the failure in its place."""
    return {**_values(config), **dict(_outcome(row, us)), **dict(_details(row))}


def _outcome(row: Row, us: float | None) -> Iterator[tuple[str, Any]]:
    if us is not None:
        yield "time", us / 1000
    else:
        # Version 1.5 looks at `__error__`, those before it at the objective.
        yield "time", ERRORS[row.status]
        yield "__error__", ERRORS[row.status]


def _details(row: Row) -> Iterator[tuple[str, Any]]:
    names = {"registers": row.registers, "spill_bytes": row.spill_bytes, "relative_error": row.error}
    times = {"spread": row.spread, "cublas_time": None if row.cublas_us is None else row.cublas_us / 1000}
    yield from ((name, value) for name, value in {**names, **times}.items() if value is not None)
