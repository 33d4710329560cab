"""What a tuning run leaves behind: an entry in a bundle file, and the JSON event of its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupygemm.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.errors import BundleError
from cupygemm.measurement import Record
from cupygemm.problem import Problem
from cupygemm.search.target import Target
from cupygemm.search.tune import TuneResult


class BundleFile:
    """The file a result goes to. It is read before the search, so that a bad one costs no search.

    Attributes:
        path: where it is, or will be.
        replaces: whether there are entries measured with other kernel sources, which the new one replaces.
    """

    def __init__(self, path: Path, target: Target) -> None:
        """Reads what is there.

        Raises:
            BundleError: the file is no bundle, or holds configs of another device.
        """
        self.path = path
        self._target = target
        self._before = Bundle.load(path) if path.exists() else None
        self.replaces = False
        if self._before is None:
            return
        if not self._before.device.is_like(target.device):
            there, here = self._before.device.name, target.device.name
            raise BundleError(f"{path}: holds configs of {there}, these are of {here}: write to another file")
        self.replaces = self._before.tool.source_digest != target.source_digest

    def add(self, best: Record, search: SearchInfo) -> Path:
        """Puts the entry in, in place of one for the same problem, writes the file, and gives its path.

        Raises:
            OSError: the file cannot be written.
        """
        target = self._target
        known = {"cublaslt_us": target.baselines.get("cublaslt_us")}
        if target.recorded is not None:
            known["spread"] = target.recorded.rows[best.config].spread
        entry = Entry(
            problem=best.problem,
            config=best.config,
            measured=Measured.of(best.measurement, **known),
            search=search,
            provenance=target.provenance,
        )
        device = BundleDevice.of(target.device, target.provenance)
        bundle = new_bundle(device, target.source_digest, [entry])
        if self._before is not None and not self.replaces:
            bundle = self._before.merged(bundle)
        bundle.save(self.path)
        return self.path


def result_event(
    problem: Problem,
    target: Target,
    result: TuneResult,
    search: SearchInfo,
    written: Path | None,
) -> dict[str, Any]:
    """The last line of `cupygemm tune --json`; what could not be had is null."""
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
        "bundle": None if written is None else str(written),
    }
    if target.recorded is not None:
        optimum_us = target.recorded.optimum_us
        event["optimum_us"] = optimum_us
        event["fraction_of_optimum"] = None if best_us is None else optimum_us / best_us
    return event
