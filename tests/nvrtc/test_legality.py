"""`illegal_reason` and the static_asserts of config.cuh agree, and so do both sides' idea of shared memory.

Random configs, legal and illegal, are put to NVRTC. Instances that are legal are checked many at a time in one
program; each illegal one must fail alone.
"""

from __future__ import annotations

import ctypes
import random

import pytest

from cupygemm.config import (
    MAX_TILE,
    STRUCT_FIELDS,
    KernelConfig,
    KernelSpec,
    operand_bytes,
    shared_storage_bytes,
    store_columns,
)
from cupygemm.device import H200
from cupygemm.dtypes import DTYPES
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, kernel_source
from cupygemm.kernels.kernel_plan import _Arguments
from cupygemm.kernels.kernel_source import config_literal, spec_literal
from cupygemm.kernels.tensor_map import a_box, b_box, out_box
from cupygemm.legality import Violation, illegal_reason, violation
from cupygemm.problem import Problem

pytestmark = pytest.mark.nvrtc

VALUES: dict[str, list[int] | list[bool]] = {
    "block_m": [0, 32, 64, 96, 128, 192, 256, 320],
    "block_n": [0, 4, 8, 24, 64, 96, 100, 128, 192, 200, 208, 256, 264],
    "block_k": [0, 32, 64, 96, 128, 256, 320],
    "stages": [1, 2, 3, 4, 8, 16, 17],
    "consumers": [0, 1, 2, 3, 4],
    "split_n": [False, True],
    "cluster_m": [0, 1, 2, 3, 4, 8],
    "cluster_n": [0, 1, 2, 3, 4, 8],
    "producer_registers": [16, 24, 36, 40, 56, 128, 136],
    "wait_depth": [-1, 0, 1, 2],
    "store_stages": [-1, 0, 1, 2, 4, 5],
    "ping_pong": [False, True],
    "cluster_k": [0, 1, 2, 3, 4, 8, 9],
}
LEGAL_ONE = KernelConfig(128, 128, 64, 3, 2, False, 1, 1, False, 8, 40, 1, 1)
DEVICE_RULES = ("shared memory", "device")
assert set(VALUES) == set(STRUCT_FIELDS)


def random_spec(rng: random.Random) -> KernelSpec:
    dtype = rng.choice(["float16", "bfloat16"])
    out = rng.choice(["float16", "bfloat16", "float32"])
    problem = Problem(64, rng.choice([64, 63]), 64, a_dtype=dtype, b_dtype=dtype, out_dtype=out)
    layout = rng.choice(["nn", "nt", "tn", "tt"])
    return KernelSpec.of(Problem.from_dict({**problem.to_dict(), "layout": layout}))


def random_config(rng: random.Random) -> KernelConfig:
    """A legal config with a few fields changed at random: near the border, where the two sides could differ."""
    changed = rng.sample(list(VALUES), rng.randint(1, 4))
    start = LEGAL_ONE.swapped(cluster_k=rng.choice((1, 2, 3)), store_stages=0) if rng.random() < 0.3 else LEGAL_ONE
    return start.swapped(**{name: rng.choice(VALUES[name]) for name in changed}, swap_ab=rng.random() < 0.3)


def static_violation(config: KernelConfig, spec: KernelSpec) -> Violation | None:
    """`violation` without the rules that depend on the device, as the static_asserts have it."""
    found = violation(config, spec, H200)
    return None if found is not None and found.rule in DEVICE_RULES else found


def draw(count: int, legal: bool, seed: int) -> list[tuple[KernelSpec, KernelConfig]]:
    rng = random.Random(seed)
    found: list[tuple[KernelSpec, KernelConfig]] = []
    while len(found) < count:
        config = random_config(rng)
        spec = random_spec(rng).seen_by(config)
        if (static_violation(config, spec) is None) is legal:
            found.append((spec, config))
    return found


def accepts(spec: KernelSpec, config: KernelConfig) -> bool:
    """Whether config.cuh accepts one pair."""
    program = f'#include "config.cuh"\ntemplate struct Legal<{spec_literal(spec)}, {config_literal(config)}>;\n'
    return refusal(program) is None


