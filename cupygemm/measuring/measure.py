"""The one place where anything here is timed: verify, capture in CUDA graphs, replay candidate and baseline by turns.

1. Verify: the candidate computes two products, one of zero-mean and one of positive-mean operands, into a guarded
   output full of NaN; both must be within the bounds of `verify`, and so must one of those that its graph replays.
2. Capture: one CUDA graph of many launches, over operand sets that together are twice the L2 ("rotated"), or over one
   set ("resident"); the graph lasts about 300 µs or more, so that its own launch does not count.
3. Interleave: graphs of candidate and baseline by turns, each between two events, queued without waiting, so that the
   GPU is always behind the host and no sample holds a launch's latency. Two GPUs of one kind, or one at two moments,
   differ by more than most tuning gains: only times of one interleaved run compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from cupygemm.epilogue import Epilogue
from cupygemm.errors import VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring import telemetry, verify
from cupygemm.measuring.cublas import NOT_SUPPORTED, Cublas, CublasError
from cupygemm.measuring.cublaslt import CublasLt, LtAlgorithm
from cupygemm.measuring.graphs import TimedGraph, capture, interleave, sustain
from cupygemm.measuring.measuring_stream import active
from cupygemm.measuring.timing import (
    CUBLAS,
    CUBLASLT,
    HEAT,
    LAST,
    QUICK,
    THOROUGH,
    Effort,
    Timing,
    faster_half,
    is_hopeless,
    num_launches,
    num_sets,
)
from cupygemm.measuring.unfused import Unfused
from cupygemm.measuring.verify import GuardedOutput, Reference, Verdict
from cupygemm.names import RESIDENT, ROTATED, SUSTAINED
from cupygemm.problem import Problem

WRONG_BASELINE = 1e-2
"""Relative error that no baseline can have: cuBLAS may add up split-K partials in 16 bits, but stays far below it."""
LT_ALGORITHMS = 16
LT_ROUNDS = 5
LT_FINALISTS = 4
"""Algorithms, the fastest by turns, of which the fastest in blocks is looked for."""
BLOCKS = 5
BLOCK_US = 400_000.0
"""A block is long beside the milliseconds in which the clock follows the power."""


class Bench:
    """All that is needed to verify and time candidates for one problem on one device.

    Operands whose rows are no multiple of 16 bytes are padded to the next one, as TMA needs it (`draw_operands`); own
    kernels, cuBLAS and cublasLt get the same buffers with the same strides. Rows of the result are not padded: where
    TMA cannot store them, a kernel stores them from registers.

    Attributes:
        problem, device: what for, and where (CUDA index).
        has_baseline: whether cuBLAS has this combination of dtypes.
    """

    def __init__(self, problem: Problem, device: int = 0, seed: int = 0) -> None:
        """Draws operands, computes the float64 references and checks the baseline against them.

        Raises:
            LaunchError: no such device, no cuBLAS, or CUDA refused.
            VerificationError: cuBLAS itself is wrong, so this module calls it wrongly.
        """
        self.problem = problem
        self.device = device
        self._graphs: dict[str, TimedGraph] = {}
        self._lt_best: dict[str, LtAlgorithm | None] = {}
        l2_bytes = driver.device_spec(device).l2_bytes
        with active(device):
            cupy = driver.cupy()
            rng = cupy.random.default_rng(seed)
            sets = range(num_sets(problem, l2_bytes))
            self._sets = [verify.draw_operands(rng, problem, verify.ZERO_MEAN) for _ in sets]
            self._guarded = GuardedOutput(cupy, problem.matrix(problem.m, problem.n), problem.out_dtype)
            cases = [self._sets[0], verify.draw_operands(rng, problem, verify.POSITIVE_MEAN)]
            guarded = [operands._replace(out=self._guarded.array) for operands in cases]
            self._cases = [(operands, Reference.of(operands, problem)) for operands in guarded]
            self._cublas, self._lt = Unfused(problem, Cublas()), CublasLt()
            self.has_baseline = self._check_baseline()

    def _check_baseline(self) -> bool:
        try:
            error = self.verify(self._cublas.launch).error
        except CublasError as refusal:
            if refusal.status == NOT_SUPPORTED:
                return False
            raise
        if not error < WRONG_BASELINE:
            raise VerificationError(f"{self.problem}: cuBLAS differs from float64 by {error:.2e}")
        return True

    @property
    def cublas(self) -> Launch:
        """The launch that candidates are compared with."""
        return self._cublas.launch

    def is_sound(self) -> bool:
        """Whether operands and references are still what they were, as cuBLAS can tell: a stray write spoils them."""
        return not self.has_baseline or self.verify(self._cublas.launch).error < WRONG_BASELINE

    @property
    def device_bytes(self) -> int:
        """About what this bench holds of device memory."""
        references = 2 * 12 * self.problem.batch * self.problem.m * self.problem.n
        return (len(self._sets) + 2) * self.problem.compulsory_bytes + references

    def bytes_rotated(self, mode: str) -> int:
        """Bytes of all operand sets that a graph of this mode goes through."""
        return len(self.operands(mode)) * self.problem.compulsory_bytes

    def verify(self, launch: Launch) -> Verdict:
        """Runs a candidate on zero-mean and on positive-mean operands.

        Returns:
            the verdict on the first that fails, or the one with the larger error.

        Raises:
            CupygemmError: whatever the candidate raises; LaunchError where it faults.
        """
        verdicts: list[Verdict] = []
        for operands, reference in self._cases:
            verdicts.append(self._verify_case(launch, operands, reference))
            if not verdicts[-1].ok:
                return verdicts[-1]
        return max(verdicts, key=lambda verdict: verdict.error)

    def _verify_case(self, launch: Launch, operands: Operands, reference: Reference) -> Verdict:
        with active(self.device):
            self._guarded.poison()
            launch(operands)
            verdict = verify.check(operands.out, reference)
            intact = self._guarded.intact()
        return Verdict(verdict.error, verdict.frobenius_bound, verdict.worst_element, intact)

    def measure(self, launch: Launch, effort: Effort = QUICK, mode: str = ROTATED) -> Measurement:
        """Verifies one candidate and times it against cuBLAS; a wrong one is not timed.

        Raises:
            CupygemmError: whatever the candidate raises; LaunchError where it faults.
        """
        return self.measure_all([launch], effort, mode)[0]

    def measure_all(self, launches: Sequence[Launch], effort: Effort, mode: str = ROTATED) -> list[Measurement]:
        """Verifies candidates and times those that are right against cuBLAS and each other, in one run.

        Raises:
            CupygemmError: whatever a candidate raises; LaunchError where one faults.
        """
        verdicts, graphs = self._verified(launches, mode)
        with active(self.device):
            timing = self._time(graphs, effort, mode) if graphs else Timing({})
        return [_measurement(verdict, timing, name) for name, verdict in verdicts.items()]

    def race(self, launches: Sequence[Launch], mode: str = ROTATED) -> list[Measurement]:
        """Verifies candidates and halves those that are right, heat by heat, until the last `LAST` are timed at length.

        In each heat they and cuBLAS take turns; those stay whose rounds are the fastest beside cuBLAS's of the same
        round, at the median. A measurement has the samples of its candidate's last heat and none of those before, which
        chose it: what stayed to the end has more of them.

        Raises:
            CupygemmError: whatever a candidate raises; LaunchError where one faults.
        """
        verdicts, graphs = self._verified(launches, mode)
        timings = dict.fromkeys(verdicts, Timing({}))
        running = list(graphs)
        with active(self.device):
            while running:
                effort = HEAT if len(running) > LAST else THOROUGH
                timing = self._time({name: graphs[name] for name in running}, effort, mode)
                timings.update(dict.fromkeys(running, timing))
                running = faster_half(timing, running) if len(running) > LAST else []
        return [_measurement(verdict, timings[name], name) for name, verdict in verdicts.items()]

    def _verified(self, launches: Sequence[Launch], mode: str) -> tuple[dict[str, Verdict], dict[str, TimedGraph]]:
        """The verdict on each launch, and the graphs of those that are right, by its place."""
        verdicts = {str(index): self.verify(launch) for index, launch in enumerate(launches)}
        with active(self.device):
            right = [(name, launches[int(name)]) for name, verdict in verdicts.items() if verdict.ok]
            graphs = {name: self._capture(launch, mode) for name, launch in right}
            for name, timed in list(graphs.items()):
                replayed = self._verify_replay(timed)
                if not replayed.ok:
                    verdicts[name] = replayed
                    del graphs[name]
        return verdicts, graphs

    def _verify_replay(self, timed: TimedGraph) -> Verdict:
        """Whether a launch in the midst of others is right: some races show only there."""
        out = self._sets[0].out
        out.view(np.uint8).fill(0xFF)
        timed.graph.launch()
        return verify.check(out, self._cases[0][1])

    def time(self, launches: Mapping[str, Launch], effort: Effort, mode: str = ROTATED) -> Timing:
        """Times candidates that are known to be right, with cuBLAS among them as `CUBLAS` where it has the dtypes.

        `SUSTAINED` has an effort of its own.

        Raises:
            CupygemmError: whatever a candidate raises; LaunchError where one faults.
        """
        with active(self.device):
            return self._time({name: self._capture(launch, mode) for name, launch in launches.items()}, effort, mode)

    def _time(self, candidates: Mapping[str, TimedGraph], effort: Effort, mode: str) -> Timing:
        graphs = dict(candidates)
        if self.has_baseline:
            graphs[CUBLAS] = self._baseline_graph(mode)
        if mode == SUSTAINED:
            return self._sustain(graphs)
        timing = Timing(interleave(graphs, effort.trial_rounds))
        if is_hopeless(timing, list(candidates)):
            return timing
        round_us = sum(median(samples) * graphs[name].launches for name, samples in timing.samples_us.items())
        warmups = max(1, math.ceil(effort.warm_us / round_us))
        rounds = effort.rounds - effort.trial_rounds
        rest = interleave(graphs, rounds, lambda: self._read_into(timing), warmups)
        # What was taken before the GPU was warm counts where nobody asked for that.
        for name, samples in rest.items():
            timing.samples_us[name] = samples if effort.warm_us else timing.samples_us[name] + samples
        return timing

    def _sustain(self, graphs: Mapping[str, TimedGraph]) -> Timing:
        timing = Timing({})

        def read(name: str) -> None:
            timing.readings[name] = telemetry.read(self.device)

        timing.samples_us = sustain(graphs, BLOCKS, BLOCK_US, read)
        timing.reading = next(iter(timing.readings.values()))
        return timing

    def _read_into(self, timing: Timing) -> None:
        timing.reading = telemetry.read(self.device)

    def operands(self, mode: str) -> list[Operands]:
        """The sets that graphs of this mode go through."""
        return self._sets[:1] if mode == RESIDENT else self._sets

    def _capture(self, launch: Launch, mode: str) -> TimedGraph:
        sets = self.operands(mode)
        return capture(launch, sets, num_launches(self.problem, len(sets)))

    def _baseline_graph(self, mode: str) -> TimedGraph:
        if mode not in self._graphs:
            self._graphs[mode] = self._capture(self._cublas.launch, mode)
        return self._graphs[mode]

    def cublaslt(self, mode: str = ROTATED) -> LtAlgorithm | None:
        """The fastest of the algorithms that cublasLt proposes, timed once; None where it has none.

        Raises:
            VerificationError: its result is wrong, so this package calls it wrongly.
        """
        if mode not in self._lt_best:
            self._lt_best[mode] = self._fastest_lt(mode)
        return self._lt_best[mode]

    def _fastest_lt(self, mode: str) -> LtAlgorithm | None:
        with active(self.device):
            try:
                proposed = self._lt.algorithms(self._sets[0], LT_ALGORITHMS, Epilogue.parse(self.problem.epilogue))
            except CublasError as refusal:
                if refusal.status == NOT_SUPPORTED:
                    return None
                raise
            running = {str(index): algorithm for index, algorithm in enumerate(proposed) if self._runs(algorithm)}
            if not running:
                return None
            graphs = {name: self._capture(algorithm.run, mode) for name, algorithm in running.items()}
            samples = interleave(graphs, LT_ROUNDS)
            if mode == SUSTAINED:
                finalists = sorted(samples, key=lambda name: median(samples[name]))[:LT_FINALISTS]
                samples = sustain({name: graphs[name] for name in finalists}, 2, BLOCK_US)
        best = running[min(samples, key=lambda name: median(samples[name]))]
        error = self.verify(best.run).error
        if not error < WRONG_BASELINE:
            raise VerificationError(f"{self.problem}: cublasLt differs from float64 by {error:.2e}")
        return best

    def _runs(self, algorithm: LtAlgorithm) -> bool:
        try:
            algorithm.run(self._sets[0])
        except CublasError:
            return False
        return True

    def baselines(self, mode: str = ROTATED) -> dict[str, Any]:
        """What the libraries need, from one interleaved run: `cublas_us`, `cublaslt_us`, `cublaslt_algorithm`."""
        best = self.cublaslt(mode)
        candidates = {} if best is None else {CUBLASLT: best.run}
        timing = self.time(candidates, THOROUGH, mode) if candidates or self.has_baseline else Timing({})
        return {
            "cublas_us": timing.median_us(CUBLAS),
            "cublaslt_us": timing.median_us(CUBLASLT),
            "cublaslt_algorithm": best.describe() if best else None,
        }


def _measurement(verdict: Verdict, timing: Timing, name: str) -> Measurement:
    error = verdict.error if math.isfinite(verdict.error) else None
    if not verdict.ok:
        return Measurement(Status.WRONG_RESULT, error=error, detail=verdict.detail)
    return Measurement(
        Status.OK,
        samples_us=tuple(timing.samples_us[name]),
        baseline_us=tuple(timing.samples_us.get(CUBLAS, ())),
        error=error,
        clock_mhz=timing.reading.clock_mhz,
        power_w=timing.reading.power_w,
    )
