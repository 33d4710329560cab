"""The model's idea of the order of tiles is the kernel's."""

from __future__ import annotations

import pytest

from cupygemm import driver
from cupygemm.compiler import OPTIONS
from cupygemm.kernel_source import config_literal, cuda_sources
from cupygemm.search.traffic import tile_at
from tests.gpu.protocol import LARGE

pytestmark = pytest.mark.gpu

ORDER = """
#include "raster.cuh"
extern "C" __global__ void order(int* found, int tiles_m, int tiles_n) {{
    constexpr KernelConfig CONFIG = {config};
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < tiles_m * tiles_n) {{
        const TileIndex tile = tile_at<CONFIG>(t, tiles_m, tiles_n);
        found[2 * t] = tile.m;
        found[2 * t + 1] = tile.n;
    }}
}}
"""


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_the_order_is_the_same(tmp_path, group, along_n):
    cupy = driver.cupy()
    for name, text in cuda_sources().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    source = ORDER.format(config=config_literal(LARGE.swapped(group=group, raster_along_n=along_n)))
    options = (*(option for option in OPTIONS if not option.startswith(("-arch", "--ptxas"))), f"-I{tmp_path}")
    order = cupy.RawModule(code=source, options=options).get_function("order")
    for tiles_m, tiles_n in [(1, 1), (5, 7), (16, 3), (3, 33), (17, 17)]:
        tiles = tiles_m * tiles_n
        found = cupy.full((tiles, 2), -1, cupy.int32)
        order((1 + tiles // 128,), (128,), (found, tiles_m, tiles_n))
        expected = [tile_at(t, tiles_m, tiles_n, along_n, group) for t in range(tiles)]
        assert list(map(tuple, found.get().tolist())) == expected
