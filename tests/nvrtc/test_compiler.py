"""The compiler and its cache, with NVRTC and no GPU."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, kernel_source
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem

pytestmark = pytest.mark.nvrtc

SMALL = KernelConfig(64, 16, 64, 2, 1, False, 1, 1, False, 1, 40, 0, 1)
LARGE = KernelConfig(128, 256, 64, 4, 2, False, 2, 1, False, 8, 40, 1, 1)


def spec(dtype: str = "float16", out_dtype: str = "float16", layout: str = "nn", n: int = 2048) -> KernelSpec:
    return KernelSpec.of(Problem(2048, n, 4096, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, layout=layout))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    return tmp_path


FAMILIES = [
    (spec(), LARGE),
    (spec(out_dtype="float32"), LARGE.swapped(stages=3, store_stages=2)),
    (spec("bfloat16", "bfloat16"), LARGE.swapped(cluster_m=1, cluster_n=2, wait_depth=0)),
    (spec(layout="nt"), LARGE.swapped(split_n=True, block_m=64)),
    (spec(layout="tn"), LARGE.swapped(cluster_m=1)),
    (spec(layout="tt"), LARGE.swapped(block_n=192, block_k=128, stages=2)),
    (spec(n=2047), LARGE.swapped(store_stages=0)),
    (spec(), LARGE.swapped(consumers=3, block_m=192, block_n=128)),
    (spec(), LARGE.swapped(consumers=3, block_m=192, block_n=200, stages=3, producer_registers=32)),
    (spec(), SMALL.swapped(block_n=8)),
    (spec(), LARGE.swapped(block_n=192, cluster_m=1, ping_pong=True)),
    (spec(), LARGE.swapped(block_n=128, cluster_m=1, cluster_k=4)),
    (spec(layout="nt"), SMALL.swapped(cluster_n=2, cluster_k=3, store_stages=0)),
    (spec(), SMALL.swapped(block_n=208, wait_depth=1, store_stages=1, swap_ab=True)),
    (spec(layout="nt"), LARGE.swapped(block_n=144, store_stages=2, ping_pong=True, stages=4, swap_ab=True)),
]
COPIED = [
    (spec(), SMALL.swapped(block_n=64, stages=12, wait_depth=1, cp_async_stages=4)),
    (spec(layout="tt"), SMALL.swapped(block_n=24, wait_depth=1, store_stages=1, cp_async_stages=2, swap_ab=True)),
    (spec(layout="tt"), SMALL.swapped(block_n=24, wait_depth=1, cluster_k=8, store_stages=0, cp_async_stages=1)),
    (spec("bfloat16"), SMALL.swapped(block_k=256, stages=3, wait_depth=1, cluster_k=2, cp_async_stages=3)),
    (
        spec(layout="nt"),
        LARGE.swapped(block_n=128, block_k=128, stages=3, cluster_m=1, store_stages=1, cp_async_stages=2),
    ),
    (spec(layout="tn", n=2047), LARGE.swapped(block_n=200, stages=3, cluster_m=1, store_stages=0, cp_async_stages=1)),
]


@pytest.mark.parametrize(("kernel_spec", "config"), FAMILIES)
def test_families_compile_as_asked(kernel_spec: KernelSpec, config: KernelConfig, cache: Path) -> None:
    assert illegal_reason(config, kernel_spec, H200) is None
    compiled = compiler.compile_kernel(kernel_spec, config)
    assert compiled.advisories == ()
    assert compiled.spill_bytes == 0
    # setmaxnreg took effect only if the kernel was built for what its launch bounds allow.
    assert compiled.registers == {1: 248, 2: 168, 3: 128}[config.consumers]
    assert compiled.cubin.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(("kernel_spec", "config"), COPIED)
def test_kernels_that_copy_compile_as_asked(kernel_spec: KernelSpec, config: KernelConfig, cache: Path) -> None:
    assert illegal_reason(config, kernel_spec, H200) is None
    compiled = compiler.compile_kernel(kernel_spec, config)
    assert compiled.advisories == ()
    assert compiled.spill_bytes == 0
    # ptxas before 13.4 encodes some copies with an L2 cache hint as an instruction that there is not.
    cubin = compiled.cubin.read_bytes()
    opcodes = [int.from_bytes(cubin[at : at + 2], "little") & 0xFFF for at in range(0, len(cubin), 8)]
    assert opcodes.count(0xFAE) >= 4  # LDGSTS
    assert opcodes.count(0xDAE) == 0


def test_second_compile_is_read_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.compile_kernel(spec(), SMALL)

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "compile_program", refuse)
    assert compiler.compile_kernel(spec(), SMALL) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compiler.compile_kernel(spec("bfloat16", "bfloat16"), SMALL)


@pytest.mark.parametrize(
    "damage", ["cubin cut", "description cut", "description of another file", "no log", "not a mapping"]
)
def test_a_damaged_entry_is_compiled_anew(damage: str, cache: Path) -> None:
    whole = compiler.compile_kernel(spec(), SMALL)
    content, description = whole.cubin.read_bytes(), whole.cubin.with_suffix(".json")
    if damage == "cubin cut":
        whole.cubin.write_bytes(content[:-100])
    elif damage == "description cut":
        description.write_text(description.read_text()[:40])
    elif damage == "no log":
        description.write_text(json.dumps({**json.loads(description.read_text()), "log": ""}))
    elif damage == "not a mapping":
        description.write_text("[1, 2]")
    else:
        description.write_text(json.dumps({**json.loads(description.read_text()), "cubin_sha256": "0" * 64}))
    again = compiler.compile_kernel(spec(), SMALL)
    assert again == whole
    assert again.cubin.read_bytes() == content


def test_a_kernel_of_which_nothing_is_said_is_refused_and_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tuple(option for option in compiler.OPTIONS if not option.startswith("--ptxas"))
    monkeypatch.setattr(compiler, "OPTIONS", silent)
    with pytest.raises(CompileError, match="does not say how many registers"):
        compiler.compile_kernel(spec(), SMALL)
    assert not list((cache / "kernels").glob("*"))


def test_key_depends_on_all_that_decides_the_cubin(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {compiler.cache_key(spec(), SMALL)}
    keys.add(compiler.cache_key(spec(), SMALL.swapped(stages=3)))
    keys.add(compiler.cache_key(spec(layout="nt"), SMALL))
    monkeypatch.setattr(compiler, "OPTIONS", (*compiler.OPTIONS, "-lineinfo"))
    keys.add(compiler.cache_key(spec(), SMALL))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: "99.0")
    keys.add(compiler.cache_key(spec(), SMALL))
    monkeypatch.setattr(compiler, "source_digest", lambda config: "another")
    keys.add(compiler.cache_key(spec(), SMALL))
    assert len(keys) == 6


def test_configs_that_differ_at_launch_alone_share_a_cubin() -> None:
    other = SMALL.swapped(group=2, raster_along_n=True, l2_promotion=0, keep_a=1, keep_b=-1, keep_out=-1)
    assert compiler.cache_key(spec(), SMALL) == compiler.cache_key(spec(), other)


def compile_in_child(cache: str) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUPYGEMM_CACHE_DIR", cache)
        return compiler.compile_kernel(spec(), SMALL).cubin.read_bytes()


def test_many_processes_may_compile_the_same_kernel(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        cubins = list(pool.map(compile_in_child, [str(cache)] * 8))
    assert len(set(cubins)) == 1
    assert sorted(path.suffix for path in (cache / "kernels").iterdir()) == [".cubin", ".json"]


def test_a_refused_source_raises_with_the_log(cache: Path) -> None:
    headers = {**compiler.sources(spec(), SMALL), "raster.cuh": "#error no raster today\n"}
    with pytest.raises(CompileError, match="no raster today") as caught:
        compiler.compile_program(kernel_source.name_expression(spec(), SMALL), headers)
    assert "raster.cuh" in caught.value.log


def test_spills_and_advisories_are_read_from_the_log(cache: Path) -> None:
    # 224 accumulators leave 24 registers for all else: ptxas says what it spilled, and it is kept.
    crowded = LARGE.swapped(consumers=1, block_n=224, cluster_m=1)
    assert illegal_reason(crowded, spec(), H200) is None
    spilling = compiler.compile_kernel(spec(), crowded)
    assert spilling.spill_bytes > 0
    # Touching an accumulator between the issue and the wait makes ptxas serialise the WGMMAs, and say so.
    headers = compiler.sources(spec(), LARGE)
    touched = headers["gemm.cuh"].replace("wgmma_wait_group<CONFIG.wait_depth>();", "d[0][0] += 1.0f;", 1)
    assert touched != headers["gemm.cuh"]
    log = compiler.compile_program(kernel_source.name_expression(spec(), LARGE), {**headers, "gemm.cuh": touched}).log
    assert compiler.advisories(log) != ()
