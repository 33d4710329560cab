"""Where a CTA's cycles go: clock stamps in a config's kernel, whole and with a part left out.

    python -m bench.timeline 2048x2048x4096 1024x1024x1024 --bundle tuned.yaml -o bench/results/timeline.json

Cycles do not move with the clock, so that versions compare by a hundred of them where times move by per cents. The
stamps cost some tens of cycles themselves. What is left out is left out of the sources as text, which fails where they
have moved on.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.command import Program, command_line
from cupygemm.bundles.bundle import Bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import BundleError
from cupygemm.kernels import compiler, driver, kernel_source
from cupygemm.kernels.compiler import CompiledKernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.measuring import provenance
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.graphs import capture
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import write_report
from cupygemm.measuring.timing import num_launches
from cupygemm.names import ROTATED
from cupygemm.problem import Problem

ONCE = ("entry", "entry_ns", "first_load", "first_stage")
"""In cycles of the CTA's SM, but for what is in ns: the kernel begins; the producer issues its first load; the first
consumer finds its first stage."""
BY_CONSUMER = ("last_wgmma", "staged", "read", "end_ns")
"""The last consumer has its last tile in registers; has written the last sub-tile for TMA; TMA has read it."""
CONSUMERS = 3
STAMPS = (*ONCE, *(f"{name}{consumer}" for name in BY_CONSUMER for consumer in range(CONSUMERS)))
REPEATS = 5
MAX_CTAS = 1024

DECLARATIONS = f"""
__device__ unsigned long long stamps[{MAX_CTAS}][{len(STAMPS)}];
__device__ __forceinline__ void stamp(int which, bool nanoseconds) {{
    unsigned long long now;
    if (nanoseconds) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    else asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    stamps[blockIdx.x][which] = now;
}}
template <KernelSpec SPEC, KernelConfig CONFIG>
struct Gemm"""


def _stamp(*names: str, when: str) -> str:
    calls = ""
    for name in names:
        place = str(STAMPS.index(name)) if name in ONCE else f"{STAMPS.index(name + '0')} + consumer"
        calls += f"stamp({place}, {str(name.endswith('_ns')).lower()}); "
    return f"if ({when}) {{ {calls}}}\n"


FIRST_CONSUMER = "threadIdx.x == WARPGROUP"
EACH_CONSUMER = "threadIdx.x % WARPGROUP == 0"
_BEFORE_STORE = "            TileIndex own{tile.m + row, tile.n + column, tile.batch};\n"
INSTRUMENTS = (
    ("\ntemplate <KernelSpec SPEC, KernelConfig CONFIG>\nstruct Gemm", DECLARATIONS, True),
    ("        extern __shared__ uint8_t", _stamp("entry", "entry_ns", when="threadIdx.x == 0"), False),
    ("uint64_t* full = &shared.full", _stamp("first_load", when="k == schedule.k_begin && t == schedule.first"), False),
    (
        "multiply(first_a",
        _stamp("first_stage", when=f"{FIRST_CONSUMER} && k == schedule.k_begin && t == schedule.first"),
        False,
    ),
    (_BEFORE_STORE, _BEFORE_STORE + _stamp("last_wgmma", when=EACH_CONSUMER), True),
    ("        // Shared memory must outlive", _stamp("staged", "read", "end_ns", when=EACH_CONSUMER), False),
    (
        "bulk_wait_group_read<0>();\n        }",
        f"bulk_wait_group_read<0>();\n {_stamp('read', 'end_ns', when=EACH_CONSUMER)}}}",
        True,
    ),
)
"""What is looked for in gemm.cuh, what stands before it or (True) in its place."""

LOADED = "k < schedule.k_begin + CONFIG.stages * CONFIG.block_k && t == schedule.first"
WITHOUT_LOADS = (
    ("TileA::template load<", f"if ({LOADED}) ", False),
    ("TileB::template load<", f"if ({LOADED}) ", False),
    (
        "mbarrier_arrive_expect_tx(full, args.loaded_bytes);",
        f"if ({LOADED}) mbarrier_arrive_expect_tx(full, args.loaded_bytes); else mbarrier_arrive(full);",
        True,
    ),
)
WITHOUT_STORES = (
    # Never true, which the compiler cannot know: the accumulators stay needed.
    (
        "            if constexpr (CONFIG.store_stages > 0) {\n                Store",
        "if (args.out_row_stride != -1) continue;\n",
        False,
    ),
)
VARIANTS = {"whole": (), "without loads": WITHOUT_LOADS, "without stores": WITHOUT_STORES}


@click.command(cls=Program)
@click.argument("shapes", nargs=-1, required=True)
@click.option("--dtype", default="float16", show_default=True)
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(shapes: tuple[str, ...], dtype: str, bundle_path: Path, commit: str | None, output: Path) -> None:
    """Takes the stamps of the bundle's configs for SHAPES."""
    bundle = Bundle.load(bundle_path)
    summary: dict[str, Any] = {}
    with holding_gpu(0), tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            problem = Problem.parse(shape, dtype)
            entry = bundle.entry(problem)
            if entry is None:
                raise BundleError(f"{bundle_path}: no config for {problem}")
            if entry.config.cp_async_stages:
                raise BundleError(f"{problem}: its config copies its first stages; the stamps are of gemm.cuh")
            if entry.config.cluster_m > 1 and entry.config.cluster_n > 1:
                raise BundleError(f"{problem}: without loads nothing keeps the CTAs of a 2x2 cluster in step")
            summary[shape] = {"config": entry.config.to_dict()}
            for variant in VARIANTS:
                found = _cycles(problem, entry.config, variant, Path(folder))
                summary[shape][variant] = found
                click.echo(f"{problem}, {variant}: {', '.join(f'{name} {value}' for name, value in found.items())}")
    command = command_line("bench.timeline")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary)


