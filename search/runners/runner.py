"""Who measures: the `Runner` protocol. `ReplayRunner` and `GpuRunner` keep it, and nothing else knows which it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from cupygemm.config import KernelConfig
from cupygemm.measurement import Measurement, Record
from cupygemm.problem import Problem


class Runner(Protocol):
    """(problem, configs) → measurements.

    Attributes:
        device: a label: "cuda:0" or "replay".
    """

    device: str

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Measurement]:
        """One measurement for each config, in the order given, as they end. A bad config is a status, not an error."""
        ...

    def close(self) -> None:
        """Lets go of processes and device."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A runner that can measure a few configs again, side by side, to choose among them."""

    def confirm(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """A more careful measurement of each config, in the order given.

        What was given up before others has fewer samples than they.
        """
        ...


class Sweeping(Runner, Protocol):
    """A runner that a table can be recorded with."""

    def compile_ahead(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> int:
        """Compiles into the cache whatever a sweep will need, on all cores; the number of kernels."""
        ...

    def sweep(self, problems: Sequence[Problem], configs: Sequence[KernelConfig]) -> Iterator[Record]:
        """Every config on every problem, each compiled and loaded once, as they end."""
        ...

    def baselines(self, problem: Problem) -> dict[str, Any]:
        """`cublas_us`, `cublaslt_us` and what else is known of the libraries' times."""
        ...
