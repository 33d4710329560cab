"""Host time of a call, with work queued on the GPU, so that nothing waits: ours, CuPy's, PyTorch's and a bare launch.

    python -m bench.host -o bench/results/host.json

Each way is timed in runs of a few hundred calls, the ways by turns; operands and result change from call to call. The
bare launch is cuLaunchKernelEx through cuda.bindings with everything laid ready, of the same kernel.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

import cupygemm
from bench.shared.command import Program, command_line
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import BundleError
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report
from cupygemm.problem import Problem
from cupygemm.runtime.prepared import Prepared

CALLS = 400
"""Of one run: fewer than the driver queues before it makes the host wait."""
RUNS = 25
SETS = 7

Call = Callable[[Any, Any, Any], Any]


@click.command(cls=Program)
@click.option("--shape", default="2048x2048x4096", show_default=True, help="A kernel takes longer than a call.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(shape: str, commit: str | None, output: Path) -> None:
    """Times calls of a float16 product on the host."""
    cupy = driver.cupy()
    problem = Problem.parse(shape)
    rng = cupy.random.default_rng(1)

    def draw(rows: int, columns: int) -> Any:
        return rng.standard_normal((rows, columns), dtype=cupy.float32).astype(cupy.float16)

    m, n, k = problem.m, problem.n, problem.k
    sets = [(draw(m, k), draw(k, n), cupy.empty((m, n), cupy.float16)) for _ in range(SETS)]
    with cupy.cuda.Stream(non_blocking=True):
        ways = {**_ours(problem, sets[0]), **_cupy(), **_torch(sets)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(RUNS):
            for name, call in ways.items():
                times[name].append(_run(call, sets))
    summary = {f"{name}, µs": round(median(samples), 2) for name, samples in times.items()}
    for name, us in summary.items():
        click.echo(f"{name}: {us}")
    command = command_line("bench.host")
    write_report(
        output, output.stem, command, provenance.collect(0, command, commit), {"problem": str(problem), **summary}
    )


def _run(call: Call, sets: Sequence[Any]) -> float:
    """µs of the host a call."""
    device = driver.cupy().cuda.Device()
    for operands in sets:
        call(*operands)
    device.synchronize()
    chosen = list(itertools.islice(itertools.cycle(sets), CALLS))
    gc.disable()
    started = time.perf_counter()
    for a, b, out in chosen:
        call(a, b, out)
    elapsed = time.perf_counter() - started
    gc.enable()
    device.synchronize()
    return elapsed / CALLS * 1e6


def _ours(problem: Problem, operands: Any) -> dict[str, Call]:
    choice, plan = Dispatcher(even_slower=True).choose_for(problem, 0)
    if plan is None:
        raise BundleError(f"{problem}: {choice.reason}")
    cupy, prepared = driver.cupy(), Prepared(plan, *operands)
    planned = _planned(problem, operands)

    def repeated(a: Any, b: Any, out: Any) -> None:
        prepared.launch(a.data.ptr, b.data.ptr, out.data.ptr, cupy.cuda.get_current_stream().ptr)

    return {
        "bare launch": _bare(plan, operands),
        "prepared launch": repeated,
        "kernel plan": plan,
        "cupygemm.plan, out": planned,
        "cupygemm.plan": lambda a, b, out: planned(a, b),
        "cupygemm.matmul, out": lambda a, b, out: cupygemm.matmul(a, b, out=out),
        "cupygemm.matmul": lambda a, b, out: cupygemm.matmul(a, b),
        **_with_terms(problem, operands),
    }


def _with_terms(problem: Problem, operands: Any) -> dict[str, Call]:
    """A plan and `matmul` with the same epilogues, both with `out`."""
    cupy, matmul = driver.cupy(), cupygemm.matmul
    bias, residual = cupy.ones(problem.n, cupy.float16), cupy.ones((problem.m, problem.n), cupy.float16)
    biased = _planned(problem, operands, bias=bias, activation="relu")
    added = _planned(problem, operands, bias=bias, residual=residual, activation="relu")
    return {
        "cupygemm.plan, out, bias, relu": lambda a, b, out: biased(a, b, out, bias=bias),
        "cupygemm.matmul, out, bias, relu": lambda a, b, out: matmul(a, b, out=out, bias=bias, activation="relu"),
        "cupygemm.plan, out, bias, residual, relu": lambda a, b, out: added(a, b, out, bias=bias, residual=residual),
        "cupygemm.matmul, out, bias, residual, relu": lambda a, b, out: matmul(
            a, b, out=out, bias=bias, residual=residual, activation="relu"
        ),
    }


def _planned(problem: Problem, operands: Any, **terms: Any) -> cupygemm.MatmulPlan:
    planned = cupygemm.plan(*operands, **terms)
    if planned.choice.kernel != "own":
        raise BundleError(f"{problem}: {planned.choice.reason}")
    return planned


def _bare(plan: Any, operands: Any) -> Call:
    """A launch through cuda.bindings with the same operands each time."""
    import ctypes

    cuda, cupy = driver.bindings(), driver.cupy()
    *maps, arguments = plan.parameters(*operands)
    addresses = (ctypes.c_void_p * 4)(*(each.address for each in maps), ctypes.addressof(arguments))
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.kernel.compiled.config.threads, 1, 1
    config.sharedMemBytes = plan.kernel.shared_bytes
    function = cuda.CUfunction(plan.kernel.kernel.kernel.ptr)
    place = ctypes.addressof(addresses)
    kept = (maps, arguments, addresses)

    def launch(a: Any, b: Any, out: Any) -> None:
        assert kept
        (status,) = cuda.cuLaunchKernelEx(config, function, place, 0)
        assert not int(status)

    def first(a: Any, b: Any, out: Any) -> None:
        config.hStream = cuda.CUstream(cupy.cuda.get_current_stream().ptr)
        launch(a, b, out)

    first(*operands)
    return launch


def _cupy() -> dict[str, Call]:
    cupy = driver.cupy()
    return {
        "cupy.matmul, out": lambda a, b, out: cupy.matmul(a, b, out=out),
        "cupy.matmul": lambda a, b, out: cupy.matmul(a, b),
    }


def _torch(sets: Sequence[Any]) -> dict[str, Call]:
    """PyTorch on the same memory, where it is installed."""
    try:
        import torch
    except ImportError:
        return {}
    views = {array.data.ptr: torch.from_dlpack(array) for operands in sets for array in operands}

    def with_out(a: Any, b: Any, out: Any) -> None:
        torch.matmul(views[a.data.ptr], views[b.data.ptr], out=views[out.data.ptr])

    return {
        "torch.matmul, out": with_out,
        "torch.matmul": lambda a, b, out: torch.matmul(views[a.data.ptr], views[b.data.ptr]),
    }


if __name__ == "__main__":
    main()
