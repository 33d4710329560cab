"""What threads can do to one another's calls of `matmul`, each interleaving made on purpose."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.problem import Problem
from cupygemm.runtime import api
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, plain, right, stored


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def test_a_bundle_that_goes_while_a_call_is_decided_is_not_remembered(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision and the learning of it another thread undoes the bundle, and multiplies."""
    given = cupygemm.use(bundle_of(PROBLEM))
    a, b, other = stored(gpu, (24, 16)), stored(gpu, (16, 40)), stored(gpu, (40, 8))
    decide, interrupted = api.decide, []

    def interrupting(*arguments: Any) -> Any:
        decision = decide(*arguments)
        if not interrupted:
            interrupted.append(True)
            given.undo()
            cupygemm.matmul(b, other)
        return decision

    monkeypatch.setattr(api, "decide", interrupting)
    cupygemm.matmul(a, b)
    launches = len(gpu.launches)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert len(gpu.launches) == launches, "the bundle is gone, and its kernel ran"


def test_many_threads_with_many_products(gpu: FakeGpu) -> None:
    """The same products and different ones, of bundles that come and go; none is mixed up with another."""
    problems = [Problem(24, 8 * n, 16) for n in range(1, 9)]
    wrong: list[Any] = []

    def multiply(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for step in range(60):
            problem = problems[rng.integers(len(problems))]
            a, b = stored(gpu, (24, 16), seed=step), stored(gpu, (16, problem.n), seed=seed)
            if not (plain(cupygemm.matmul(a, b)) == right(a, b)).all():
                wrong.append((seed, step))

    def change() -> None:
        for config in (LARGE, SMALL) * 20:
            with cupygemm.use(bundle_of(*problems[::2], config=config)):
                pass

    with cupygemm.use(bundle_of(*problems)):
        threads = [threading.Thread(target=multiply, args=(seed,)) for seed in range(6)]
        threads.append(threading.Thread(target=change))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
