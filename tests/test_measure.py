"""The measuring protocol on a fake GPU: what is verified, how samples are taken, and what comes of a bad candidate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupygemm.device import H200
from cupygemm.errors import LaunchError, VerificationError
from cupygemm.kernels.operands import Operands
from cupygemm.measurement import Status
from cupygemm.measuring import graphs, measure, telemetry
from cupygemm.measuring.cublas import CublasError
from cupygemm.measuring.graphs import capture, interleave, sustain
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.measuring_stream import is_usable
from cupygemm.measuring.timing import (
    CUBLAS,
    CUBLASLT,
    GRAPH_US,
    HEAT,
    MAX_SETS,
    QUICK,
    THOROUGH,
    Effort,
    Timing,
    faster_half,
    good_us,
    num_launches,
    num_sets,
)
from cupygemm.names import RESIDENT, ROTATED, SUSTAINED
from cupygemm.problem import Problem
from cupygemm.search.runners import gpu_jobs
from tests.fake_baselines import BASELINE_US, FakeCublas, measuring_gpu, refuse
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import product

PROBLEM = Problem(24, 40, 64)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return measuring_gpu(monkeypatch)


def narrow(a: Any, b: Any, out: Any) -> None:
    """An fp16 accumulator."""
    total = np.zeros(out.shape, np.float16)
    for start in range(0, a.shape[1], 16):
        step = a[:, start : start + 16].astype(np.float32) @ b[start : start + 16].astype(np.float32)
        total = (total + step).astype(np.float16)
    out[...] = total


def lazy(a: Any, b: Any, out: Any) -> None:
    """Leaves the last row unwritten."""
    out[:-1] = (a.astype(np.float32) @ b.astype(np.float32))[:-1]


def stray(a: Any, b: Any, out: Any) -> None:
    """Right, and writes one element behind the output where there is one."""
    product(a, b, out)
    if out.base is not None:
        out.base[-measure.verify.GUARD_BYTES] = 0


def test_a_right_candidate_is_timed_against_cublas(gpu: FakeGpu) -> None:
    measurement = Bench(PROBLEM).measure(gpu.kernel(product, 8.0))
    assert measurement.status is Status.OK
    assert measurement.samples_us == pytest.approx([8.0] * QUICK.rounds)
    assert measurement.baseline_us == pytest.approx([BASELINE_US] * QUICK.rounds)
    assert measurement.speedup == pytest.approx(1.25)
    assert measurement.error == pytest.approx(2.1e-4, rel=0.2)
    assert (measurement.clock_mhz, measurement.power_w) == (1755, 640.5)


@pytest.mark.parametrize("wrong", [narrow, lazy, stray])
def test_a_wrong_candidate_is_not_timed(gpu: FakeGpu, wrong: Any) -> None:
    bench = Bench(PROBLEM)
    measurement = bench.measure(gpu.kernel(wrong, 8.0))
    assert measurement.status is Status.WRONG_RESULT
    assert measurement.samples_us == ()
    assert measurement.us is None
    assert measurement.detail
    assert not gpu.replayed
    assert bench.is_sound()


def test_a_candidate_that_is_wrong_in_a_graph_only_is_found(gpu: FakeGpu) -> None:
    calls = 0

    def wears_out(a: Any, b: Any, out: Any) -> None:
        nonlocal calls
        calls += 1
        (product if calls <= 2 else lazy)(a, b, out)

    assert Bench(PROBLEM).measure(gpu.kernel(wears_out, 8.0)).status is Status.WRONG_RESULT


def test_a_hopeless_candidate_is_given_up_early(gpu: FakeGpu) -> None:
    measurement = Bench(PROBLEM).measure(gpu.kernel(product, 3.5 * BASELINE_US))
    assert measurement.status is Status.OK
    assert len(measurement.samples_us) == QUICK.trial_rounds


def test_finalists_are_timed_in_one_run(gpu: FakeGpu) -> None:
    bench = Bench(PROBLEM)
    fast, wrong, slow = bench.measure_all(
        [gpu.kernel(product, 8.0), gpu.kernel(lazy, 1.0), gpu.kernel(product, 9.0)], THOROUGH
    )
    assert (fast.us, slow.us) == (pytest.approx(8.0), pytest.approx(9.0))
    assert wrong.status is Status.WRONG_RESULT
    assert fast.baseline_us == slow.baseline_us
    assert len(fast.samples_us) == THOROUGH.rounds - THOROUGH.trial_rounds


def test_a_race_halves_its_candidates_and_measures_the_last_two_at_length(gpu: FakeGpu) -> None:
    costs = (8.6, 8.0, 9.0, 8.2, 8.4)
    launches = [gpu.kernel(lazy, 1.0), *(gpu.kernel(product, cost) for cost in costs)]
    wrong, *found = Bench(PROBLEM).race(launches)
    assert wrong.status is Status.WRONG_RESULT
    assert [each.us for each in found] == [pytest.approx(cost) for cost in costs]
    heat, last = HEAT.rounds - HEAT.trial_rounds, THOROUGH.rounds - THOROUGH.trial_rounds
    # Of five the three fastest stay, of these two.
    assert [len(each.samples_us) for each in found] == [heat, last, heat, last, heat]
    assert [len(each.baseline_us) for each in found] == [len(each.samples_us) for each in found]
    assert found[1].baseline_us is not found[4].baseline_us


def test_a_race_of_two_is_one_long_run(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    efforts: list[Effort] = []
    timed = Bench._time
    monkeypatch.setattr(Bench, "_time", lambda self, *each: efforts.append(each[1]) or timed(self, *each))
    bench = Bench(PROBLEM)
    assert [each.ok for each in bench.race([gpu.kernel(product, 8.0), gpu.kernel(product, 9.0)])] == [True, True]
    assert efforts == [THOROUGH]
    assert [each.ok for each in bench.race([gpu.kernel(lazy, 8.0)])] == [False]
    assert efforts == [THOROUGH]


def test_who_stays_is_judged_round_by_round() -> None:
    # The clock falls in the last rounds, for whoever is timed there. The second is slower in every single round.
    samples = {"0": [9.0, 9.0, 90.0], "1": [10.0, 10.0, 100.0], "2": [9.5, 9.5, 95.0], "3": [20.0, 8.0, 200.0]}
    timing = Timing({**samples, CUBLAS: [10.0, 10.0, 100.0]})
    assert faster_half(timing, list(samples)) == ["0", "2"]
    # Without a baseline by the median alone.
    assert faster_half(Timing(samples), ["1", "3", "0"]) == ["1", "0"]


def test_new_operands_are_other_numbers_in_other_memory(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = 1 << 30
    monkeypatch.setattr(gpu_jobs, "_benches", {})
    monkeypatch.setattr(gpu_jobs, "_memory_bytes", lambda device: memory)
    gpu_jobs.prepare(0, PROBLEM)
    before = gpu_jobs.bench_of(0, PROBLEM)
    gpu_jobs.renew(0, PROBLEM)
    after = gpu_jobs.bench_of(0, PROBLEM)
    assert list(gpu_jobs._benches.values()) == [after]
    old, new = before.operands(ROTATED), after.operands(ROTATED)
    assert len(old) == len(new)
    assert not {each.a.ctypes.data for each in old} & {each.a.ctypes.data for each in new}
    assert not np.array_equal(old[0].a, new[0].a)
    kept: list[int] = []
    made = gpu_jobs._make_bench
    monkeypatch.setattr(
        gpu_jobs, "_make_bench", lambda *arguments: kept.append(len(gpu_jobs._benches)) or made(*arguments)
    )
    gpu_jobs.renew(0, PROBLEM)
    memory = gpu_jobs.BOTH_SHARE * after.device_bytes - gpu_jobs.BOTH_SHARE
    gpu_jobs.renew(0, PROBLEM)
    # Where there is no room for both, the first goes first.
    assert kept == [1, 0]
    assert gpu_jobs.bench_of(0, PROBLEM) is not after


def test_without_a_baseline_candidates_are_still_timed(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCublas, "__init__", lambda self, gpu: setattr(self, "gemm", refuse))
    bench = Bench(PROBLEM)
    measurement = bench.measure(gpu.kernel(product, 8.0))
    assert measurement.us == pytest.approx(8.0)
    assert measurement.speedup is None
    assert bench.baselines()["cublas_us"] is None


def test_a_wrong_baseline_is_an_error(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeCublas, "__init__", lambda self, gpu: setattr(self, "gemm", gpu.kernel(lazy, 1.0)))
    with pytest.raises(VerificationError, match="cuBLAS"):
        Bench(PROBLEM)


def test_spoilt_operands_are_noticed(gpu: FakeGpu) -> None:
    bench = Bench(PROBLEM)
    assert bench.is_sound()
    bench._cases[1][0].a[...] = 0
    assert not bench.is_sound()


def test_the_best_cublaslt_algorithm_is_the_fastest_that_runs(gpu: FakeGpu) -> None:
    found = Bench(PROBLEM).baselines()
    assert found["cublas_us"] == pytest.approx(BASELINE_US)
    assert found["cublaslt_us"] == pytest.approx(8.0)
    assert found["cublaslt_algorithm"] == {"id": 8}


def test_a_fault_is_a_launch_error_and_the_device_is_lost(gpu: FakeGpu) -> None:
    bench = Bench(PROBLEM)

    def fault(operands: Operands) -> None:
        gpu.faulted = True
        gpu.stream.synchronize()

    assert is_usable(0)
    with pytest.raises(LaunchError, match="illegal memory access"):
        bench.measure(fault)
    assert not is_usable(0)


@pytest.mark.parametrize("mode", [ROTATED, RESIDENT])
def test_graphs_go_through_the_operand_sets_of_their_mode(gpu: FakeGpu, mode: str) -> None:
    seen: list[int] = []
    bench = Bench(PROBLEM)

    def launch(operands: Operands) -> None:
        seen.append(id(operands.a))

    bench.time({"candidate": launch}, QUICK, mode)
    assert len(set(seen)) == (MAX_SETS if mode == ROTATED else 1)
    assert bench.bytes_rotated(mode) == len(set(seen)) * PROBLEM.compulsory_bytes


def test_samples_are_interleaved_and_every_other_round_is_turned_round(gpu: FakeGpu) -> None:
    sets = [Operands(None, None, None)]
    timed = {
        name: capture(gpu.kernel(lambda a, b, out: None, cost), sets, 5) for name, cost in (("x", 1.0), ("y", 2.0))
    }
    names = {id(each.graph): name for name, each in timed.items()}
    called = []
    samples = interleave(timed, 3, lambda: called.append(len(gpu.replayed)))
    assert [names[id(graph)] for graph in gpu.replayed] == ["x", "y", "x", "y", "y", "x", "x", "y"]
    assert samples == {"x": pytest.approx([1.0] * 3), "y": pytest.approx([2.0] * 3)}
    assert called == [8]


def test_blocks_are_long_alone_and_every_other_time_turned_round(gpu: FakeGpu) -> None:
    sets = [Operands(None, None, None)]
    timed = {
        name: capture(gpu.kernel(lambda a, b, out: None, cost), sets, 5) for name, cost in (("x", 1.0), ("y", 2.0))
    }
    names = {id(each.graph): name for name, each in timed.items()}
    read = []
    samples = sustain(timed, 2, 40.0, read.append)
    blocks = [names[id(graph)] for graph in gpu.replayed][4:]  # what comes before tells how long a graph is
    # 40 µs of graphs that last 5 and 10: two times four and two times two, half of them not timed.
    assert blocks == [*"x" * 8, *"y" * 4, *"y" * 4, *"x" * 8]
    assert read == ["x", "y", "y", "x"]
    assert samples == {"x": pytest.approx([1.0] * 2), "y": pytest.approx([2.0] * 2)}


def test_sustained_times_have_every_baseline(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK_US", 4000.0)
    bench = Bench(PROBLEM)
    best = bench.cublaslt(SUSTAINED)
    assert best is not None
    assert best.describe() == {"id": 8}
    timing = bench.time({"candidate": gpu.kernel(product, 9.0), CUBLASLT: best.run}, QUICK, SUSTAINED)
    assert set(timing.samples_us) == {"candidate", CUBLASLT, CUBLAS}
    assert {len(samples) for samples in timing.samples_us.values()} == {measure.BLOCKS}
    assert timing.median_us("candidate") == pytest.approx(9.0)
    assert timing.reading.power_w == 640.5
    assert bench.bytes_rotated(SUSTAINED) == bench.bytes_rotated(ROTATED)


def test_rounds_of_warming_up_come_first_and_are_not_timed(gpu: FakeGpu) -> None:
    sets = [Operands(None, None, None)]
    timed = {name: capture(gpu.kernel(lambda a, b, out: None, 1.0), sets, 5) for name in "xy"}
    names = {id(each.graph): name for name, each in timed.items()}
    samples = interleave(timed, 1, warmups=3)
    assert [names[id(graph)] for graph in gpu.replayed] == list("xyxyxy" + "xy")
    assert {len(each) for each in samples.values()} == {1}


def test_a_warm_up_is_as_long_as_asked_and_what_came_before_does_not_count(gpu: FakeGpu) -> None:
    bench = Bench(PROBLEM)
    launches = num_launches(PROBLEM, MAX_SETS)
    round_us = launches * (9.0 + BASELINE_US)
    timing = bench.time({"candidate": gpu.kernel(product, 9.0)}, Effort(2, 5, warm_us=2.5 * round_us))
    # Once and two rounds to try, three to warm up, three that count; all of two graphs.
    assert len(gpu.replayed) == 2 * (1 + 2 + 3 + 3)
    assert {len(samples) for samples in timing.samples_us.values()} == {3}


def test_a_reading_is_of_its_own_block_and_only_the_fastest_algorithms_get_one(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "BLOCK_US", 4000.0)
    monkeypatch.setattr(measure, "LT_FINALISTS", 2)
    clocks = iter(range(1000, 2000))
    monkeypatch.setattr(telemetry, "read", lambda device: telemetry.Reading(next(clocks), 0.0))
    bench = Bench(PROBLEM)
    bench.cublaslt(SUSTAINED)
    replays = sorted(len([1 for graph in gpu.replayed if graph is each]) for each in set(gpu.replayed))
    assert replays[0] == 1 + measure.LT_ROUNDS < replays[1], "the third algorithm had a block"
    timing = bench.time({"x": gpu.kernel(product, 9.0), "y": gpu.kernel(product, 8.0)}, QUICK, SUSTAINED)
    last = {name: reading.clock_mhz for name, reading in timing.readings.items()}
    assert last == {"x": 1012, "y": 1013, CUBLAS: 1014}
    assert timing.reading.clock_mhz == 1012


def test_a_measurement_can_be_sustained(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "BLOCK_US", 4000.0)
    found = Bench(PROBLEM).measure(gpu.kernel(product, 9.0), mode=SUSTAINED)
    assert found.status is Status.OK
    assert len(found.samples_us) == len(found.baseline_us) == measure.BLOCKS


def test_a_capture_that_breaks_is_ended(gpu: FakeGpu) -> None:
    with pytest.raises(CublasError):
        capture(refuse, [Operands(None, None, None)], 3)
    assert gpu.captured is None
    assert graphs.capture(gpu.kernel(product, 1.0), [Operands(None, None, None)], 3).launches == 3


@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 64, 64),
        Problem(512, 512, 8192),
        Problem(2048, 2048, 4096),
        Problem(8192, 8192, 8192),
        Problem(1, 1, 1),
        Problem(128, 4096, 4096, out_dtype="float32"),
    ],
)
def test_graphs_are_long_enough_and_cover_twice_the_l2(problem: Problem) -> None:
    sets = num_sets(problem, H200.l2_bytes)
    launches = num_launches(problem, sets)
    assert sets * problem.compulsory_bytes >= 2 * H200.l2_bytes or sets == launches == MAX_SETS
    assert launches % sets == 0
    assert launches * good_us(problem) >= GRAPH_US
    assert (launches - sets) * good_us(problem) < GRAPH_US


def test_names_of_baselines_are_those_of_the_results() -> None:
    assert (CUBLAS, CUBLASLT) == ("cublas", "cublaslt")
