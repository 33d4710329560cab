"""`Target`: what a tuning run is pointed at, a GPU or a recorded table, with all that a bundle says about it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.kernels.kernel_source import source_digest
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import find_table
from cupygemm.search.recordings.table import Table
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.runners.runner import Runner
from cupygemm.search.spaces.space import SearchSpace


@dataclass(frozen=True)
class Target:
    """A runner, and what its measurements are of.

    Attributes:
        runner: measures or replays.
        space: what may be tried there.
        device: the GPU the times are of.
        provenance: as `provenance.collect` gives it; the table's own on replay.
        source_digest: of the sources of gemm.cuh that the times are of.
        baselines: `cublas_us`, `cublaslt_us` and so on.
        recorded: the table that is replayed; None on a GPU.
    """

    runner: Runner
    space: SearchSpace
    device: DeviceSpec
    provenance: dict[str, Any]
    source_digest: str
    baselines: dict[str, Any]
    recorded: Table | None = None

    def source_digest_of(self, config: KernelConfig) -> str:
        """Of the sources of a config's kernel that the times are of; "unknown" where a table does not say."""
        if not config.cp_async_stages:
            return self.source_digest
        if self.recorded is None:
            return source_digest(config)
        return str(self.provenance.get("cp_async_source_digest") or "unknown")


def replay_target(problem: Problem, tables: Traversable | None = None) -> Target:
    """The recorded table of a problem.

    Args:
        problem: what is to be computed.
        tables: the folder to look in; None for the tables that ship with the package.

    Raises:
        FileError: no table of exactly this problem, or it cannot be read.
    """
    table = find_table(problem, tables)
    return Target(
        runner=ReplayRunner(table),
        space=table.space,
        device=table.device,
        provenance=table.provenance,
        source_digest=str(table.provenance.get("source_digest") or "unknown"),
        baselines=table.baselines,
        recorded=table,
    )
