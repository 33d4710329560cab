"""Many kernels compiled at once: each cubin once, and what fails keeps no other from being there."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.cores import num_cores
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler
from cupygemm.kernels.ahead import compile_ahead, compile_each
from cupygemm.problem import Problem

CONFIG = KernelConfig(64, 16, 64, 2, 1, False, 1, 1, False, 1, 40, 0, 1)
SPECS = [KernelSpec.of(Problem(64, 64, 64, layout=layout)) for layout in ("nn", "nt", "tn", "tt")]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What a compiler was asked for that refuses layout "tn"."""
    asked: list[tuple[Any, Any]] = []

    def compile_kernel(spec: Any, config: Any) -> str:
        asked.append((spec, config))
        if spec == SPECS[2]:
            raise CompileError("refused")
        return "a kernel"

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    return asked


def test_configs_that_differ_at_launch_alone_are_compiled_once(compiled: list[tuple[Any, Any]]) -> None:
    told = [CONFIG, CONFIG.swapped(group=8), CONFIG.swapped(l2_promotion=128), CONFIG.swapped(stages=3)]
    assert compile_ahead((SPECS[0], config) for config in told) == {}
    assert {config.stages for _, config in compiled} == {2, 3}
    assert len(compiled) == 2


def test_what_fails_is_told_and_the_others_are_there(compiled: list[tuple[Any, Any]]) -> None:
    failed = compile_ahead(((spec, CONFIG) for spec in SPECS), threads=1)
    assert set(compiled) == {(spec, CONFIG) for spec in SPECS}
    assert {kernel: str(error) for kernel, error in failed.items()} == {(SPECS[2], CONFIG): "refused"}


def test_nothing_is_nothing_to_do(compiled: list[tuple[Any, Any]]) -> None:
    assert (compile_ahead([]), compiled) == ({}, [])


def test_they_are_compiled_side_by_side_and_counted() -> None:
    together, steps = threading.Barrier(2, timeout=20), []

    def compile_together(kernel: tuple[KernelSpec, KernelConfig]) -> int:
        together.wait()
        return kernel[1].stages

    kernels = {"a": (SPECS[0], CONFIG), "b": (SPECS[1], CONFIG.swapped(stages=3))}
    found = compile_each(kernels, compile_together, 2, lambda done, total: steps.append((done, total)))
    assert found == {"a": 2, "b": 3}
    assert steps == [(1, 2), (2, 2)]


def test_other_errors_come_out() -> None:
    def broken(kernel: tuple[KernelSpec, KernelConfig]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_each({0: (SPECS[0], CONFIG)}, broken)


def test_cores_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert num_cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert num_cores() == 1
