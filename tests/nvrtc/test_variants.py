"""Kernels of stacks and kernels with epilogues compile as asked, and their literals say what Python's specs say."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.epilogue import ACTIVATIONS, BIASES, Epilogue
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, kernel_source
from cupygemm.kernels.kernel_source import spec_literal
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem

pytestmark = pytest.mark.nvrtc

DIVIDED = KernelConfig(128, 256, 64, 3, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=5, wait_depth=1, ping_pong=True)
SMALL = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, True, 1, 40, 1, 1)
SHARED = SMALL.swapped(cluster_n=2, cluster_k=3, store_stages=0)

TERMS = (Epilogue(*terms) for terms in itertools.product(BIASES, (False, True), ACTIVATIONS))
EPILOGUES = (Epilogue(scaled=True), *(epilogue for epilogue in TERMS if epilogue != Epilogue()))

PROBLEM = Problem(512, 512, 512)
WIDE = replace(PROBLEM, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="float32")
ODD = replace(PROBLEM, n=511, layout="nt")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))


def compiled_as_asked(problem: Problem, config: KernelConfig, spill_bytes: int = 0) -> None:
    spec = KernelSpec.of(problem)
    assert illegal_reason(config, spec, H200) is None
    made = compiler.compile_kernel(spec, config)
    assert made.advisories == ()
    assert made.spill_bytes <= spill_bytes
    assert made.registers == {1: 248, 2: 168}[config.consumers]


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_every_epilogue_compiles(epilogue: Epilogue) -> None:
    compiled_as_asked(replace(PROBLEM, epilogue=str(epilogue)), SMALL)


FUSED = "bias_n+residual+gelu_tanh"


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (replace(PROBLEM, epilogue=FUSED), TURNS),
        (replace(PROBLEM, epilogue="bias_n+relu"), DIVIDED),
        (replace(PROBLEM, epilogue="bias_m+residual+gelu"), SHARED),
        (replace(WIDE, epilogue=FUSED), SMALL),
        (replace(ODD, epilogue=FUSED), SMALL.swapped(store_stages=0)),
        (replace(ODD, epilogue=FUSED, out_dtype="float32", batch=3), SMALL.swapped(store_stages=0)),
        (replace(PROBLEM, epilogue=FUSED, batch=3), TURNS),
        (replace(PROBLEM, batch=3), DIVIDED.swapped(stages=4)),
        (replace(PROBLEM, batch=3, layout="tt"), TURNS.swapped(cluster_m=2)),
        (replace(PROBLEM, batch=3), SHARED),
        (replace(WIDE, batch=3, layout="nt"), SMALL.swapped(cluster_m=2, cluster_n=2)),
    ],
    ids=lambda value: str(value) if isinstance(value, Problem) else "",
)
def test_each_way_out_compiles_with_stacks_and_epilogues(problem: Problem, config: KernelConfig) -> None:
    # Where 128 accumulators a thread meet all terms, a few registers go through memory once a tile.
    compiled_as_asked(problem, config, spill_bytes=64 if config == TURNS else 0)


def test_literals_have_the_values_of_the_spec() -> None:
    """Each field read back in C++, for specs that differ in each."""
    batched = replace(PROBLEM, batch=2, layout="tt")
    specs = [KernelSpec.of(replace(batched, epilogue=str(epilogue))) for epilogue in EPILOGUES]
    specs += [KernelSpec.of(problem) for problem in (PROBLEM, WIDE, ODD)]
    asserts = []
    for spec in specs:
        literal, epilogue = spec_literal(spec), Epilogue.parse(spec.epilogue)
        told = {
            "batched": str(spec.batched).lower(),
            "out_aligned": str(spec.out_aligned).lower(),
            "epilogue.bias": f"Bias::{epilogue.bias}",
            "epilogue.residual": str(epilogue.residual).lower(),
            "epilogue.activation": f"Activation::{epilogue.activation}",
            "epilogue.scaled": str(epilogue.scaled).lower(),
            "epilogue.any()": str(epilogue != Epilogue()).lower(),
        }
        asserts += [f"static_assert(({literal}).{name} == {value});" for name, value in told.items()]
    program = '#include "config.cuh"\n{}\ntemplate <int> __global__ void nothing() {{}}\n'
    headers = kernel_source.cuda_sources()
    compiler.compile_program("nothing<0>", headers, program.format("\n".join(asserts)))
    with pytest.raises(CompileError, match="static assertion"):
        compiler.compile_program("nothing<0>", headers, program.format(asserts[0].replace("== true", "== false")))


def test_both_sides_name_the_same_terms() -> None:
    text = kernel_source.cuda_sources()["config.cuh"]
    assert f"enum class Bias : int {{ {', '.join(BIASES)} }};" in text
    assert f"enum class Activation : int {{ {', '.join(ACTIVATIONS)} }};" in text
    assert [field.name for field in fields(Epilogue)] == ["bias", "residual", "activation", "scaled"]