def refusal(program: str, headers: dict[str, str] | None = None) -> str | None:
    """The log of NVRTC's refusal, which must be a static_assert's, or None when it compiles."""
    program += "template <int> __global__ void nothing() {}\n"
    try:
        compiler.compile_program("nothing<0>", headers or kernel_source.cuda_sources(), program)
    except CompileError as error:
        if "static assertion" not in error.log:
            raise
        return error.log
    return None


COPYING = KernelConfig(128, 128, 64, 4, 2, False, 1, 1, False, 8, 40, 1, 1, cp_async_stages=2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cp_async_stages": 5},
        {"cluster_m": 2},
        {"ping_pong": True, "block_m": 64},
        {"consumers": 3, "block_m": 192},
        {"wait_depth": 0},
        {"store_stages": 2},
        {"block_m": 256, "block_n": 144, "stages": 2},
    ],
)
def test_what_copies_is_refused_by_both_sides(changes: dict[str, int]) -> None:
    spec, config = KernelSpec.of(Problem(64, 64, 64)), COPYING.swapped(**changes)
    instance = f"GemmCpAsync<{spec_literal(spec)}, {config_literal(config)}, {config.cp_async_stages}>"
    program = f'#include "gemm_cp_async.cuh"\nstatic_assert({instance}::THREADS == {config.threads});\n'
    refused = refusal(program, compiler.sources(spec, config))
    assert (refused is None) is (illegal_reason(config, spec, H200) is None) is (changes == {})


def test_legal_pairs_are_accepted() -> None:
    pairs = draw(300, legal=True, seed=1)
    lines = [f"template struct Legal<{spec_literal(spec)}, {config_literal(config)}>;" for spec, config in pairs]
    assert refusal('#include "config.cuh"\n' + "\n".join(dict.fromkeys(lines))) is None


def test_illegal_pairs_are_refused() -> None:
    pairs = draw(80, legal=False, seed=4)
    accepted = [(pair, static_violation(pair[1], pair[0])) for pair in pairs if accepts(*pair)]
    assert accepted == []
    rules = {found.rule for spec, config in pairs if (found := static_violation(config, spec))}
    assert rules >= {"cluster", "cluster_k", "swap_ab"}
    assert len(rules) >= 8, "the sample is too narrow to mean anything"


@pytest.mark.parametrize("epilogue", ["bias_n+gelu", "silu", "bias_m", "residual"])
def test_with_a_and_b_swapped_both_sides_refuse_what_is_read_in_pairs(epilogue: str) -> None:
    config = LEGAL_ONE.swapped(swap_ab=True)
    spec = KernelSpec.of(Problem(64, 64, 64, epilogue=epilogue)).seen_by(config)
    legal = illegal_reason(config, spec, H200) is None
    assert accepts(spec, config) is legal is (epilogue in ("bias_n+gelu", "silu"))


