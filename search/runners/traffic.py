"""What a config makes of the L2: a model of its bytes from device memory, out of nothing but its rasterisation.

The tiles that a persistent grid computes at the same time go through k in step, so within such a wave each row panel
of A and each column panel of B comes from device memory once, whoever asks first. Between waves a panel is found in
the L2 if it was among the last that fit there. That is an LRU of whole panels, and coarse: its use is to rank configs
where no counters can be read (`Measurement.l2_source` says which of the two a figure is from).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from cupygemm.config import KernelConfig
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES
from cupygemm.measurement import Measurement
from cupygemm.problem import Problem

USABLE_L2 = 0.5
"""Share of the L2 that serves one SM's reads without crossing to the other half, where data is kept a second time."""

MAX_WAVES = 256
"""Waves that are simulated; what a longer grid does after them is taken to go on as it did."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one launch moves, as modelled.

    Attributes:
        compulsory_bytes: each operand read once, the result written once.
        dram_bytes: read from and written to device memory.
        l2_bytes: asked of the L2 by TMA: a multicast tile counts once for the cluster.
    """

    compulsory_bytes: int
    dram_bytes: int
    l2_bytes: int

    @property
    def l2_term(self) -> float:
        """compulsory_bytes / dram_bytes, in (0, 1]: 1 where nothing is read twice."""
        return self.compulsory_bytes / self.dram_bytes

    @property
    def hit_rate(self) -> float:
        """Share of the bytes asked of the L2 that were there. Multicast lowers it: it asks for less."""
        return max(0.0, 1.0 - self.dram_bytes / self.l2_bytes)


def traffic(problem: Problem, config: KernelConfig, device: DeviceSpec) -> Traffic:
    """The bytes of one launch of a config, by the model.

    Args:
        problem: what is computed.
        config: legal for it.
        device: for its SMs and its L2.
    """
    m, n = config.as_computed(problem.m, problem.n)
    shape = _Raster(
        tiles_m=ceil(ceil(m / config.block_m) / config.cluster_m),
        tiles_n=ceil(ceil(n / config.block_n) / config.cluster_n),
        along_n=config.raster_along_n,
        group=config.group,
        wave=device.clusters_at_once(config.cluster_size),
    )
    rows, columns = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    a_panel = rows * problem.k * DTYPES[problem.a_dtype].bytes
    b_panel = columns * problem.k * DTYPES[problem.b_dtype].bytes
    a_reads, b_reads = _reads(shape, a_panel, b_panel, int(device.l2_bytes * USABLE_L2))
    written = m * n * DTYPES[problem.out_dtype].bytes
    read = min(a_reads / shape.tiles_m, shape.tiles_n) * m * problem.k * DTYPES[problem.a_dtype].bytes
    read += min(b_reads / shape.tiles_n, shape.tiles_m) * problem.k * n * DTYPES[problem.b_dtype].bytes
    asked = shape.tiles * (a_panel + b_panel)
    dram = problem.batch * int(read + written)
    return Traffic(problem.compulsory_bytes, dram, max(dram, problem.batch * (asked + written)))


def with_l2(measurement: Measurement, problem: Problem, config: KernelConfig, device: DeviceSpec) -> Measurement:
    """The measurement with the model's L2 figures, unless it has counted ones or is of nothing that ran."""
    if not measurement.ok or measurement.l2_source:
        return measurement
    modelled = traffic(problem, config, device)
    return measurement.with_fields(l2_term=modelled.l2_term, l2_hit_rate=modelled.hit_rate, l2_source="model")


def tile_at(index: int, tiles_m: int, tiles_n: int, along_n: bool, group: int) -> tuple[int, int]:
    """The (m, n) of the tile of clusters that is computed `index`-th: `tile_at` of cuda_src/raster.cuh.

    Args:
        index: from 0 to tiles_m * tiles_n.
        tiles_m, tiles_n: the grid, in tiles of a cluster.
        along_n: `raster_along_n` of the config.
        group: of the config.
    """
    across_count, along_count = (tiles_m, tiles_n) if along_n else (tiles_n, tiles_m)
    group = min(group, across_count)
    band, in_band = divmod(index, group * along_count)
    height = min(group, across_count - band * group)
    across, along = band * group + in_band % height, in_band // height
    return (across, along) if along_n else (along, across)


@dataclass(frozen=True)
class _Raster:
    """Tiles of clusters, their order, and how many are computed at once."""

    tiles_m: int
    tiles_n: int
    along_n: bool
    group: int
    wave: int

    @property
    def tiles(self) -> int:
        return self.tiles_m * self.tiles_n

    def waves(self) -> Iterator[list[tuple[int, int]]]:
        for first in range(0, self.tiles, self.wave):
            last = min(first + self.wave, self.tiles)
            yield [tile_at(i, self.tiles_m, self.tiles_n, self.along_n, self.group) for i in range(first, last)]


@lru_cache(maxsize=4096)
def _reads(shape: _Raster, a_panel: int, b_panel: int, l2_bytes: int) -> tuple[float, float]:
    """How many panels of A and of B come from device memory."""
    held: OrderedDict[tuple[str, int], int] = OrderedDict()
    reads = {"a": 0, "b": 0}
    simulated = 0
    for wave in shape.waves():
        if simulated // shape.wave >= MAX_WAVES:
            break
        simulated += len(wave)
        wanted = [("a", m) for m in sorted({m for m, _ in wave})] + [("b", n) for n in sorted({n for _, n in wave})]
        for panel in wanted:
            reads[panel[0]] += panel not in held
            held[panel] = a_panel if panel[0] == "a" else b_panel
            held.move_to_end(panel)
        while held and sum(held.values()) > l2_bytes:
            held.popitem(last=False)
    scale = shape.tiles / simulated
    return reads["a"] * scale, reads["b"] * scale
