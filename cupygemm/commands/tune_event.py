"""The last line of `cupygemm tune --json`."""

from __future__ import annotations

from typing import Any

from cupygemm.bundles.bundle import Entry, SearchInfo
from cupygemm.problem import Problem
from cupygemm.search.bundle_file import Saved
from cupygemm.search.target import Target
from cupygemm.search.tune import TuneResult


def result_event(
    problem: Problem,
    target: Target,
    result: TuneResult,
    search: SearchInfo,
    saved: Saved | None,
) -> dict[str, Any]:
    """How a tuning run ended; what could not be had is null."""
    best = None if result.best is None else result.best.measurement
    best_us = None if best is None else best.us
    event = {
        "event": "result",
        "problem": problem.shape,
        "dtype": problem.a_dtype,
        "out_dtype": problem.out_dtype,
        "layout": problem.layout,
        "device": target.runner.device,
        "device_name": target.device.name,
        "strategy": search.strategy,
        "seed": search.seed,
        "evaluations": search.evaluations,
        "seconds": result.seconds,
        "stopped_by": result.stopped_by,
        "best_us": best_us,
        "best_tflops": None if best_us is None else problem.flops / best_us / 1e6,
        "cublas_us": target.baselines.get("cublas_us") if best is None else best.cublas_us,
        "speedup": None if best is None else best.speedup,
        "config": None if result.best is None else result.best.config.to_dict(),
        "failures": dict(result.failures),
        "bundle": None if saved is None else str(saved.path),
        "bundle_entry": None if saved is None else saved.change,
        "entry_before": None if saved is None or saved.before is None else _times(saved.before),
    }
    if target.recorded is not None:
        optimum_us = target.recorded.optimum_us
        event["optimum_us"] = optimum_us
        event["fraction_of_optimum"] = None if best_us is None else optimum_us / best_us
    return event


def _times(entry: Entry) -> dict[str, Any]:
    return {"us": entry.measured.us, "speedup": entry.measured.speedup, "recorded": entry.is_recorded}
