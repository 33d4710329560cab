"""What the kernel is told of the order of tiles: divisions that are exact, and bands as the L2 model has them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupygemm.config import KernelConfig
from cupygemm.kernels.raster import MAX_DIVIDEND, Divisor, Raster
from cupygemm.search.runners.traffic import tile_at

CONFIG = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 1, 2)


def quotient(divisor: Divisor, n: int) -> int:
    """Divisor::quotient of cuda_src/raster.cuh."""
    assert n * divisor.multiplier < 2**64
    return n * divisor.multiplier >> divisor.shift


def place(raster: Raster, t: int) -> tuple[int, int]:
    """Raster::tile_at of cuda_src/raster.cuh."""
    band = quotient(raster.band_tiles, t)
    in_band = t - band * raster.band_tiles.divisor
    rows = raster.height if band < raster.full_bands else raster.last_height
    along = quotient(rows, in_band)
    across = band * raster.height.divisor + in_band - along * rows.divisor
    return (across, along) if raster.along_n else (along, across)


@settings(deadline=None)
@given(st.integers(1, MAX_DIVIDEND), st.integers(0, MAX_DIVIDEND))
def test_a_quotient_is_exact(divisor: int, n: int) -> None:
    constants = Divisor.of(divisor)
    around = {n, n // divisor * divisor, max(0, n // divisor * divisor - 1), MAX_DIVIDEND}
    assert {quotient(constants, each) - each // divisor for each in around} == {0}


@pytest.mark.parametrize("divisor", [1, 2, 3, 2**30, 2**30 + 1, MAX_DIVIDEND])
def test_the_constants_fit_their_fields(divisor: int) -> None:
    constants = Divisor.of(divisor)
    assert constants.multiplier == -(-(1 << constants.shift) // divisor)
    assert [quotient(constants, n) for n in (0, divisor - 1, divisor, MAX_DIVIDEND)] == [
        0,
        0,
        1,
        MAX_DIVIDEND // divisor,
    ]


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4, 64])
@pytest.mark.parametrize("tiles", [(1, 1), (1, 9), (7, 3), (16, 8), (5, 31)])
def test_the_order_is_the_models(tiles: tuple[int, int], group: int, along_n: bool) -> None:
    raster = Raster.of(CONFIG.swapped(group=group, raster_along_n=along_n), *tiles)
    assert raster.tiles == tiles[0] * tiles[1]
    expected = [tile_at(t, *tiles, along_n, group) for t in range(raster.tiles)]
    assert [place(raster, t) for t in range(raster.tiles)] == expected
    assert sorted(expected) == [(m, n) for m in range(tiles[0]) for n in range(tiles[1])]
