"""Learns a `Forecast` from a survey, and tells by cross validation how far it can be trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.learning.boosting import Boosting, boosted, together
from cupygemm.choosing.estimate import Kernels, estimates
from cupygemm.choosing.fitting import fitted
from cupygemm.choosing.forecast import Forecast, wide_features
from cupygemm.choosing.forecast_features import KERNEL_FEATURES, cublas_scale, own_scale
from cupygemm.choosing.trees import Floats
from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.errors import FileError
from cupygemm.problem import Problem

SURVEY = "cupygemm.survey/1"
OWN, RATIO = Boosting(), Boosting(columns=0.3)
CUBLAS = Boosting(trees=200, depth=4, rate=0.06, least=4, columns=0.3)
CUBLAS_SEEDS = 3

Values = NDArray[np.float64]


@dataclass
class Shape:
    """What was measured of a problem.

    Attributes:
        problem: with operands that TMA can read.
        cublas_us: without gaps between rows.
        kernels: which of the portfolio were timed, as they are told for the problem; none where only cuBLAS was.
        us, ratios: of each: its time, and cuBLAS's over it by turns.
        copied: whether TMA cannot read such operands without gaps.
    """

    problem: Problem
    cublas_us: float
    kernels: list[int] = field(default_factory=list)
    us: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    copied: bool = False


def read_survey(path: Path, portfolio: Sequence[KernelConfig]) -> tuple[DeviceSpec, dict[str, Any], list[Shape]]:
    """The device, the provenance and the shapes of a survey, of kernels of the portfolio told as `fitted` tells them.

    Raises:
        FileError: it cannot be read, or is no survey.
    """
    try:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if head["schema"] != SURVEY:
            raise FileError(f"{path}: schema is {head['schema']!r}: legal is {SURVEY}")
        device = DeviceSpec.from_dict(head["device"])
        shapes = [_shape(line, head["fields"], portfolio, device) for line in lines if line.get("cublas_us")]
        return device, head["provenance"], shapes
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: no survey: {error}") from error


def _shape(line: dict[str, Any], fields: Sequence[str], portfolio: Sequence[KernelConfig], device: DeviceSpec) -> Shape:
    problem = Problem.from_dict(line["problem"])
    gaps = line.get("gaps")
    found = Shape(problem, gaps["contiguous_us"] if gaps else line["cublas_us"], copied=bool(gaps))
    told = {fitted(kernel, problem, device): index for index, kernel in enumerate(portfolio)}
    for row in line["rows"]:
        index = told.get(KernelConfig.from_ints(fields, row["config"]))
        if index is not None and row["status"] == "ok":
            found.kernels.append(index)
            found.us.append(row["us"])
            # By turns cuBLAS had padded rows: what it takes without gaps is compared by medians.
            found.ratios.append(found.cublas_us / row["us"] if gaps else row["ratio"])
    return found


class Rows(NamedTuple):
    """Features and targets of shapes: those of each kernel timed, and those of each shape."""

    shape: NDArray[np.int64]
    wide: Floats
    own: Values
    ratio: Values
    shared: Floats
    cublas: Values


def rows_of(shapes: Sequence[Shape], portfolio: Sequence[KernelConfig], device: DeviceSpec) -> Rows:
    """What is learnt from."""
    columns = Kernels.of(portfolio, device)
    shape, wide, own, ratio, shared, cublas = [], [], [], [], [], []
    for index, each in enumerate(shapes):
        found = estimates(each.problem, columns, device)
        rows = wide_features(each.problem, columns, found, range(len(portfolio)))
        shared.append(rows[0, KERNEL_FEATURES:])
        cublas.append(math.log(each.cublas_us) - cublas_scale(each.problem, found))
        wide.append(rows[each.kernels])
        shape += [index] * len(each.kernels)
        own += list(np.log(each.us) - own_scale(each.problem, found)[each.kernels]) if each.kernels else []
        ratio += list(np.log(each.ratios)) if each.kernels else []
    return Rows(
        np.array(shape),
        np.concatenate(wide),
        np.array(own),
        np.array(ratio),
        np.array(shared, np.float32),
        np.array(cublas),
    )


def learn(
    rows: Rows, portfolio: Sequence[KernelConfig], device: DeviceSpec, provenance: dict[str, Any], without: Any = None
) -> Forecast:
    """A forecast from rows, without those of some shapes."""
    kept = np.ones(len(rows.shared), bool) if without is None else ~without
    used = kept[rows.shape]
    # A kernel's own time has nothing to do with what others are expected to take.
    narrow = rows.wide.shape[1] - len(portfolio) - 1
    own = boosted(rows.wide[used, :narrow], rows.own[used], OWN, 0)
    ratio = boosted(rows.wide[used], rows.ratio[used], RATIO, 0)
    cublas = [boosted(rows.shared[kept], rows.cublas[kept], CUBLAS, seed) for seed in range(CUBLAS_SEEDS)]
    return Forecast(tuple(portfolio), device, own, ratio, together(cublas), provenance)


@dataclass(frozen=True)
class Outcome:
    """What a forecast came to for a shape that it had not learnt.

    Attributes:
        shape: which.
        speedup, at_least: as of `Prediction`, of the kernel that it would choose among those timed.
        reached: cuBLAS's time over that kernel's.
        own_us, cublas_us: as of `Prediction`.
        us: what the kernel takes.
    """

    shape: Shape
    speedup: float
    at_least: float
    reached: float
    own_us: float
    cublas_us: float
    us: float


def outcomes(
    shapes: Sequence[Shape],
    portfolio: Sequence[KernelConfig],
    device: DeviceSpec,
    family: Callable[[Problem], str],
    folds: int = 8,
) -> list[Outcome]:
    """Cross validation: of shapes whose family is of the same fold, none is learnt from."""
    rows = rows_of(shapes, portfolio, device)
    names = sorted({family(shape.problem) for shape in shapes})
    order = np.random.default_rng(1).permutation(len(names))
    fold = {name: int(place) % folds for name, place in zip(names, order, strict=True)}
    of = np.array([fold[family(shape.problem)] for shape in shapes])
    columns, found = Kernels.of(portfolio, device), []
    for number in range(folds):
        forecast = learn(rows, portfolio, device, {}, without=of == number)
        found += [
            _outcome(shapes[i], forecast, columns) for i in np.flatnonzero(of == number).tolist() if shapes[i].kernels
        ]
    return found


def _outcome(shape: Shape, forecast: Forecast, columns: Kernels) -> Outcome:
    guessed = estimates(shape.problem, columns, forecast.device)
    wide = wide_features(shape.problem, columns, guessed, shape.kernels)
    own, cublas = forecast.logarithms(shape.problem, guessed, shape.kernels, wide)
    apart, by_itself = cublas - own, forecast.ratio(wide)
    best = int(np.argmax(apart + by_itself))
    ways = float(apart[best]), float(by_itself[best])
    return Outcome(
        shape,
        math.exp(sum(ways) / 2),
        math.exp(min(ways)),
        shape.ratios[best],
        math.exp(own[best]),
        math.exp(cublas),
        shape.us[best],
    )


def summary(found: Sequence[Outcome], margin: float, least: float) -> dict[str, Any]:
    """What margins come to, for shapes whose operands TMA reads."""
    plain = [each for each in found if not each.shape.copied]
    own = [each.speedup >= margin and each.at_least >= least for each in plain]
    reached = [each.reached if chosen else 1.0 for each, chosen in zip(plain, own, strict=True)]
    return {
        "margin": margin,
        "least": least,
        "shapes": len(plain),
        "geometric mean over cuBLAS": round(math.exp(float(np.mean(np.log(reached)))), 4),
        "worst": round(min(reached), 4),
        "below 0.97": sum(each < 0.97 for each in reached),
        "share of own kernels": round(sum(own) / len(own), 3),
    }
