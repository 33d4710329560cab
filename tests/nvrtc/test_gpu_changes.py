"""What the GPU tests change in the kernel's source is still there: they are seldom run, and the source moves on."""

from __future__ import annotations

import pytest

from cupygemm.config import KernelSpec
from cupygemm.kernels import compiler, kernel_source
from cupygemm.problem import Problem
from tests.gpu import test_isolation, test_mutants

CHANGES = {
    **{f"isolation {task}": (test_isolation.HEALTHY, change) for task, change in test_isolation.CHANGES.items()},
    **{
        name: (test_mutants.CONFIG, getattr(test_mutants, name))
        for name in ("FP16_ACCUMULATOR", "UNWRITTEN", "WRONG_K", "SWAPPED_ROWS")
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_finds_its_place_and_compiles(name: str) -> None:
    config, (header, old, new) = CHANGES[name]
    spec = KernelSpec.of(Problem(512, 512, 512))
    headers = compiler.sources(spec, config)
    assert headers[header].count(old) == 1
    changed = {**headers, header: headers[header].replace(old, new)}
    assert compiler.compile_program(kernel_source.name_expression(spec, config), changed).cubin
