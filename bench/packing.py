"""Operands that TMA cannot read: the copy alone, copy and own kernel, and what `cupy.matmul` does, by turns.

    python -m bench.packing -o bench/results/packing.json

`cupy.matmul` cannot be captured in a CUDA graph, so that here stands what it does: a copy of each operand that is not
contiguous, by CuPy's own kernel, then cuBLAS with CuPy's settings; stacks are widened to float32. How long calls of
`cupy.matmul` itself take, one after the other, stands beside it. The config of the own kernel is the quicker of two:
that of the nearest problem in the bundle that ships, and a default. Everything is verified before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from bench.shared.command import Program, command_line
from bench.shared.packing_cases import CASES, Case, draw, problem_of
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.choosing.defaults import default_config
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.epilogue import NONE
from cupygemm.errors import VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.kernels.compiler import compile_kernel
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.legality import illegal_reason
from cupygemm.measurement import spread
from cupygemm.measuring import provenance, verify
from cupygemm.measuring.cublas import Cublas
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.graphs import TimedGraph, capture, interleave
from cupygemm.measuring.measure import WRONG_BASELINE
from cupygemm.measuring.results import write_report
from cupygemm.problem import Problem
from cupygemm.views.packing import Packing, packing_of
from cupygemm.views.packing_cost import cupy_us, own_us, pack_us, pays
from cupygemm.views.posing import pose
from cupygemm.views.stacks import pose_stack

MAX_SETS = 100
GRAPH_US = 500.0
ROUNDS = 30
CALLS = 20


@dataclass(frozen=True)
class Prepared:
    """A case on the device.

    Attributes:
        problem: as an own kernel sees it.
        packing: of the operands of each set.
        sets: together twice the L2, as posed.
        given: a and b of each as a user has them.
    """

    problem: Problem
    packing: Packing
    sets: list[Operands]
    given: list[tuple[Any, Any]]


@click.command(cls=Program)
@click.option("--only", help="Cases whose names contain this.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(only: str | None, commit: str | None, output: Path) -> None:
    """Measures float16 products of operands that TMA cannot read."""
    cupy = driver.cupy()
    chosen = {name: case for name, case in CASES.items() if only is None or only in name}
    compile_ahead(_kernels(chosen.values()))
    with holding_gpu(0), cupy.cuda.Stream(non_blocking=True):
        cublas, summary = Cublas(), {}
        for name, case in chosen.items():
            summary[name] = _measured(_prepare(case), cublas)
            click.echo(f"{name}: {summary[name]}")
            cupy.get_default_memory_pool().free_all_blocks()
    command = command_line("bench.packing")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary)


def _prepare(case: Case) -> Prepared:
    cupy, rng = driver.cupy(), driver.cupy().random.default_rng(0)
    problem = problem_of(case)
    count = min(MAX_SETS, -(-2 * driver.device_spec(0).l2_bytes // problem.compulsory_bytes))
    given = [draw(case, rng) for _ in range(count)]
    posed = [pose(a, b) or pose_stack(a, b) for a, b in given]
    sets = [
        Operands(each.a, each.b, cupy.empty(each.product_shape, cupy.float16)) for each in posed if each is not None
    ]
    packing = packing_of(sets[0].a, sets[0].b)
    if len(sets) < count or not isinstance(packing, Packing):
        raise VerificationError(f"{problem}: nothing is copied for it: {packing}")
    packing.load()
    return Prepared(replace(problem, layout=packing.layout), packing, sets, given)


def _configs(problem: Problem) -> list[KernelConfig]:
    """That of the nearest problem that ships, and a default, where they are legal."""

    def distance(other: Problem) -> float:
        pairs = ((problem.m, other.m), (problem.n, other.n), (problem.k, other.k), (problem.batch, other.batch))
        return sum(abs(math.log2(x / y)) for x, y in pairs)

    spec, device = KernelSpec.of(problem), driver.device_spec(0)
    plain = [entry for entry in shipped_bundle().entries if entry.problem.epilogue == NONE]
    found = []
    for entry in sorted(plain, key=lambda entry: distance(entry.problem)):
        config = entry.config if spec.out_aligned else entry.config.swapped(store_stages=0)
        if illegal_reason(config, spec, device) is None:
            found.append(config)
            break
    default = default_config(problem, device)
    return list(dict.fromkeys([*found, *([] if default is None else [default])]))


def _kernels(cases: Iterable[Case]) -> set[tuple[KernelSpec, KernelConfig]]:
    """What will be launched; layouts are those that copies of rows have."""
    return {(KernelSpec.of(problem), config) for problem in map(problem_of, cases) for config in _configs(problem)}


def _measured(prepared: Prepared, cublas: Cublas) -> dict[str, Any]:
    """Times of one case, the estimates beside them."""
    problem, packing, sets = prepared.problem, prepared.packing, prepared.sets
    buffer = driver.cupy().empty(packing.buffer_bytes, "uint8")
    plans = [Plan(problem, LoadedKernel(compile_kernel(KernelSpec.of(problem), each))) for each in _configs(problem)]
    launches: dict[str, Launch] = {"pack": lambda given: void(packing(given.a, given.b, buffer))}
    for index, plan in enumerate(plans):
        launches[f"own {index}"] = _packed_product(packing, plan, buffer)
    launches["cupy"] = _as_cupy_does(sets[0], cublas)
    errors = _verified(prepared, launches)
    samples = _timed(problem, launches, sets)
    times = {name: median(each) for name, each in samples.items()}
    best = min(range(len(plans)), key=lambda index: times[f"own {index}"])
    moved = sum(
        2 * copy.matrices * copy.rows * copy.columns + copy.bytes for copy in packing.copies if copy is not None
    )
    own = samples[f"own {best}"]
    ratios = [theirs / ours for ours, theirs in zip(own, samples["cupy"], strict=True)]
    a, b = sets[0].a, sets[0].b
    return {
        "problem": str(problem),
        "copied": packing.reason,
        "sets": len(sets),
        "pack_us": round(times["pack"], 3),
        "pack_gb_s": round(moved / times["pack"] / 1e3, 1),
        "pack_and_own_us": round(times[f"own {best}"], 3),
        "cupy_us": round(times["cupy"], 3),
        "cupy_calls_us": round(_called(prepared), 3),
        "speedup": round(median(ratios), 4),
        "ratio_spread": spread(ratios),
        "cupy_tflops": round(problem.flops / times["cupy"] / 1e6, 1),
        "errors": errors,
        "estimated": {
            "pack_us": round(pack_us(packing), 2),
            "own_us": round(own_us(problem), 2),
            "cupy_us": round(cupy_us(problem, a, b), 2),
            "pays": pays(problem, packing, a, b),
        },
        "config": plans[best].kernel.compiled.config.to_dict(),
    }


def void(_: object) -> None:
    """Nothing: a launch gives none."""


def _packed_product(packing: Packing, plan: Plan, buffer: Any) -> Launch:
    def launch(given: Operands) -> None:
        plan(*packing(given.a, given.b, buffer), given.out)

    return launch


def _as_cupy_does(like: Operands, cublas: Cublas) -> Launch:
    """What `cupy.matmul` queues for operands like these, with memory that a graph can use again."""
    cupy = driver.cupy()
    wide = cupy.float32 if like.out.ndim > 2 else cupy.float16
    copies = [
        cupy.empty(each.shape, wide) if wide == cupy.float32 or not _is_dense(_array(each)) else None
        for each in (like.a, like.b)
    ]
    product = cupy.empty(like.out.shape, wide) if wide == cupy.float32 else None

    def launch(given: Operands) -> None:
        read: list[Any] = []
        for each, copy in zip((given.a, given.b), copies, strict=True):
            array = _array(each)
            if copy is not None:
                copy[...] = array
            read.append(array if copy is None else copy)
        a, b = read
        cublas.gemm(Operands(a, b, given.out if product is None else product))
        if product is not None:
            given.out[...] = product

    return launch


def _is_dense(array: Any) -> bool:
    return bool(array.flags.c_contiguous or array.flags.f_contiguous)


def _array(operand: Any) -> Any:
    """An operand as CuPy's array; a `Stack` has the memory of one."""
    cupy = driver.cupy()
    if isinstance(operand, cupy.ndarray):
        return operand
    return cupy.ndarray(operand.shape, operand.dtype, memptr=operand.data, strides=operand.strides)


