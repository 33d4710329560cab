"""Calls of plans on a fake GPU, plain and fused: arrays to call with, and right results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import cupygemm
from cupygemm.device import H200
from cupygemm.problem import Problem
from cupygemm.runtime.planned import MatmulPlan
from tests.fake_gpu import FakeGpu
from tests.fake_products import PROBLEM, bundle_of, fresh_gpu, plain, right, stored

FUSED = Problem(24, 40, 16, epilogue="bias_n+residual+relu")

both = pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])


def gpu_of(monkeypatch: pytest.MonkeyPatch, devices: int) -> FakeGpu:
    """A fake GPU as `fresh_gpu` makes it, of so many devices."""
    gpu = fresh_gpu(monkeypatch)
    gpu.specs = dict.fromkeys(range(devices), H200)
    return gpu


class Arrays(NamedTuple):
    """What a call takes."""

    a: Any
    b: Any
    out: Any
    bias: Any = None
    residual: Any = None

    @property
    def terms(self) -> dict[str, Any]:
        """The arrays that have names."""
        return {name: each for name, each in (("bias", self.bias), ("residual", self.residual)) if each is not None}

    def wanted(self, alpha: float = 1, beta: float = 1) -> Any:
        """The right result."""
        product = alpha * right(self.a, self.b)
        if self.bias is None:
            return product
        return np.maximum(product + plain(self.bias) + beta * plain(self.residual), 0)


def arrays_of(gpu: FakeGpu, fused: bool, seed: int = 0) -> Arrays:
    a, b, out = stored(gpu, (24, 16), seed=seed), stored(gpu, (16, 40), seed=seed + 1), gpu.empty((24, 40), np.float16)
    if not fused:
        return Arrays(a, b, out)
    return Arrays(a, b, out, stored(gpu, (1, 40), seed=seed + 2)[0], stored(gpu, (24, 40), seed=seed + 3))


def plan_of(gpu: FakeGpu, fused: bool, **more: Any) -> MatmulPlan:
    arrays = arrays_of(gpu, fused)
    with cupygemm.use(bundle_of(PROBLEM, FUSED)):
        activation = {"activation": "relu"} if fused else {}
        plan = cupygemm.plan(arrays.a, arrays.b, arrays.out, **arrays.terms, **activation, **more)
    assert plan.choice.kernel == "own"
    return plan


def check(plan: MatmulPlan, arrays: Arrays, **factors: float) -> None:
    """A call gives the right product, whichever way it goes."""
    wanted = arrays.wanted(**factors)
    result = plan(arrays.a, arrays.b, arrays.out, **arrays.terms, **factors)
    assert arrays.out is None or result is arrays.out
    np.testing.assert_array_equal(plain(result), wanted)
