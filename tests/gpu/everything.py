"""A bundle with a config for every problem, so that own kernels run wherever one can."""

from __future__ import annotations

from typing import Any

from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, Tool
from cupygemm.config import KernelConfig
from cupygemm.device import H200, DeviceSpec
from cupygemm.kernels import compiler
from cupygemm.problem import Problem
from tests.gpu.protocol import SMALL

ANY = SMALL.swapped(store_stages=0)
"""Stores from registers, so that rows of any length can be written."""


class Everything(Bundle):
    """Has the same entry for each problem.

    Attributes:
        config: its config.
    """

    config: Any = ANY

    def entry(self, problem: Problem) -> Entry:
        """One with its config."""
        search = SearchInfo(strategy="test", evaluations=1)
        return Entry(problem=problem, config=self.config, measured=Measured(us=1.0), search=search)

    def elsewhere(self, device: DeviceSpec) -> str | None:
        """Nothing to say: it is for any GPU."""
        return None


def everything(config: KernelConfig = ANY) -> Everything:
    """One for the kernel's sources as they are.

    Args:
        config: by default one that is legal for all problems.
    """
    tool = Tool(version="0", source_digest=compiler.source_digest())
    return Everything(created="2026-11-30", tool=tool, device=BundleDevice.of(H200, {}), config=config)
