"""Every kind of kernel under compute-sanitizer: memcheck and racecheck, with what each of them said.

    python -m bench.sanitizer -o bench/results/sanitizer.json

Own kernels alone are watched, on products of a few tiles: one for each config of the correctness protocol, and stacks
and epilogues beside them. What racecheck cannot see, the async proxy's copies by TMA and reads by WGMMA, is what the
repetitions of tests/gpu are for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from bench.shared.command import Program, command_line
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.kernel_source import entry_of
from cupygemm.measuring import provenance, verify
from cupygemm.measuring.results import write_report
from cupygemm.problem import Problem
from cupygemm.views.packing import Packing, packing_of
from tests.gpu.protocol import CONFIGS, Checks, Kernels, fitting, fused_problems, operands, stacked_problems

TOOLS = ("memcheck", "racecheck")
COPYING = "pack_kernel"
FINDING_LINES = 40
"""At most, of what a tool itself wrote: its first finding, with where in the kernel and on the host that was."""
LAUNCHES = 2
"""Of each product: what a launch leaves behind, the next one finds."""


def cases() -> Iterator[tuple[str, KernelConfig, Problem]]:
    """A name, a config and a problem each."""
    for name, config in CONFIGS.items():
        yield name, config, Problem(264, 264, 328)
    for kind in (stacked_problems(72, 136, 200, 3), fused_problems(136, 72, 200)):
        for name, problems in kind.items():
            # One of each way: the rest differs in what is computed, and not in who waits for whom.
            for problem in (problems[0], problems[-1]):
                yield name, CONFIGS[name], problem


def own_kernels() -> list[str]:
    """Names of the kernels to watch, of which a kernel's own has one in it: those of all cases, and what copies."""
    return sorted({COPYING, *(entry_of(fitting(config, problem)) for _, config, problem in cases())})


@click.command(cls=Program)
@click.option("--limit", default=150.0, show_default=True, help="Seconds for a tool.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("--inner", type=click.Choice(("all", "broken")), hidden=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(limit: float, commit: str | None, inner: str | None, output: Path | None) -> None:
    """Watches own kernels with compute-sanitizer."""
    if inner is not None:
        (launch_all if inner == "all" else launch_broken)()
        return
    if output is None:
        raise click.UsageError("give -o PATH")
    summary: dict[str, object] = {"products": len(list(cases())), "launches of each": LAUNCHES}
    failures = []
    Kernels().ahead({(KernelSpec.of(problem), fitting(config, problem)) for _, config, problem in cases()})
    # That own kernels are watched at all: one that is made to write past the end of its result.
    found, detail = watched("memcheck", limit, "broken")
    summary["a write past the end"] = "found" if "Invalid __global__ write" in detail else found
    if summary["a write past the end"] not in ("found", "unavailable"):
        failures.append({"test": "a write past the end", "reason": detail})
    for tool in TOOLS:
        found, detail = watched(tool, limit)
        summary[tool] = found
        click.echo(f"{tool}: {found}\n{detail}")
        if found not in ("clean", "unavailable"):
            failures.append({"test": tool, "reason": detail})
    command = command_line("bench.sanitizer")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary, failures)
    sys.exit(1 if failures else 0)


def watched(tool: str, limit: float, what: str = "all") -> tuple[str, str]:
    """ "clean", "unavailable", or what went wrong, and of what was written the findings' first lines and the end."""
    if shutil.which("compute-sanitizer") is None:
        return "unavailable", "compute-sanitizer is not there"
    own = [word for name in own_kernels() for word in ("--kernel-name", f"kernel_substring={name}")]
    words = ["compute-sanitizer", "--tool", tool, *own, "--report-api-errors", "no", "--error-exitcode", "9"]
    try:
        done = subprocess.run(
            [*words, sys.executable, "-m", "bench.sanitizer", "--inner", what],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")]))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return "out of time", excerpt(said.decode() if isinstance(said, bytes) else said)
    detail = excerpt(done.stdout)
    if "device not supported" in done.stdout.lower() or "not supported on this" in done.stdout.lower():
        return "unavailable", detail
    return ("clean" if done.returncode == 0 else f"status {done.returncode}"), detail


def excerpt(said: str, last: int = 12) -> str:
    """The first lines that are a tool's own, each with the one before, which says what had just been done, and the
    last lines of all; "..." for each gap."""
    lines = said.strip().splitlines()
    own = [index for index, line in enumerate(lines) if line.startswith("=========")][:FINDING_LINES]
    before_own = (max(0, index - 1) for index in own)
    kept = sorted({*own, *before_own, *range(max(0, len(lines) - last), len(lines))})
    told = []
    for before, index in zip([-1, *kept], kept, strict=False):
        told += ["..."] * (index > before + 1) + [lines[index]]
    return "\n".join(told)


def launch_all() -> None:
    """All products, each verified against float64."""
    kernels, checks = Kernels(), Checks()
    for name, config, problem in cases():
        plan = kernels.plan(problem, config)
        for seed in range(LAUNCHES):
            checks.verify(plan, (verify.ZERO_MEAN,), seed)
        driver.cupy().cuda.Device().synchronize()
        click.echo(f"{name}: {problem}")
    launch_copies()


def launch_copies() -> None:
    """Copies of operands that TMA cannot read, of each kind of view, at the ends of what was allocated."""
    cupy = driver.cupy()
    cupy.cuda.set_allocator(None)
    whole = cupy.arange(67 * 131, dtype=cupy.float16).reshape(67, 131)
    for name, view in {
        "odd rows": whole,
        "one element in": whole[1:, 1:],
        "every second column": whole[:, ::2],
        "rows backwards": whole[::-1],
        "backwards": whole[::-1, ::-1],
        "the last row for all": cupy.broadcast_to(whole[-1], (5, 131)),
        "transposed": whole.T,
        "a stack": whole[:66].reshape(2, 33, 131),
    }.items():
        other = view.swapaxes(-1, -2)
        packing = packing_of(view, other)
        if not isinstance(packing, Packing):
            raise VerificationError(f"{name}: {packing}")
        for copied, right in zip(packing(view, other), (view, other), strict=True):
            memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(copied.data.ptr, packing.buffer_bytes, copied), 0)
            found = cupy.ndarray(copied.shape, cupy.float16, memory, copied.strides)
            if not bool((found == right).all()):
                raise VerificationError(f"{name}: a copy differs")
        click.echo(f"copies: {name}")


def launch_broken() -> None:
    """A product whose last rows are stored from registers to where nothing was allocated."""
    cupy = driver.cupy()
    cupy.cuda.set_allocator(None)
    problem = Problem(264, 64, 64)
    plan = Kernels().plan(problem, CONFIGS["direct store"].swapped(block_n=64))
    given = operands(problem, verify.ZERO_MEAN, 0)
    held = cupy.cuda.alloc(128 * 64 * 2)
    whole = cupy.cuda.UnownedMemory(held.ptr, 264 * 64 * 2, held)
    plan.launch(given._replace(out=cupy.ndarray((264, 64), cupy.float16, cupy.cuda.MemoryPointer(whole, 0))))
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