def _verified(prepared: Prepared, launches: dict[str, Launch]) -> dict[str, float]:
    """Relative errors against float64 by name.

    Raises:
        VerificationError: a product is wrong, or a copy is not what it is of.
    """
    cupy, given, problem = driver.cupy(), prepared.sets[0], prepared.problem
    arrays = given._replace(a=_array(given.a), b=_array(given.b))
    reference = verify.Reference.of(arrays, problem)
    errors = {}
    for name, launch in launches.items():
        given.out.view(np.uint8).fill(0xFF)
        launch(given)
        if name == "pack":
            for each, original in zip(prepared.packing(given.a, given.b), (arrays.a, arrays.b), strict=True):
                place = getattr(each.data, "buffer", None)
                copy = original if place is None else _of_buffer(each)
                if not cupy.array_equal(copy, original):
                    raise VerificationError(f"{problem}: a copy differs from its operand")
            continue
        verdict = verify.check(given.out, reference)
        if not (verdict.error < WRONG_BASELINE if name == "cupy" else verdict.ok):
            raise VerificationError(f"{problem}: {name}: {verdict.detail}")
        errors[name] = verdict.error
    return errors


def _of_buffer(packed: Any) -> Any:
    cupy, buffer = driver.cupy(), packed.data.buffer
    place = buffer.data + (packed.data.ptr - buffer.data.ptr)
    return cupy.ndarray(packed.shape, packed.dtype, memptr=place, strides=packed.strides)


def _timed(problem: Problem, launches: dict[str, Launch], sets: list[Operands]) -> dict[str, list[float]]:
    """µs of a launch, a sample a round; every set is used equally often."""
    count = len(sets) * math.ceil(GRAPH_US / (len(sets) * own_us(problem)))
    graphs: dict[str, TimedGraph] = {name: capture(launch, sets, count) for name, launch in launches.items()}
    return interleave(graphs, ROUNDS, warmups=10)


def _called(prepared: Prepared) -> float:
    """µs of a call of `cupy.matmul` where many follow one another; of small products the host's time is what counts."""
    cupy, given = driver.cupy(), prepared.given
    times: list[float] = []
    for _ in range(5):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for index in range(CALLS):
            cupy.matmul(*given[index % len(given)])
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / CALLS)
    return median(times[1:])


if __name__ == "__main__":
    main()
