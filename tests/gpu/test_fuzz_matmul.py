"""Some hundred random calls of `matmul`; bench/fuzz.py has the same in thousands."""

from __future__ import annotations

import pytest

import cupygemm
from cupygemm.kernels import driver
from tests.fuzzing import kernels
from tests.fuzzing.examine import on_gpu
from tests.fuzzing.explore import explore
from tests.fuzzing.strategies import cases

pytestmark = pytest.mark.gpu

CASES = 400


@pytest.fixture(scope="module")
def compiled() -> int:
    return kernels.compile_all()


@pytest.mark.usefixtures("compiled")
def test_random_calls() -> None:
    with cupygemm.use(kernels.bundle()), driver.cupy().cuda.Stream(non_blocking=True) as stream:
        tally = explore(on_gpu(), cases(), CASES, 1)
        if not tally.over:
            stream.synchronize()
    assert tally.failures == []
    assert tally.cases >= CASES
    assert tally.own >= 0.7 * tally.cases
