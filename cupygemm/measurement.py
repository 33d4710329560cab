"""What a trial yields: `Measurement` with its `Status`, and `Record`, a measurement with what it is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median, quantiles
from typing import Any, Self

from cupygemm.config import KernelConfig
from cupygemm.problem import Problem


def spread(samples: Sequence[float]) -> float | None:
    """Half the interquartile range over the median; None of fewer than two samples."""
    if len(samples) < 2:
        return None
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle


def paired_cost(samples_us: Sequence[float], baseline_us: Sequence[float]) -> float:
    """Median over rounds of a time over the baseline's in the same round: what moves both in a round cancels.

    Args:
        samples_us: one a round, at least one.
        baseline_us: of the same rounds; where they are not, the medians are compared, or µs where there are none.
    """
    if len(baseline_us) == len(samples_us):
        return median(us / other for us, other in zip(samples_us, baseline_us, strict=True))
    return median(samples_us) / (median(baseline_us) if baseline_us else 1.0)


class Status(StrEnum):
    """How a trial ended. A config that spills is OK, with its spill bytes beside it."""

    OK = "ok"
    ILLEGAL = "illegal"
    COMPILE_FAILED = "compile_failed"
    SERIALISED = "serialised"  # ptxas serialised the WGMMAs or ignored setmaxnreg (advisory C75xx)
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Measurement:
    """The outcome of one (problem, config).

    Attributes:
        status: how it ended; the times are empty unless it is OK.
        samples_us: GPU time of one launch, µs: one entry a round, in the order taken.
        baseline_us: cuBLAS in the same rounds, interleaved.
        error: relative Frobenius error against float64; None when not verified.
        registers: per thread at launch, as ptxas reports; None when not compiled.
        spill_bytes: spill stores and loads of one thread, bytes; None when not compiled.
        clock_mhz: SM clock read beside the measurement; None where it cannot be read.
        power_w: board power read beside the measurement.
        l2_term: compulsory over actual DRAM bytes; None when not known.
        l2_hit_rate: share of the bytes asked of the L2 that were there; None when not known.
        l2_source: where these two are from: "counters", or "model" of the rasterisation; empty when not known.
        detail: one line for a person: why it failed.
    """

    status: Status
    samples_us: tuple[float, ...] = ()
    baseline_us: tuple[float, ...] = ()
    error: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    clock_mhz: int | None = None
    power_w: float | None = None
    l2_term: float | None = None
    l2_hit_rate: float | None = None
    l2_source: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ran, was right, and has times."""
        return self.status is Status.OK

    @property
    def us(self) -> float | None:
        """Median GPU time of one launch, µs; None unless OK."""
        return median(self.samples_us) if self.ok else None

    @property
    def cublas_us(self) -> float | None:
        """Median of cuBLAS's samples of the same run, µs; None where there are none."""
        return median(self.baseline_us) if self.baseline_us else None

    @property
    def speedup(self) -> float | None:
        """cublas_us / us; None unless both are known."""
        us, cublas_us = self.us, self.cublas_us
        return None if us is None or cublas_us is None else cublas_us / us

    @property
    def cost(self) -> float | None:
        """What a search minimises: time over cuBLAS's in the same rounds, or µs where cuBLAS was not timed.

        A GPU's clock moves by more than good configs differ, so that two times of different rounds do not compare.
        """
        us, cublas_us = self.us, self.cublas_us
        return us if us is None or cublas_us is None else us / cublas_us

    @property
    def spread(self) -> float | None:
        """Half the interquartile range over the median; None unless OK with at least two samples."""
        return spread(self.samples_us) if self.ok else None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            **{
                **values,
                "status": Status(values["status"]),
                "samples_us": tuple(values["samples_us"]),
                "baseline_us": tuple(values["baseline_us"]),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as JSON carries it."""
        return {
            **self.__dict__,
            "status": self.status.value,
            "samples_us": list(self.samples_us),
            "baseline_us": list(self.baseline_us),
        }

    def with_fields(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Record:
    """One measured (problem, config), with where it comes from.

    Attributes:
        provenance: device, driver, CUDA, NVRTC, cuBLAS, source digest, date, … as `provenance.collect` gives them.
    """

    problem: Problem
    config: KernelConfig
    measurement: Measurement
    provenance: dict[str, Any] = field(default_factory=dict)
