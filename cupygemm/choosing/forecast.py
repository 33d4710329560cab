"""What a product that nobody has tuned can be expected to take: with each kernel of a portfolio, and with cuBLAS.

A `Forecast` is learnt offline from a survey (bench/learning/forecasting.py) and shipped as plain arrays; to ask it
takes NumPy and about a millisecond. Two ways of asking are averaged, times of both kernels and their ratio by itself;
where they disagree about which is faster, cuBLAS it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cupygemm.choosing.estimate import Column, Estimate, Kernels, estimates
from cupygemm.choosing.fitting import fitted
from cupygemm.choosing.forecast_features import (
    KERNEL_FEATURES,
    cublas_scale,
    kernel_features,
    own_scale,
    problem_features,
)
from cupygemm.choosing.trees import Floats, Trees
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.epilogue import NONE
from cupygemm.errors import BundleError, CupygemmError
from cupygemm.legality import unswappable_reason
from cupygemm.problem import Problem

SCHEMA = "cupygemm.forecast/2"
PARTS = ("own", "ratio", "cublas")
SURVEYED_WITH = ("source_digest", "cp_async_source_digest")
"""Of the survey's provenance."""
CANDIDATES = 10
"""Kernels with the least estimates, which the trees are asked about."""
MARGIN = 1.025
"""By which an own kernel must be expected to be faster, at the mean of both ways of asking."""
LEAST = 1.01
"""And by the one that says less. Both as of cross validation (docs/unseen.md)."""


class Prediction(NamedTuple):
    """What is expected of a problem.

    Attributes:
        config: of the kernel that is expected to be fastest.
        own_us, cublas_us: of a launch with it, and of cuBLAS with operands without gaps, µs.
        speedup: cuBLAS's time over the kernel's; not the quotient of these alone, since it is learnt by itself too.
        at_least: the same by that way of asking which says less.
    """

    config: KernelConfig
    own_us: float
    cublas_us: float
    speedup: float
    at_least: float

    @property
    def is_faster(self) -> bool:
        """Whether the own kernel is expected to be faster by the margin."""
        return self.speedup >= MARGIN and self.at_least >= LEAST


