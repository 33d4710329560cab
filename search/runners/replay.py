"""`ReplayRunner`: answers from a recorded table, so that a search runs where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cupygemm.config import KernelConfig
from cupygemm.errors import ProblemError
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.search.recordings.table import Row, Table
from cupygemm.search.runners.traffic import with_l2


class ReplayRunner:
    """A runner whose measurements were recorded earlier.

    A replayed measurement has one sample, the recorded median at the clock of the table's `times_us`: the samples
    themselves are not in a table.

    Attributes:
        device: "replay".
        table: what it answers from.
    """

    device = "replay"

    def __init__(self, table: Table) -> None:
        self.table = table

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Measurement]:
        """The recorded outcome of each config; one that is not in the table is ILLEGAL.

        Raises:
            ProblemError: the table is of another problem.
        """
        if problem != self.table.problem:
            raise ProblemError(f"asked for {problem}, but this is a {self.table}")
        return map(self._answer, configs)

    def confirm(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """The same answers again: a recording does not vary."""
        return list(self.run(problem, configs))

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, config: KernelConfig) -> Measurement:
        row = self.table.rows.get(config)
        if row is None:
            return Measurement(Status.ILLEGAL, detail="not in the recorded sub-space")
        found = _measurement(row, self.table.times_us[config], self.table.cublas_us)
        return with_l2(found, self.table.problem, config, self.table.device)


def _measurement(row: Row, us: float | None, cublas_us: float | None) -> Measurement:
    return Measurement(
        status=row.status,
        samples_us=() if us is None else (us,),
        baseline_us=() if cublas_us is None or us is None else (cublas_us,),
        error=row.error,
        registers=row.registers,
        spill_bytes=row.spill_bytes,
        clock_mhz=row.clock_mhz,
        detail=row.detail,
    )
