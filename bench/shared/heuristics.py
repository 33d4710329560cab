"""What NVIDIA's heuristics for matrix multiplication would try first, as configs of a recorded table.

The package nvidia-matmul-heuristics (the extra `heuristics`) knows GPUs by name and needs none. It is proprietary:
nothing of it is in this project, and where it is not installed its rows are left out. It is asked as CUTLASS's
generator and PyTorch ask it, for kernels of CUTLASS 3, ranked by its own model of their times, and names tiles,
clusters, shares of K, stages and the swizzle of the grid.

Of a table the config is taken that is nearest to what it names: in its tile first, then in cluster and shares of K,
in stages, in the swizzle. What it does not name, or this kernel has no word for, is decided in its favour: suggestions
that differ only there (in the tile of a warp) count once, and what is left open is chosen by whoever asks `nearest`.
The order in which tiles run is the same throughout a table, and is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.errors import ConfigError, not_installed
from cupygemm.problem import Problem

PACKAGE, MODULE, EXTRA = "nvidia-matmul-heuristics", "nvMatmulHeuristics", "heuristics"
GPUS = {
    "NVIDIA H100 80GB HBM3": "H100_SXM",
    "NVIDIA H100 NVL": "H100_NVL",
    "NVIDIA H100 PCIe": "H100_PCIE",
    "NVIDIA H20": "H20_SXM",
    "NVIDIA H200": "H200_SXM",
}
"""What it calls a GPU, by the driver's name."""
LETTERS = {"float16": "H", "bfloat16": "T", "float32": "S"}
"""What it calls a dtype."""
MOST = 256
"""Suggestions asked for: more than it has (38 for the recorded problems)."""


class Suggestion(NamedTuple):
    """What it says of a kernel, by the names of `KernelConfig`: shares of K are `cluster_k`, the swizzle is `group`."""

    block_m: int
    block_n: int
    block_k: int
    cluster_m: int
    cluster_n: int
    cluster_k: int
    stages: int
    group: int

    @classmethod
    def of(cls, config: KernelConfig) -> Suggestion:
        """The same of a config."""
        return cls(*(getattr(config, name) for name in cls._fields))

    def distance(self, other: Suggestion) -> tuple[float, ...]:
        """How far apart two are in tile, in cluster and shares of K, in stages and in swizzle: factors of two."""
        steps = [abs(math.log2(a / b)) for a, b in zip(self, other, strict=True)]
        # Rounded, so that equal distances compare equal, whatever they are the sums of.
        return tuple(round(each, 6) for each in (sum(steps[:3]), sum(steps[3:6]), steps[6], steps[7]))


class Heuristics:
    """The package, told a GPU."""

    def __init__(self, device: DeviceSpec) -> None:
        """Loads its library.

        Raises:
            ConfigError: `unavailable`, or the library cannot be loaded here.
        """
        reason = unavailable([device])
        if reason is not None:
            raise ConfigError(reason)
        self._package: Any = import_module(MODULE)
        package = self._package
        try:
            self._asked = package.NvMatmulHeuristicsInterfaceEx(
                backend=package.NvMatmulHeuristicsTarget.CUTLASS3,
                flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
                gpu=package.NvMatmulHeuristicsNvidiaGpu[GPUS[device.name]],
            )
        except OSError as error:
            raise ConfigError(f"{PACKAGE}: its library cannot be loaded: {error}") from error

    def suggestions(self, problem: Problem) -> list[Suggestion]:
        """What it would try for a problem, the most promising first, nothing twice."""
        layout = self._package.NvMatmulHeuristicsMatmulLayout[f"{problem.layout.upper()}_ROW_MAJOR"]
        precision = f"{LETTERS[problem.a_dtype]}S{LETTERS[problem.out_dtype]}"
        asked = self._asked.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout, problem.batch)
        return list(dict.fromkeys(_read(each["kernel"]) for each in self._asked.get(asked, MOST, precision)))


def unavailable(devices: Iterable[DeviceSpec]) -> str | None:
    """Why it cannot be asked about these GPUs, or None."""
    if find_spec(MODULE) is None:
        return not_installed(PACKAGE, EXTRA)
    unknown = next((device.name for device in devices if device.name not in GPUS), None)
    return None if unknown is None else f"{PACKAGE} is told no GPU called {unknown}: it is told {', '.join(GPUS)}"


def version() -> str:
    """Of the installed package."""
    return metadata.version(PACKAGE)


def nearest(
    suggestions: Sequence[Suggestion], configs: Iterable[KernelConfig], cost: Callable[[KernelConfig], Any]
) -> list[KernelConfig]:
    """The config that is nearest to each suggestion, in their order, none twice.

    Args:
        suggestions: what is to be had.
        configs: what there is.
        cost: what decides among those that are equally near: the least.
    """
    alike: dict[Suggestion, list[KernelConfig]] = {}
    for config in configs:
        alike.setdefault(Suggestion.of(config), []).append(config)
    # What decides in the end does so for a suggestion as it does for another.
    chosen = {said: min(found, key=cost) for said, found in alike.items()}

    def told_like(wanted: Suggestion) -> Suggestion:
        return min(chosen, key=lambda said: (wanted.distance(said), cost(chosen[said])))

    return list(dict.fromkeys(chosen[told_like(wanted)] for wanted in suggestions))


def _read(kernel: Any) -> Suggestion:
    return Suggestion(
        kernel.cta_tile_m,
        kernel.cta_tile_n,
        kernel.cta_tile_k,
        kernel.cluster_m,
        kernel.cluster_n,
        kernel.split_k,
        kernel.stages,
        kernel.swizzle_factor,
    )
