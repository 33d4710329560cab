"""The checks themselves: kernels made wrong on purpose must fail them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels import compiler, kernel_source
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.protocol import LARGE, operands

pytestmark = pytest.mark.gpu

CONFIG = LARGE.swapped(wait_depth=0)

# After each stage the accumulators are rounded to fp16, as if they were held so.
FP16_ACCUMULATOR = (
    "gemm.cuh",
    "                wgmma_wait_group<CONFIG.wait_depth>();\n",
    """                wgmma_wait_group<CONFIG.wait_depth>();
                for (int step = 0; step < M_STEPS; ++step)
                    for (int i = 0; i < N / 2; ++i) {
                        pin_register(d[step][i]);
                        asm volatile("{.reg .b16 h; cvt.rn.f16.f32 h, %0; cvt.f32.f16 %0, h;}" : "+f"(d[step][i]));
                    }
""",
)
# The last columns of each tile stay unwritten.
UNWRITTEN = ("epilogue.cuh", "next < N; next += COLUMNS", "next < N - COLUMNS; next += COLUMNS")
# One k step of each stage is multiplied twice, another not at all.
WRONG_K = ("gemm.cuh", "TileB::offset(0, k)", "TileB::offset(0, k == 16 ? 0 : k)")
# Rows 0 and 1 of every 64 are exchanged.
SWAPPED_ROWS = ("epilogue.cuh", "const int row = warp_row + lane % 16;", "const int row = warp_row + (lane % 16 ^ 1);")


def mutant(tmp_path: Path, spec: KernelSpec, config: KernelConfig, change: tuple[str, str, str]) -> LoadedKernel:
    """A kernel with one place of its source changed."""
    name, old, new = change
    headers = compiler.sources(spec, config)
    assert headers[name].count(old) == 1, "the source has moved on: this mutant changes nothing"
    headers[name] = headers[name].replace(old, new)
    program = compiler.compile_program(kernel_source.name_expression(spec, config), headers)
    cubin = tmp_path / "mutant.cubin"
    cubin.write_bytes(program.cubin)
    # The healthy kernel's description, with the mutant's code.
    healthy = compiler.compile_kernel(spec, config)
    return LoadedKernel(dataclasses.replace(healthy, cubin=cubin, lowered_name=program.lowered_name))


def verdict_of(kernel: LoadedKernel, problem: Problem, kind: str) -> verify.Verdict:
    given = operands(problem, kind, 7)
    Plan(problem, kernel).launch(given)
    return verify.check(given.out, verify.Reference.of(given, problem))


@pytest.mark.parametrize("kind", verify.DATA_KINDS)
@pytest.mark.parametrize("k", [1024, 4096])
def test_an_fp16_accumulator_fails(k: int, kind: str, tmp_path: Path) -> None:
    problem = Problem(512, 512, k)
    kernel = mutant(tmp_path, KernelSpec.of(problem), CONFIG, FP16_ACCUMULATOR)
    verdict = verdict_of(kernel, problem, kind)
    assert not verdict.ok
    assert verdict.error > verdict.frobenius_bound


@pytest.mark.parametrize("change", [UNWRITTEN, WRONG_K, SWAPPED_ROWS], ids=["unwritten", "wrong k", "swapped rows"])
def test_wrong_kernels_fail(change: tuple[str, str, str], tmp_path: Path) -> None:
    problem = Problem(512, 512, 1024)
    kernel = mutant(tmp_path, KernelSpec.of(problem), CONFIG, change)
    assert not verdict_of(kernel, problem, verify.ZERO_MEAN).ok
