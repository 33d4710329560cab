"""Configs for problems that nobody has tuned: legal for every kind of problem, and of a size that fits it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cupygemm.choosing.defaults import default_config
from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.dtypes import OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.legality import illegal_reason
from cupygemm.problem import LAYOUTS, Problem

KINDS = list(itertools.product(OPERAND_DTYPES, RESULT_DTYPES, LAYOUTS))
SIZES = [(1, 1, 8), (64, 64, 64), (1024, 1024, 1024), (4096, 4095, 512), (8192, 8192, 8192)]


@pytest.mark.parametrize("epilogue", ["none", "bias_n+residual+gelu"])
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_problem_has_a_legal_config(size: tuple[int, int, int], batch: int, epilogue: str) -> None:
    for dtype, out_dtype, layout in KINDS:
        problem = Problem(*size, batch, dtype, dtype, out_dtype, layout, epilogue)
        config = default_config(problem, H200)
        assert config is not None, problem
        assert illegal_reason(config, KernelSpec.of(problem), H200) is None


def test_tiles_are_large_where_they_fill_the_device() -> None:
    few, many = Problem(512, 512, 512), Problem(2048, 2048, 512)
    blocks = [(found.block_m, found.block_n) for each in (few, many) if (found := default_config(each, H200))]
    assert blocks == [(64, 64), (128, 128)]
    stack = default_config(replace(few, batch=16), H200)
    assert stack is not None
    assert stack.block_m == 128


def test_where_nothing_fits_there_is_none() -> None:
    assert default_config(Problem(64, 64, 64, a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn"), H200) is None
    assert default_config(Problem(64, 64, 64), replace(H200, shared_bytes=16384)) is None
