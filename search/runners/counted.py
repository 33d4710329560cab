"""`CountedRunner`: a runner whose L2 figures are counted by the hardware, where that can be done.

What it measures, another runner measures; then each config that ran is launched once more under Nsight Compute, all
configs of a batch in one process, which costs a few seconds a batch. Where counters cannot be read it says so once,
and the figures of the model stay.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.compiler import compile_kernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.kernel_source import ENTRIES
from cupygemm.measurement import Measurement
from cupygemm.measuring import verify
from cupygemm.measuring.counters import DRAM_READ_BYTES, DRAM_WRITE_BYTES, L2_HIT_PCT, number, read_counters
from cupygemm.problem import Problem
from cupygemm.search.runners.runner import Confirming, Runner

METRICS = (L2_HIT_PCT, DRAM_READ_BYTES, DRAM_WRITE_BYTES)

_log = logging.getLogger(__name__)


class CountedRunner:
    """Adds counted L2 figures to another runner's measurements.

    Attributes:
        device: the other runner's.
    """

    def __init__(self, runner: Runner, index: int) -> None:
        """Wraps a runner.

        Args:
            runner: measures; closed with this one.
            index: of its CUDA device.
        """
        self.device = runner.device
        self._runner, self._index = runner, index
        self._counts = True

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[Measurement]:
        """One measurement for each config, in the order given, when all have ended; an interruption loses none."""
        measured: list[Measurement] = []
        interruption = None
        try:
            for measurement in self._runner.run(problem, configs):
                measured.append(measurement)
        except KeyboardInterrupt as error:
            interruption = error
        if interruption is None and self._counts:
            measured = self._counted(problem, configs, measured)
        yield from measured
        if interruption is not None:
            raise interruption

    def confirm(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """The other runner's, which are of times."""
        return self._runner.confirm(problem, configs) if isinstance(self._runner, Confirming) else []

    def close(self) -> None:
        """Closes the other runner."""
        self._runner.close()

    def _counted(
        self, problem: Problem, configs: Sequence[KernelConfig], measured: list[Measurement]
    ) -> list[Measurement]:
        ran = [config for config, measurement in zip(configs, measured, strict=True) if measurement.ok]
        if not ran:
            return measured
        try:
            figures = iter(count(problem, ran, self._index))
        except LaunchError as error:
            _log.warning("the L2 figures are modelled, not counted: %s", error)
            self._counts = False
            return measured
        return [each.with_fields(**next(figures)) if each.ok else each for each in measured]


def count(problem: Problem, configs: Sequence[KernelConfig], index: int) -> list[dict[str, Any]]:
    """The counted L2 fields of a measurement for each config.

    Raises:
        LaunchError: counters cannot be read, or a launch failed.
    """
    job = {"problem": problem.to_dict(), "configs": [config.to_dict() for config in configs], "index": index}
    command = [sys.executable, "-m", __name__]
    rows = read_counters(command, METRICS, "|".join(ENTRIES), json.dumps(job))
    if len(rows) != len(configs):
        raise LaunchError(f"ncu profiled {len(rows)} launches of {len(configs)}")
    return [_figures(problem, row) for row in rows]


def _figures(problem: Problem, row: dict[str, str]) -> dict[str, Any]:
    hit_pct, read, written = (number(row[metric]) for metric in METRICS)
    if hit_pct is None or read is None or written is None:
        raise LaunchError("ncu gave no value for a metric: this GPU's counters cannot be read")
    # Written lines may still lie in the L2 when the kernel ends: at least the result goes to device memory some time.
    moved = max(read + written, problem.compulsory_bytes)
    return {
        "l2_term": problem.compulsory_bytes / moved,
        "l2_hit_rate": hit_pct / 100,
        "l2_source": "counters",
    }


def _launch(job: dict[str, Any]) -> None:
    """Launches each config once, in order: what runs under ncu."""
    problem, index = Problem.from_dict(job["problem"]), job["index"]
    cupy = driver.cupy()
    with cupy.cuda.Device(index), cupy.cuda.Stream(non_blocking=True) as stream:
        operands = verify.draw_operands(cupy.random.default_rng(0), problem, verify.ZERO_MEAN)
        for fields in job["configs"]:
            kernel = LoadedKernel(compile_kernel(KernelSpec.of(problem), KernelConfig.from_dict(fields)), index)
            Plan(problem, kernel).launch(operands)
        stream.synchronize()


if __name__ == "__main__":
    _launch(json.load(sys.stdin))
