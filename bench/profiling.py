"""Hardware counters of an own kernel and of cuBLAS's on one problem, read by Nsight Compute.

    python -m bench.profiling 2048x2048x4096 --bundle tuned.yaml -o bench/results/profile.json

The program runs itself under `ncu`; what that says is where the cycles go, and nothing about times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.shared.command import Program, command_line
from cupygemm.bundles.bundle import Bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import BundleError
from cupygemm.kernels import driver
from cupygemm.kernels.kernel_source import ENTRIES
from cupygemm.measuring import provenance, verify
from cupygemm.measuring.counters import number, read_counters
from cupygemm.measuring.cublas import Cublas
from cupygemm.measuring.results import write_report
from cupygemm.problem import Problem

METRICS = {
    "gpu__time_duration.sum": "duration_ns",
    "sm__cycles_elapsed.max": "cycles",
    "sm__inst_executed_pipe_tensor_op_gmma.sum": "wgmma_instructions",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_pipe_pct",
    "lts__t_sector_hit_rate.pct": "l2_hit_pct",
    "lts__t_bytes.sum": "l2_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "ctas",
}
CUBLAS_PARTS = ("nvjet", "gemm", "sm90")
"""What a kernel of cuBLAS's may have in its name: "nvjet" before the others."""
LAUNCHES = 6


@click.command(cls=Program)
@click.argument("shape")
@click.option("--dtype", default="float16")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option("--child", is_flag=True, hidden=True)
def main(shape: str, dtype: str, bundle_path: Path, output: Path | None, child: bool) -> None:
    """Profiles the bundle's config for SHAPE, and cuBLAS beside it."""
    problem = Problem.parse(shape, dtype)
    if child:
        _launch_both(problem, bundle_path)
        return
    child_command = [sys.executable, "-m", "bench.profiling", *sys.argv[1:], "--child"]
    own, cublas = told_apart(read_counters(child_command, list(METRICS), "|".join(CUBLAS_PARTS)))
    compulsory = problem.compulsory_bytes
    summary = {"problem": str(problem), "compulsory_bytes": compulsory, "own": own, "cublas": cublas}
    click.echo("\n".join(f"{name:22} {own.get(name)!s:>24} {cublas.get(name)!s:>24}" for name in own))
    if output is not None:
        command = command_line("bench.profiling")
        write_report(output, "profile", command, provenance.collect(0, command), summary)


def _launch_both(problem: Problem, bundle_path: Path) -> None:
    choice, plan = Dispatcher({str(bundle_path): Bundle.load(bundle_path)}, even_slower=True).choose_for(problem, 0)
    if plan is None:
        raise BundleError(f"{problem}: {choice.reason}")
    cupy = driver.cupy()
    gemm = Cublas().gemm
    rng = cupy.random.default_rng(0)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(LAUNCHES):
            # Fresh operands for each pair of launches: nothing is left of them in L2, as when sets are rotated.
            operands = verify.draw_operands(rng, problem, verify.ZERO_MEAN)
            for launch in (plan.launch, gemm):
                cupy.empty(2 * driver.device_spec(0).l2_bytes, dtype=cupy.uint8).fill(1)
                launch(operands)
        stream.synchronize()


def told_apart(rows: list[dict[str, str]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Medians of an own kernel and of cuBLAS's, whose names may both have "gemm" in them.

    Raises:
        ClickException: there is no launch of one of the two.
    """
    own = [row for row in rows if any(entry in row["Kernel Name"] for entry in ENTRIES)]
    others = [row for row in rows if row not in own]
    return _medians(own, ENTRIES, len(rows)), _medians(others, CUBLAS_PARTS, len(rows))


def _medians(rows: list[dict[str, str]], parts: Sequence[str], profiled: int) -> dict[str, Any]:
    """Medians over the launches of the kernels whose name has one of `parts`, the first part that any has."""
    for part in parts:
        found = [row for row in rows if part in row["Kernel Name"]]
        if found:
            break
    else:
        raise click.ClickException(f"no kernel named like {' or '.join(parts)} among {profiled} profiled")
    values = {short: _median(row.get(name, "") for row in found) for name, short in METRICS.items()}
    return {"kernel": found[0]["Kernel Name"][:80], "launches": len(found), **values}


def _median(texts: Iterable[str]) -> float | None:
    numbers = [value for text in texts if (value := number(text)) is not None]
    return median(numbers) if numbers else None


if __name__ == "__main__":
    main()
