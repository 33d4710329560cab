"""bench/packing.py without a GPU: its cases are what they are called, and there are kernels for them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import packing
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.views.packing import Packing, packing_of
from cupygemm.views.posing import Posed, pose
from cupygemm.views.stacks import PosedStack, Stack, pose_stack
from tests.fake_gpu import FakeGpu


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu().install(monkeypatch)


def seen(array: Any, base: Any) -> Stack:
    """An array as far as packing looks at it; its memory is never touched."""
    start = 256 + array.ctypes.data - base.ctypes.data
    return Stack(array.shape, array.strides, array.dtype, SimpleNamespace(ptr=start), SimpleNamespace(id=0))


def posed(case: Any) -> Posed | PosedStack:
    bases = [np.empty(shape, np.float16) for shape in (case.a_shape, case.b_shape)]
    views = [view(base) for view, base in zip((case.a_view, case.b_view), bases, strict=True)]
    a, b = (seen(view, base) for view, base in zip(views, bases, strict=True))
    found = pose(a, b) if a.ndim == 2 else pose_stack(a, b)
    assert found is not None
    return found


def test_each_case_needs_a_copy_and_is_what_it_is_called() -> None:
    for name, case in packing.CASES.items():
        product = posed(case)
        problem = packing.problem_of(case)
        assert (*product.product_shape, product.a.shape[-1]) == (
            *problem.matrix(problem.m, problem.n),
            problem.k,
        ), name
        found = packing_of(product.a, product.b)
        assert isinstance(found, Packing), name
        # As kernels are compiled ahead for it.
        assert found.layout == "nn", name
        assert re.search(r"\d+x\d+x\d+", name)[0] == f"{problem.m}x{problem.n}x{problem.k}"  # type: ignore[index]


def test_each_case_has_legal_configs() -> None:
    for case in packing.CASES.values():
        problem = packing.problem_of(case)
        configs = packing._configs(problem)
        assert 1 <= len(configs) <= 2
        assert not [config for config in configs if illegal_reason(config, KernelSpec.of(problem), H200)]