def instrumented(spec: KernelSpec, config: KernelConfig, variant: str) -> dict[str, str]:
    """The headers of a kernel that leaves stamps behind.

    Raises:
        ValueError: the source has moved on.
    """
    headers = compiler.sources(spec, config)
    text = headers["gemm.cuh"]
    for anchor, insertion, replaces in (*VARIANTS[variant], *INSTRUMENTS):
        if text.count(anchor) != 1:
            raise ValueError(f"{anchor!r} stands {text.count(anchor)} times in gemm.cuh")
        text = text.replace(anchor, insertion if replaces else insertion + anchor)
    return {**headers, "gemm.cuh": text}


def _cycles(problem: Problem, config: KernelConfig, variant: str, folder: Path) -> dict[str, int]:
    """Median over CTAs and repeats of each stamp, in cycles since the CTA's entry, and the clock that ran."""
    cupy, spec = driver.cupy(), KernelSpec.of(problem)
    kernel = LoadedKernel(_compile(spec, config, variant, folder))
    module = cupy.RawModule(path=str(kernel.compiled.cubin))
    kernel.kernel = module.get_function(kernel.compiled.lowered_name)
    kernel.kernel.max_dynamic_shared_size_bytes = kernel.shared_bytes
    plan, bench = Plan(problem, kernel), Bench(problem)
    sets = bench.operands(ROTATED)
    taken = []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        timed = capture(plan.launch, sets, num_launches(problem, len(sets)))
        for _ in range(REPEATS):
            for _ in range(4):
                timed.graph.launch()
            stream.synchronize()
            stamps = cupy.ndarray((MAX_CTAS, len(STAMPS)), cupy.int64, module.get_global("stamps"))
            taken.append(stamps.get()[: plan.grid])
    # A consumer that is not there, or had no tile, has left zeros, which are never the latest.
    runs = [_latest(run) for run in taken]
    cycles = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    elapsed_ns = cycles.pop("elapsed_ns")
    return {
        **{name: int(np.median(found)) for name, found in cycles.items()},
        "slowest_read": int(np.median([run["read"].max() for run in runs])),
        "sm_clock_mhz": round(float(np.median(cycles["read"] / elapsed_ns)) * 1000),
    }


def _latest(stamps: Any) -> dict[str, Any]:
    """For each CTA, cycles since its entry, and nanoseconds from there to its end."""
    at = {name: stamps[:, index] for index, name in enumerate(STAMPS)}
    for name in BY_CONSUMER:
        at[name] = np.max([at[f"{name}{consumer}"] for consumer in range(CONSUMERS)], axis=0)
    names = ("first_load", "first_stage", "last_wgmma", "staged", "read")
    return {**{name: at[name] - at["entry"] for name in names}, "elapsed_ns": at["end_ns"] - at["entry_ns"]}


def _compile(spec: KernelSpec, config: KernelConfig, variant: str, folder: Path) -> CompiledKernel:
    healthy = compiler.compile_kernel(spec, config)
    program = compiler.compile_program(kernel_source.name_expression(spec, config), instrumented(spec, config, variant))
    cubin = folder / f"{healthy.cubin.stem}.{variant.replace(' ', '_')}.cubin"
    cubin.write_bytes(program.cubin)
    return dataclasses.replace(healthy, cubin=cubin, lowered_name=program.lowered_name)


if __name__ == "__main__":
    main()
