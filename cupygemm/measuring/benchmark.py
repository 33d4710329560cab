"""Rows of `bench/results/*.json`: cupygemm, cuBLAS and the best cublasLt algorithm in one interleaved run."""

from __future__ import annotations

from typing import Any

from cupygemm.config import KernelConfig
from cupygemm.errors import VerificationError
from cupygemm.kernels.operands import Launch
from cupygemm.measurement import spread
from cupygemm.measuring.measure import WRONG_BASELINE, Bench
from cupygemm.measuring.timing import CUBLAS, CUBLASLT, THOROUGH, Effort, Timing
from cupygemm.names import ROTATED
from cupygemm.problem import Problem

OWN, TORCH = "cupygemm", "torch"


def benchmark(
    bench: Bench,
    launch: Launch,
    config: KernelConfig | None = None,
    mode: str = ROTATED,
    torch: Launch | None = None,
    effort: Effort = THOROUGH,
) -> dict[str, Any]:
    """Measures one problem thoroughly and gives its row.

    Args:
        bench: of the problem, on the device.
        launch: what cupygemm runs: that of a `Plan` of `config`, or `bench.cublas`.
        config: None where cupygemm leaves the problem to cuBLAS, which is held to the looser bound of a baseline.
        mode: of `names.MODES`.
        torch: torch.matmul into `out`, if it is to be compared.
        effort: how long; `SUSTAINED` has its own.

    Raises:
        VerificationError: the result is wrong; no time is reported for it.
        LaunchError: CUDA or cuBLAS refused.
    """
    verdict = bench.verify(launch)
    right = verdict.ok if config is not None else verdict.error < WRONG_BASELINE
    if not right:
        raise VerificationError(f"{bench.problem}: {verdict.detail}")
    launches: dict[str, Launch] = {OWN: launch}
    best = bench.cublaslt(mode)
    if best is not None:
        launches[CUBLASLT] = best.run
    if torch is not None:
        launches[TORCH] = torch
    timing = bench.time(launches, effort, mode)
    return result_row(bench.problem, timing, verdict.error, config, mode, bench.bytes_rotated(mode))


def result_row(
    problem: Problem,
    timing: Timing,
    error: float,
    config: KernelConfig | None,
    mode: str,
    bytes_rotated: int,
    dependent_launch: bool = False,
) -> dict[str, Any]:
    """One row, as the schema names its fields.

    Args:
        timing: samples by name: `OWN`, and those of the baselines that there are.
        error: relative Frobenius error against float64.
        config: None where cuBLAS computed it.
        bytes_rotated: of all operand sets.
        dependent_launch: whether own kernels began before the kernel before them had ended; the baselines never do.
    """
    own, cublas = timing.samples_us[OWN], timing.samples_us.get(CUBLAS, [])
    # Of one round each, where both had the same clock: what moves both does not move their ratio.
    ratios = [theirs / ours for ours, theirs in zip(own, cublas, strict=False)]
    return {
        **problem.to_dict(),
        "pdl": dependent_launch,
        "mode": mode,
        "bytes_rotated": bytes_rotated,
        "kernel": "cublas" if config is None else "own",
        **{f"{name}_us": timing.median_us(name) for name in (OWN, CUBLAS, CUBLASLT, TORCH)},
        "error": error,
        "spread": spread(own),
        "ratio_spread": spread(ratios),
        "config": None if config is None else config.to_dict(),
        "sm_clock_mhz": timing.reading.clock_mhz,
        "power_w": timing.reading.power_w,
    }
