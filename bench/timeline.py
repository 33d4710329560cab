"""Where a CTA's cycles go: clock stamps in a config's kernel, whole and with a part left out.

    python -m bench.timeline 2048x2048x4096 1024x1024x1024 --bundle tuned.yaml -o bench/results/timeline.json

Cycles do not move with the clock, so that versions compare by a hundred of them where times move by per cents. The
stamps cost some tens of cycles themselves. What is left out is left out of the sources as text, which fails where they
have moved on. Kernels that copy their first stages are stamped whole only, and also when their tile is known and when
their copies have begun.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.shared.command import Program, command_line
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

ONCE = ("entry", "entry_ns", "first_tile", "first_load", "copied", "first_stage")
"""In cycles of the CTA's SM, but for what is in ns: the kernel begins; the producer issues its first load; the first
consumer finds its first stage. Where the consumers copy, the first one knows its tile, begins its first copy, and has
begun its last one."""
COPYING = ("first_tile", "copied")
"""Of these, what is stamped only where the consumers copy."""
BY_CONSUMER = ("last_wgmma", "staged", "read", "end_ns")
"""The last consumer has its last tile in registers; has written the last sub-tile for TMA; TMA has read it."""
CONSUMERS = 3
CYCLES = tuple(name for name in (*ONCE[1:], *BY_CONSUMER) if not name.endswith("_ns"))
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
_ENTRY = ("        extern __shared__ uint8_t", _stamp("entry", "entry_ns", when="threadIdx.x == 0"), False)
_LAST_WGMMA = (_BEFORE_STORE, _BEFORE_STORE + _stamp("last_wgmma", when=EACH_CONSUMER), True)
_DECLARED = ("\ntemplate <KernelSpec SPEC, KernelConfig CONFIG>\nstruct Gemm", DECLARATIONS, True)
INSTRUMENTS = (
    _DECLARED,
    _ENTRY,
    ("uint64_t* full = &shared.full", _stamp("first_load", when="k == schedule.k_begin && t == schedule.first"), False),
    (
        "multiply(first_a",
        _stamp("first_stage", when=f"{FIRST_CONSUMER} && k == schedule.k_begin && t == schedule.first"),
        False,
    ),
    _LAST_WGMMA,
    ("        // Shared memory must outlive", _stamp("staged", "read", "end_ns", when=EACH_CONSUMER), False),
    (
        "bulk_wait_group_read<0>();\n        }",
        f"bulk_wait_group_read<0>();\n {_stamp('read', 'end_ns', when=EACH_CONSUMER)}}}",
        True,
    ),
)
"""What is looked for in gemm.cuh, what stands before it or (True) in its place."""

_FIRST_COPIED = "        copy(shared, args, schedule, tile, copied);\n"
_FIRST_COPY = "        griddepcontrol_wait();\n#pragma unroll 1  // unrolled"
_NEXT_TILE = "            t += schedule.step;\n            if (t < schedule.raster.tiles) tile"
FIRST_COPIER = "threadIdx.x == 0"
COPYING_INSTRUMENTS = (
    _ENTRY,
    (
        _FIRST_COPIED,
        f"pin_register(tile.m); pin_register(tile.n);\n{_stamp('first_tile', when=FIRST_COPIER)}"
        f"{_FIRST_COPIED}{_stamp('copied', when=FIRST_COPIER)}",
        True,
    ),
    (_FIRST_COPY, _stamp("first_load", when=FIRST_COPIER), False),
    (
        "Base::multiply(first_a",
        _stamp("first_stage", when=f"{FIRST_COPIER} && k == schedule.k_begin && t == schedule.first"),
        False,
    ),
    _LAST_WGMMA,
    (_NEXT_TILE, _stamp("staged", "read", "end_ns", when=EACH_CONSUMER), False),
)
"""The same of gemm_cp_async.cuh, whose warps store what they have staged."""

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
WHOLE = "whole"
VARIANTS = {WHOLE: (), "without loads": WITHOUT_LOADS, "without stores": WITHOUT_STORES}


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
            if entry.config.cluster_m > 1 and entry.config.cluster_n > 1:
                raise BundleError(f"{problem}: without loads nothing keeps the CTAs of a 2x2 cluster in step")
            summary[shape] = {"config": entry.config.to_dict()}
            for variant in variants(entry.config):
                found = _cycles(problem, entry.config, variant, Path(folder))
                summary[shape][variant] = found
                click.echo(f"{problem}, {variant}: {', '.join(f'{name} {value}' for name, value in found.items())}")
    command = command_line("bench.timeline")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary)


def variants(config: KernelConfig) -> tuple[str, ...]:
    """What a config is stamped as."""
    return (WHOLE,) if config.cp_async_stages else tuple(VARIANTS)


def instrumented(spec: KernelSpec, config: KernelConfig, variant: str) -> dict[str, str]:
    """The headers of a kernel that leaves stamps behind.

    Raises:
        ValueError: the source has moved on.
    """
    headers = compiler.sources(spec, config)
    if config.cp_async_stages:
        pages = {"gemm.cuh": (_DECLARED,), "gemm_cp_async.cuh": COPYING_INSTRUMENTS}
    else:
        pages = {"gemm.cuh": (*VARIANTS[variant], *INSTRUMENTS)}
    for page, instruments in pages.items():
        for anchor, insertion, replaces in instruments:
            if headers[page].count(anchor) != 1:
                raise ValueError(f"{anchor!r} stands {headers[page].count(anchor)} times in {page}")
            headers[page] = headers[page].replace(anchor, insertion if replaces else insertion + anchor)
    return headers


def _cycles(problem: Problem, config: KernelConfig, variant: str, folder: Path) -> dict[str, int]:
    """Median over CTAs and repeats of each stamp, in cycles since the CTA's entry, and the clock that ran.

    Besides in nanoseconds: a launch of its graph, and of that what lies between a CTA's end and the next one's entry.
    """
    cupy, spec = driver.cupy(), KernelSpec.of(problem)
    kernel = LoadedKernel(_compile(spec, config, variant, folder))
    module = cupy.RawModule(path=str(kernel.compiled.cubin))
    kernel.kernel = module.get_function(kernel.compiled.lowered_name)
    kernel.kernel.max_dynamic_shared_size_bytes = kernel.shared_bytes
    plan, bench = Plan(problem, kernel), Bench(problem)
    sets = bench.operands(ROTATED)
    launches = num_launches(problem, len(sets))
    taken, launch_ns = [], []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        timed = capture(plan.launch, sets, launches)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        for _ in range(REPEATS):
            for _ in range(3):
                timed.graph.launch()
            start.record(stream)
            timed.graph.launch()
            end.record(stream)
            stream.synchronize()
            launch_ns.append(cupy.cuda.get_elapsed_time(start, end) * 1e6 / launches)
            stamps = cupy.ndarray((MAX_CTAS, len(STAMPS)), cupy.int64, module.get_global("stamps"))
            taken.append(stamps.get()[: plan.grid])
    # A consumer that is not there, or had no tile, has left zeros, which are never the latest.
    runs = [_latest(run) for run in taken]
    absent = () if config.cp_async_stages else COPYING
    cycles = {name: np.concatenate([run[name] for run in runs]) for name in CYCLES if name not in absent}
    elapsed_ns = np.concatenate([run["end_ns"] - run["entry_ns"] for run in runs])
    within_ns = [run["end_ns"].max() - run["entry_ns"].min() for run in runs]
    return {
        **{name: int(np.median(found)) for name, found in cycles.items()},
        "slowest_read": int(np.median([run["read"].max() for run in runs])),
        "sm_clock_mhz": round(float(np.median(cycles["read"] / elapsed_ns)) * 1000),
        "launch_ns": round(float(np.median(launch_ns))),
        "between_ns": round(float(np.median(np.subtract(launch_ns, within_ns)))),
    }


def _latest(stamps: Any) -> dict[str, Any]:
    """For each CTA the stamps of its last consumer: cycles since its entry, and what is in nanoseconds."""
    at = {name: stamps[:, index] for index, name in enumerate(STAMPS)}
    for name in BY_CONSUMER:
        at[name] = np.max([at[f"{name}{consumer}"] for consumer in range(CONSUMERS)], axis=0)
    return {**{name: at[name] - at["entry"] for name in CYCLES}, **{name: at[name] for name in ("entry_ns", "end_ns")}}


def compiled(spec: KernelSpec, config: KernelConfig, variant: str) -> compiler.Program:
    """The kernel that leaves stamps behind.

    Raises:
        CompileError, ValueError: as of `compile_program` and `instrumented`.
    """
    unit = kernel_source.program_of(kernel_source.page_of(config))
    return compiler.compile_program(
        kernel_source.name_expression(spec, config), instrumented(spec, config, variant), unit
    )


def _compile(spec: KernelSpec, config: KernelConfig, variant: str, folder: Path) -> CompiledKernel:
    healthy = compiler.compile_kernel(spec, config)
    program = compiled(spec, config, variant)
    cubin = folder / f"{healthy.cubin.stem}.{variant.replace(' ', '_')}.cubin"
    cubin.write_bytes(program.cubin)
    return dataclasses.replace(healthy, cubin=cubin, lowered_name=program.lowered_name)


if __name__ == "__main__":
    main()
