"""The order of a grid's tiles, as the kernel is told it: cuda_src/raster.cuh's structs, filled in."""

from __future__ import annotations

import ctypes
from typing import Self

from cupygemm.config import KernelConfig

MAX_DIVIDEND = 2**31 - 1


class Divisor(ctypes.Structure):
    """`n // divisor` as `n * multiplier >> shift`, exact for 0 <= n <= MAX_DIVIDEND.

    With multiplier = ceil(2^shift / divisor) the product exceeds n / divisor by less than n / 2^shift, which must stay
    below 1 / divisor, so 2^shift >= 2^31 · divisor; the smallest such power keeps the multiplier below 2^32.
    """

    _fields_ = (("divisor", ctypes.c_uint32), ("multiplier", ctypes.c_uint32), ("shift", ctypes.c_uint32))

    @classmethod
    def of(cls, divisor: int) -> Self:
        """The constants for a divisor from 1 to MAX_DIVIDEND."""
        shift = 31 + (divisor - 1).bit_length()
        return cls(divisor, -(-(1 << shift) // divisor), shift)


class Raster(ctypes.Structure):
    """All tiles (of clusters), in bands of `group` tiles across the raster direction.

    Attributes:
        tiles: how many there are, of all products.
        full_bands: bands of the whole height.
        along_n: bands run along N, else along M.
        band_tiles, height: tiles of a full band, and its extent across.
        last_height: extent across of the band after them, where there is one.
    """

    _fields_ = (
        ("tiles", ctypes.c_int32),
        ("full_bands", ctypes.c_int32),
        ("along_n", ctypes.c_int32),
        ("band_tiles", Divisor),
        ("height", Divisor),
        ("last_height", Divisor),
    )

    @classmethod
    def of(cls, config: KernelConfig, tiles_m: int, tiles_n: int, batch: int = 1) -> Self:
        """The order in which a config visits `tiles_m` x `tiles_n` tiles of each product of a batch.

        Together they are at most MAX_DIVIDEND.
        """
        across, along = (tiles_m, tiles_n) if config.raster_along_n else (tiles_n, tiles_m)
        # No band is higher than the grid, so that its tiles are never more than all tiles.
        height = min(config.group, across)
        return cls(
            tiles=tiles_m * tiles_n * batch,
            full_bands=across // height,
            along_n=config.raster_along_n,
            band_tiles=Divisor.of(height * along),
            height=Divisor.of(height),
            last_height=Divisor.of(across % height or height),
        )