@dataclass(frozen=True, eq=False)
class Forecast:
    """A model of times.

    Attributes:
        kernels: the portfolio, in the order of its columns.
        device: on which it was surveyed.
        own, ratio, cublas: logarithms: of a kernel's time over its estimate, of cuBLAS's time over the kernel's, of
            cuBLAS's time over the least estimate.
        provenance: where it comes from; that of the survey is under "survey".
    """

    kernels: tuple[KernelConfig, ...]
    device: DeviceSpec
    own: Trees
    ratio: Trees
    cublas: Trees
    provenance: dict[str, Any]
    _columns: dict[DeviceSpec, Kernels] = field(default_factory=dict)

    def covers(self, problem: Problem, device: DeviceSpec) -> bool:
        """Whether anything like it was surveyed: products of two matrices with a result as narrow as they are."""
        plain = problem.batch == 1 and problem.scales == NONE
        dtypes = problem.a_dtype == problem.b_dtype == problem.out_dtype and problem.a_dtype in OPERAND_DTYPES
        return plain and dtypes and device.is_hopper

    def elsewhere(self, device: DeviceSpec) -> str | None:
        """A remark where the survey was of another kind of GPU."""
        known = self.device
        same = (known.name, known.sm_count) == (device.name, device.sm_count)
        return None if same else f"surveyed on {known.name} ({known.sm_count} SMs), not on {device.name}"

    def outdated(self, *digests: str) -> str | None:
        """A remark where the survey was of other kernel sources than these, or does not say of which.

        Args:
            digests: of the pages that have its kernels, in the order of `SURVEYED_WITH`.
        """
        survey = self.provenance.get("survey")
        for name, ours in zip(SURVEYED_WITH, digests, strict=True):
            theirs = survey.get(name) if isinstance(survey, dict) else None
            if not isinstance(theirs, str):
                return "surveyed with kernel sources that it does not name"
            if theirs != ours:
                return f"surveyed with other kernel sources ({theirs[:16]}, now {ours[:16]}): times may be others now"
        return None

    def predict(self, problem: Problem, device: DeviceSpec) -> Prediction | None:
        """What is expected of a problem; None where no kernel is legal for it or it is of no kind that was surveyed.

        Of a product with an epilogue the times are those without it. In the kernel it costs less than the further
        kernel that cuBLAS needs (docs/variants.md), so that what is faster without one is faster with it.

        Args:
            problem: with operands that TMA can read, or copies of them; `cublas_us` is of those without gaps.
            device: where.
        """
        if not self.covers(problem, device):
            return None
        plain = replace(problem, epilogue=NONE)
        columns = self._columns.get(device)
        if columns is None:
            columns = self._columns.setdefault(device, Kernels.of(self.kernels, device))
        found = estimates(plain, columns, device)
        chosen = np.argsort(found.us + never(problem, columns), kind="stable")[:CANDIDATES]
        wide = wide_features(plain, columns, found, chosen)
        own, cublas = self.logarithms(plain, found, chosen, wide)
        apart, together = cublas - own, self.ratio(wide)
        for index in np.argsort(-(apart + together), kind="stable"):
            config = fitted(self.kernels[chosen[index]], problem, device)
            if config is not None:
                ways = float(apart[index]), float(together[index])
                speedup, least = math.exp(sum(ways) / 2), math.exp(min(ways))
                return Prediction(config, math.exp(own[index]), math.exp(cublas), speedup, least)
        return None

    def kernel_us(self, problem: Problem, kernels: Sequence[KernelConfig], device: DeviceSpec) -> list[float]:
        """About what a launch of each kernel takes, µs: the estimate, put right by what was surveyed.

        Args:
            problem: of a kind that it covers; an epilogue has no part in it.
            kernels: any that are legal for it, whose fields told at launch have no part in it.
            device: where.
        """
        plain, columns = replace(problem, epilogue=NONE), Kernels.of(kernels, device)
        found = estimates(plain, columns, device)
        rows = narrow_features(plain, columns, found, range(len(kernels))).astype(np.float32)
        us: list[float] = np.exp(own_scale(plain, found) + self.own(rows)).tolist()
        return us

    def logarithms(self, problem: Problem, found: Estimate[Column], chosen: Any, wide: Floats) -> tuple[Column, float]:
        """Logarithms of the expected times of chosen kernels, [chosen], and of cuBLAS's, from `wide_features`."""
        own = own_scale(problem, found)[chosen] + self.own(wide)
        return own, cublas_scale(problem, found) + float(self.cublas(wide[:1, KERNEL_FEATURES:])[0])

    def save(self, path: Path) -> None:
        """Writes it as .npz, without pickles."""
        told = {
            "schema": SCHEMA,
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "device": self.device.to_dict(),
            "provenance": self.provenance,
        }
        arrays: dict[str, NDArray[Any]] = {"told": np.array(json.dumps(told))}
        for part in PARTS:
            arrays |= getattr(self, part).to_arrays(part)
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Forecast:
        """Reads what `save` wrote.

        Raises:
            BundleError: it cannot be read, or is no forecast.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                told = json.loads(str(arrays["told"]))
                if told["schema"] != SCHEMA:
                    raise BundleError(f"{path}: schema is {told['schema']!r}: legal is {SCHEMA}")
                kernels = tuple(KernelConfig.from_dict(kernel) for kernel in told["kernels"])
                widths = _widths(len(kernels))
                own, ratio, cublas = (Trees.from_arrays(part, arrays, widths[part]) for part in PARTS)
                return cls(kernels, DeviceSpec.from_dict(told["device"]), own, ratio, cublas, told["provenance"])
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror or error}") from error
        except BundleError:
            raise
        except (BadZipFile, CupygemmError, EOFError, KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{path}: no forecast: {error}: install cupygemm again") from error


def never(problem: Problem, columns: Kernels) -> Column:
    """Infinity for kernels that no stages make legal, else 0: those with A and B swapped where that is not built."""
    unswappable = unswappable_reason(KernelSpec.of(problem)) is not None
    return np.where((columns.fields["swap_ab"] > 0) & unswappable, np.inf, 0.0)


def wide_features(problem: Problem, columns: Kernels, found: Estimate[Column], chosen: Sequence[int] | Any) -> Floats:
    """Rows of kernels, float32 [chosen, features]: those of a kernel, those of the product, the estimates of all."""
    narrow = narrow_features(problem, columns, found, chosen)
    logs = np.log(found.us)
    others = np.array([*logs, logs.min()])
    return np.concatenate([narrow, np.broadcast_to(others, (len(narrow), len(others)))], axis=1).astype(np.float32)


def narrow_features(problem: Problem, columns: Kernels, found: Estimate[Column], chosen: Sequence[int] | Any) -> Column:
    """Those of a kernel and those of the product, [chosen, features]: all that a kernel's own time depends on."""
    each = kernel_features(problem, columns, found, chosen)
    shared = np.array(problem_features(problem))
    return np.concatenate([each, np.broadcast_to(shared, (len(each), len(shared)))], axis=1)


def _widths(kernels: int) -> dict[str, int]:
    shared = len(problem_features(Problem(8, 8, 8))) + kernels + 1
    return {"own": KERNEL_FEATURES + shared, "ratio": KERNEL_FEATURES + shared, "cublas": shared}


@cache
def shipped_forecast() -> Forecast:
    """The forecast of the package, read at the first call.

    Raises:
        BundleError: it is damaged or missing.
    """
    path = resources.files("cupygemm.bundles").joinpath("h200_forecast.npz")
    with resources.as_file(path) as file:
        return Forecast.load(file)
