"""Kernels of every family, compiled by the newest and the oldest NVRTC of CUDA 12 that is supported.

Each NVRTC has an environment of its own beside the checkout (`make test` makes them): in one environment with that of
CUDA 13, cuda.bindings would load the newest.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.kernels.compiler import OLDEST_NVRTC
from cupygemm.legality import illegal_reason
from cupygemm.problem import LAYOUTS, Problem

ROOT = Path(__file__).parent.parent.parent
VERSIONS = ("12.9", "{}.{}".format(*OLDEST_NVRTC))
PROCESSES = 2

CONFIG = KernelConfig(128, 128, 64, 4, 2, False, 1, 1, False, 8, 40, 1, 1)
F16 = Problem(2048, 2048, 4096)
BF16 = Problem(2048, 2048, 4096, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16")

FAMILIES: list[tuple[Problem, KernelConfig]] = [
    (F16, CONFIG.swapped(block_n=256, cluster_m=2)),
    (F16, CONFIG.swapped(ping_pong=True)),
    (F16, CONFIG.swapped(block_m=64, block_n=16, consumers=1, stages=2, wait_depth=0)),
    (Problem(2048, 2047, 4096), CONFIG.swapped(store_stages=0)),
    (Problem(2048, 2048, 4096, out_dtype="float32"), CONFIG.swapped(store_stages=4)),
    (Problem(2048, 2048, 4096, layout="nt"), CONFIG.swapped(split_n=True, block_m=64, cluster_n=2)),
    (Problem(2048, 2048, 4096, layout="tn"), CONFIG.swapped(block_m=192, consumers=3, raster_along_n=True)),
    (Problem(2048, 2048, 4096, layout="tt"), CONFIG.swapped(block_k=128, stages=3, cluster_m=2, cluster_n=2)),
    (BF16, CONFIG.swapped(block_m=256, producer_registers=24)),
    (Problem.from_dict({**BF16.to_dict(), "layout": "nt"}), CONFIG.swapped(ping_pong=True, cluster_m=2)),
    (Problem.from_dict({**BF16.to_dict(), "layout": "tn"}), CONFIG.swapped(ping_pong=True, block_n=192)),
    (Problem.from_dict({**BF16.to_dict(), "layout": "tt", "out_dtype": "float32"}), CONFIG.swapped(store_stages=2)),
    (BF16, CONFIG.swapped(block_m=64, block_n=208, consumers=1, cluster_k=2, swap_ab=True)),
    (Problem(2048, 2048, 4096, layout="nt"), CONFIG.swapped(ping_pong=True, swap_ab=True)),
    (F16, CONFIG.swapped(cp_async_stages=2)),
    (
        Problem(64, 64, 4096, layout="nt"),
        CONFIG.swapped(block_m=64, block_n=16, consumers=1, cluster_k=8, store_stages=0, cp_async_stages=4),
    ),
]

# Runs where there is no pytest and no NumPy: only what compiling needs.
COMPILE = """
import json, sys
import cuda.bindings
from cupygemm.kernels import compiler
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CompileError
from cupygemm.problem import Problem
found = []
for problem, config in json.load(sys.stdin):
    try:
        made = compiler.compile_kernel(KernelSpec.of(Problem(**problem)), KernelConfig(**config))
    except CompileError as error:
        found.append({"error": str(error)})
    else:
        elf = made.cubin.read_bytes()[:4] == b"\\x7fELF"
        found.append({"advisories": made.advisories, "spill_bytes": made.spill_bytes, "registers": made.registers,
                      "elf": elf})
print(json.dumps({"nvrtc": compiler.nvrtc_version(), "bindings": cuda.bindings.__version__, "found": found}))
"""


def interpreter(version: str) -> Path:
    """The Python of the environment with this NVRTC, or a skip, or a failure where it was required."""
    path = ROOT / f".venv-nvrtc-{version}" / "bin" / "python"
    if not path.exists():
        reason = f"there is no {path.relative_to(ROOT)}: make test makes it"
        if os.environ.get("CUPYGEMM_REQUIRE_NVRTC") == "1":
            pytest.fail(f"CUPYGEMM_REQUIRE_NVRTC=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return path


def compile_with(version: str, families: list[tuple[Problem, KernelConfig]], cache: Path) -> list[dict]:
    """What becomes of each family under an NVRTC of CUDA 12."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUPYGEMM_CACHE_DIR": str(cache)}
    pairs = [(problem.to_dict(), config.to_dict()) for problem, config in families]
    command = [str(interpreter(version)), "-B", "-P", "-c", COMPILE]
    done = subprocess.run(
        command, input=json.dumps(pairs), capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert (told["nvrtc"], told["bindings"].split(".")[0]) == (version, "12")
    return told["found"]


def test_the_families_cover_what_is_built() -> None:
    assert all(illegal_reason(config, KernelSpec.of(problem), H200) is None for problem, config in FAMILIES)
    assert {(problem.a_dtype, problem.layout) for problem, _ in FAMILIES} == {
        (dtype, layout) for dtype in ("float16", "bfloat16") for layout in LAYOUTS
    }
    assert {problem.out_dtype for problem, _ in FAMILIES} == {"float16", "bfloat16", "float32"}
    for name, least in (("ping_pong", 2), ("split_n", 2), ("cluster_m", 2), ("cluster_n", 2), ("store_stages", 4)):
        assert len({getattr(config, name) for _, config in FAMILIES}) >= least, name
    assert {config.consumers for _, config in FAMILIES} == {1, 2, 3}
    assert {config.consumers for _, config in FAMILIES if config.cp_async_stages} == {1, 2}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_family_compiles_as_asked(version: str, tmp_path: Path) -> None:
    interpreter(version)
    parts = [FAMILIES[start::PROCESSES] for start in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        outcomes = list(pool.map(lambda part: compile_with(version, part, tmp_path), parts))
    for part, outcome in zip(parts, outcomes, strict=True):
        assert len(part) == len(outcome)
        for (problem, config), found in zip(part, outcome, strict=True):
            # Without setmaxnreg a kernel has the registers that it needs.
            given = {1: 248, 2: 168, 3: 128}[config.consumers]
            registers = found.get("registers") if config.cp_async_stages else given
            wanted = {"advisories": [], "spill_bytes": 0, "registers": registers, "elf": True}
            assert found == wanted, f"{problem} {config}"
