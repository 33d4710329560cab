"""Stacks of matrices as their users have them today: `cupygemm.matmul` beside `cupy.matmul` and `torch.bmm`.

    python -m bench.stacks -o bench/results/stacks.json

The same arrays for all, several sets of them, which do not fit the L2 together; all ways by turns. Ours and PyTorch's
are captured in CUDA graphs. CuPy's cannot be, and is timed between events with the calls queued: where it works at
all it takes longer than a call takes the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

import cupygemm
from bench.shared.command import Program, command_line
from cupygemm.errors import VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Operands
from cupygemm.measuring import provenance, verify
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.graphs import capture
from cupygemm.measuring.results import write_report
from cupygemm.measuring.timing import num_launches, num_sets
from cupygemm.measuring.verify import Reference
from cupygemm.problem import Problem

ROUNDS = 30
WARM_ROUNDS = 10

Replay = Callable[[], Any]


@click.command(cls=Program)
@click.option("--size", default=1024, show_default=True, help="Of the square matrices.")
@click.option("--batch", "batches", type=int, multiple=True, default=(4, 16, 64), show_default=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(size: int, batches: Sequence[int], commit: str | None, output: Path) -> None:
    """Times stacks of float16 and bfloat16 matrices."""
    summary: dict[str, Any] = {}
    with holding_gpu(0):
        for dtype in ("float16", "bfloat16"):
            for batch in batches:
                names = dict.fromkeys(("a_dtype", "b_dtype", "out_dtype"), dtype)
                problem = Problem(size, size, size, batch, **names)
                summary[str(problem)] = measured(problem)
                click.echo(f"{problem}: {summary[str(problem)]}")
    command = command_line("bench.stacks")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary)


def measured(problem: Problem) -> dict[str, Any]:
    """µs of each way and what ours is faster by; None where CuPy raises.

    Raises:
        VerificationError: a way computes something else.
    """
    cupy = driver.cupy()
    rng = cupy.random.default_rng(1)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        sets = [
            verify.draw_operands(rng, problem, verify.ZERO_MEAN)
            for _ in range(num_sets(problem, driver.device_spec(0).l2_bytes))
        ]
        launches = num_launches(problem, len(sets))
        ways = dict(ready(sets, launches, problem, stream))
        marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ways}
        for turn in range(WARM_ROUNDS + ROUNDS):
            for name in list(ways) if turn % 2 else reversed(list(ways)):
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                start.record()
                ways[name]()
                end.record()
                if turn >= WARM_ROUNDS:
                    marks[name].append((start, end))
        stream.synchronize()
        us = {
            name: median(cupy.cuda.get_elapsed_time(*pair) * 1000 / launches for pair in pairs)
            for name, pairs in marks.items()
        }
    ours = us["cupygemm.matmul"]
    found: dict[str, Any] = {f"{name}, µs": round(value, 2) for name, value in us.items()}
    found["TFLOP/s"] = round(problem.flops / ours / 1e6, 1)
    for other in ("cupy.matmul", "torch.bmm"):
        found[f"over {other}"] = round(us[other] / ours, 3) if other in us else None
    return found


def ready(sets: Sequence[Operands], launches: int, problem: Problem, stream: Any) -> Iterator[tuple[str, Replay]]:
    """What runs all launches of each way once it is called, verified."""
    cupy = driver.cupy()
    reference = Reference.of(sets[0], problem)

    def check(name: str, call: Callable[[Operands], Any], bounds: float = 1.0) -> None:
        sets[0].out.fill(float("nan"))
        call(sets[0])
        verdict = verify.check(sets[0].out, reference)
        if not verdict.error <= bounds * verdict.frobenius_bound:
            raise VerificationError(f"{name}, {problem}: {verdict.detail}")

    def ours(given: Operands) -> None:
        cupygemm.matmul(given.a, given.b, given.out)

    check("cupygemm.matmul", ours)
    yield "cupygemm.matmul", capture(ours, sets, launches).graph.launch
    torch_bmm = torch_way(sets, stream)
    if torch_bmm is not None:
        check("torch.bmm", torch_bmm, 2)
        yield "torch.bmm", capture(torch_bmm, sets, launches).graph.launch

    def theirs(given: Operands) -> None:
        cupy.matmul(given.a, given.b, out=given.out)

    try:
        check("cupy.matmul", theirs, 2)
    except TypeError:
        return

    def run() -> None:
        for index in range(launches):
            theirs(sets[index % len(sets)])

    yield "cupy.matmul", run


def torch_way(sets: Sequence[Operands], stream: Any) -> Callable[[Operands], Any] | None:
    """`torch.bmm` on the same memory and stream; None where PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    views = {id(given): tuple(torch.from_dlpack(array) for array in (given.a, given.b, given.out)) for given in sets}
    external = torch.cuda.ExternalStream(stream.ptr)

    def call(given: Operands) -> None:
        a, b, out = views[id(given)]
        with torch.cuda.stream(external):
            torch.bmm(a, b, out=out)

    return call


if __name__ == "__main__":
    main()
