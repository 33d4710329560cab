"""First calls: each waits for its own kernel alone; and the threads that compile, which end with their work."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.kernels.background import Background
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right
from tests.gate import Gate, compiling_threads, in_thread

OTHER = replace(PROBLEM, m=8, layout="nt")
"""Of another spec than PROBLEM, so of another kernel."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


# A lock for each kernel


def test_a_slow_compile_keeps_nobody_waiting_but_those_who_need_it(gpu: FakeGpu, gate: Gate) -> None:
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    cupygemm.use(bundle_of(OTHER))
    a, b, other = *operands(gpu), operands(gpu, OTHER)
    gate.only = LARGE
    results: list[Any] = []
    slow = [in_thread(lambda: results.append(cupygemm.matmul(a, b))) for _ in range(3)]
    assert gate.began.wait(20)
    np.testing.assert_array_equal(plain(cupygemm.matmul(*other)), right(*other))
    with cupygemm.use(bundle_of(OTHER, config=SMALL.swapped(group=2))):
        assert cupygemm.explain(*other).kernel == "own"
        gpu.stream.begin_capture()
        cupygemm.matmul(*other)
        assert len(gpu.stream.end_capture().launches) == 1
    assert results == []
    assert all(thread.is_alive() for thread in slow)
    gate.pass_through()
    for thread in slow:
        thread.join(20)
    assert len(gate.tried) == 2
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(plain(result), right(a, b))
    assert gpu.fallbacks == []


def test_what_was_decided_by_a_bundle_that_went_meanwhile_is_not_kept(gpu: FakeGpu, gate: Gate) -> None:
    a, b = operands(gpu)
    given = cupygemm.use(bundle_of(PROBLEM))
    waiting = in_thread(lambda: cupygemm.matmul(a, b))
    assert gate.began.wait(20)
    given.undo()
    gate.is_open.set()
    waiting.join(20)
    assert len(gpu.launches) == 1  # by the bundle that was there when it was called
    assert cupygemm.explain(a, b).kernel == "cublas"


def test_a_compile_that_is_interrupted_leaves_the_next_call_its_turn(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(gpu)
    cupygemm.use(bundle_of(PROBLEM))
    gpu.refused[SMALL] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        cupygemm.matmul(a, b)
    del gpu.refused[SMALL]
    cupygemm.matmul(a, b)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


# The threads


def test_threads_end_when_there_is_no_more_to_do() -> None:
    background, done = Background(), []
    for index in range(20):
        assert background.submit(lambda index=index: done.append(index))
    for thread in compiling_threads():
        thread.join(20)
    assert sorted(done) == list(range(20))
    assert background.submit(lambda: done.append(20))
    for thread in compiling_threads():
        thread.join(20)
    assert done[-1] == 20


ENDING = """
import sys, threading
from cupygemm.kernels.background import Background
background, began = Background(), threading.Event()
background._most = 1
def job(number):
    sys.stdout.write(f"{number} "); sys.stdout.flush()
    began.set()
    threading.main_thread().join()
    sys.stdout.write("done ")
for number in range(50):
    background.submit(lambda number=number: job(number))
began.wait()
"""


def test_a_process_that_ends_waits_for_one_compile_and_drops_the_others() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "0 done ")


LATE = """
import atexit
from cupygemm.kernels.background import Background
background = Background()
atexit.register(lambda: print(background.submit(lambda: print("never"))))
"""


def test_at_the_end_of_a_process_no_more_is_begun() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "False\n")
