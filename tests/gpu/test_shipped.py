"""Every config that ships, on a GPU: it runs without set-up, and is right."""

from __future__ import annotations

import pytest

from cupygemm import settings
from cupygemm.bundles.in_force import SHIPPED, shipped_bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelSpec
from cupygemm.kernels import driver
from cupygemm.measuring.measure import Bench
from cupygemm.problem import Problem
from tests.gpu.protocol import Kernels

pytestmark = pytest.mark.gpu

ENTRIES = shipped_bundle().entries
PROBLEMS = [entry.problem for entry in ENTRIES]


@pytest.fixture(scope="module")
def dispatcher(kernels: Kernels) -> Dispatcher:
    """As `matmul` has it when the environment names no bundle; all is compiled ahead, on all cores."""
    kernels.ahead({(KernelSpec.of(entry.problem), entry.config) for entry in ENTRIES})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUPYGEMM_BUNDLE", raising=False)
        assert settings.shipped_in_force()
        dispatcher = Dispatcher()
        dispatcher.bundles()
        return dispatcher


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_runs_without_set_up_and_is_right(dispatcher: Dispatcher, problem: Problem) -> None:
    choice, plan = dispatcher.choose_for(problem, driver.hopper_devices()[0])
    assert (choice.kernel, choice.bundle) == ("own", SHIPPED)
    assert plan is not None
    verdict = Bench(problem).verify(plan.launch)
    assert verdict.ok, verdict.detail
