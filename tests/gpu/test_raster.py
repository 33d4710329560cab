"""The order of tiles on the GPU is the one that the L2 model goes by."""

from __future__ import annotations

import numpy as np
import pytest

from cupygemm.kernels import driver
from cupygemm.kernels.compiler import OPTIONS
from cupygemm.kernels.kernel_source import cuda_sources
from cupygemm.kernels.raster import Raster
from cupygemm.search.runners.traffic import tile_at
from tests.gpu.protocol import LARGE

pytestmark = pytest.mark.gpu

ORDER = """
#include "raster.cuh"
extern "C" __global__ void order(int* found, const Raster raster) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < raster.tiles) {
        const TileIndex tile = raster.tile_at(t);
        found[2 * t] = tile.m;
        found[2 * t + 1] = tile.n;
    }
}
"""


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_the_order_is_the_same(tmp_path, group, along_n):
    cupy = driver.cupy()
    for name, text in cuda_sources().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    options = (*(option for option in OPTIONS if not option.startswith(("-arch", "--ptxas"))), f"-I{tmp_path}")
    order = cupy.RawModule(code=ORDER, options=options).get_function("order")
    config = LARGE.swapped(group=group, raster_along_n=along_n)
    for tiles_m, tiles_n in [(1, 1), (5, 7), (16, 3), (3, 33), (17, 17)]:
        tiles = tiles_m * tiles_n
        found = cupy.full((tiles, 2), -1, cupy.int32)
        raster = np.frombuffer(Raster.of(config, tiles_m, tiles_n), dtype="V48")
        order((1 + tiles // 128,), (128,), (found, raster))
        expected = [tile_at(t, tiles_m, tiles_n, along_n, group) for t in range(tiles)]
        assert list(map(tuple, found.get().tolist())) == expected