def test_an_operand_dtype_that_is_not_built_is_refused() -> None:
    problem = Problem(64, 64, 64, a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn", layout="nt")
    spec = KernelSpec.of(problem)
    program = f'#include "config.cuh"\ntemplate struct Legal<{spec_literal(spec)}, {config_literal(LEGAL_ONE)}>;\n'
    assert "dtypes" in (refusal(program) or "")


def test_shared_storage_is_what_python_says() -> None:
    # One generated WGMMA serves one consumer width, so all pairs of a program share it.
    for block_n in (64, 200):
        rng = random.Random(block_n)
        lines: list[str] = []
        cluster_k: set[int] = set()
        while len(lines) < 40:
            config = random_config(rng).swapped(block_n=block_n, split_n=False)
            spec = random_spec(rng).seen_by(config)
            if static_violation(config, spec) is not None:
                continue
            size = shared_storage_bytes(config, spec)
            cluster_k.add(config.cluster_k)
            instance = f"Gemm<{spec_literal(spec)}, {config_literal(config)}>"
            lines.append(f"static_assert(sizeof({instance}::SharedStorage) == {size});")
        headers = compiler.sources(KernelSpec.of(Problem(64, 64, 64)), LEGAL_ONE.swapped(block_n=block_n))
        assert refusal('#include "gemm.cuh"\n' + "\n".join(lines), headers) is None
        assert cluster_k >= {1, 2, 3}, "the sample is too narrow"


def facts(spec: KernelSpec, config: KernelConfig) -> dict[str, int]:
    """What the kernel computes for itself, and Python's answer."""
    gemm, value = f"Gemm<{spec_literal(spec)}, {config_literal(config)}>", config_literal(config)
    a, b, out = a_box(config, spec, MAX_TILE), b_box(config, spec, MAX_TILE), out_box(config, spec)
    return {
        f"{gemm}::TileA::BOX_ROWS": a.rows,
        f"{gemm}::TileA::SPAN": a.columns,
        f"{gemm}::TileB::BOX_ROWS": b.rows,
        f"{gemm}::TileB::SPAN": b.columns,
        f"{gemm}::Store::COLUMNS": store_columns(config, spec),
        f"{gemm}::Store::BUFFER_BYTES": out.rows * out.columns * DTYPES[spec.out_dtype].bytes,
        f"({value}).consumer_registers()": config.consumer_registers,
        f"({value}).accumulators()": config.accumulators,
        f"({value}).part_n()": config.part_n,
        f"({value}).threads()": config.threads,
        # The boxes of all CTAs that share a tile are the tile.
        f"{gemm}::TileA::BOXES * {config.cluster_n * a.rows} * SWIZZLE_BYTES": operand_bytes(
            config.block_m, config.block_k, spec.a_major, spec.a_dtype
        ),
        f"{gemm}::TileB::BOXES * {config.cluster_m * b.rows} * SWIZZLE_BYTES": operand_bytes(
            config.block_n, config.block_k, spec.b_major, spec.b_dtype
        ),
    }


def test_boxes_columns_and_registers_are_what_python_says() -> None:
    # Nothing of the kernel is instantiated but its constants: pairs of every consumer width share a program.
    pairs = draw(200, legal=True, seed=3)
    told = {expression: value for pair in pairs for expression, value in facts(*pair).items()}
    asserts = [f"static_assert({expression} == {value});" for expression, value in told.items()]
    headers = compiler.sources(KernelSpec.of(Problem(64, 64, 64)), LEGAL_ONE)
    assert refusal('#include "gemm.cuh"\n' + "\n".join(asserts), headers) is None
    # One that is wrong would have been noticed.
    assert refusal('#include "gemm.cuh"\n' + asserts[0].replace(");", " + 1);"), headers) is not None
    for index, name in ((0, "A"), (1, "B")):
        kinds = {slicing(*pair)[index] for pair in pairs}
        assert kinds >= {("k", True), ("k", False), ("mn", True), ("mn", False)}, f"{name}: the sample is too narrow"
    assert len({config.consumer_registers for _, config in pairs}) >= 5
    assert len({store_columns(config, spec) for spec, config in pairs}) >= 4


def slicing(spec: KernelSpec, config: KernelConfig) -> tuple[tuple[str, bool], tuple[str, bool]]:
    """For each operand, how it is stored and whether its boxes are slices of the rows of a slab."""
    whole_a = config.block_m if spec.a_major == "k" else config.block_k
    whole_b = config.block_n if spec.b_major == "k" else config.block_k
    return (spec.a_major, a_box(config, spec, MAX_TILE).rows < whole_a), (
        spec.b_major,
        b_box(config, spec, MAX_TILE).rows < whole_b,
    )


def test_arguments_have_the_layout_of_python() -> None:
    asserts = [f"static_assert(sizeof(Arguments) == {ctypes.sizeof(_Arguments)});"]
    for name, _ in _Arguments._fields_:
        field = getattr(_Arguments, name)
        # What offsetof is made of in NVRTC's front end, which has the macro in no header of its own.
        asserts.append(f"static_assert(__INTADDR__(&((Arguments*)0)->{name}) == {field.offset});")
        asserts.append(f"static_assert(sizeof(Arguments::{name}) == {field.size});")
    headers = compiler.sources(KernelSpec.of(Problem(64, 64, 64)), LEGAL_ONE)
    assert refusal('#include "gemm.cuh"\n' + "\n".join(asserts), headers) is None


def test_dtype_sizes_agree() -> None:
    asserts = [f"static_assert(dtype_bytes(DType::{row.name}) == {row.bytes});" for row in DTYPES.values()]
    assert refusal('#include "config.cuh"\n' + "\n".join(asserts)) is None


def test_the_legal_config_of_this_test_is_legal() -> None:
    assert illegal_reason(LEGAL_ONE, KernelSpec.of(Problem(64, 64, 64)), H200) is None
