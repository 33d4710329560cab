// The order in which a persistent grid visits the output tiles.
#pragma once
#include "config.cuh"

struct TileIndex {
    int m;
    int n;
};

// Tile `t` of a grid of tiles_m x tiles_n (of clusters): bands of `group` tiles across the raster direction, swept
// along it, so that the tiles in flight together share rows of A and columns of B in L2.
template <KernelConfig CONFIG>
__device__ __forceinline__ TileIndex tile_at(int t, int tiles_m, int tiles_n) {
    const int across_count = CONFIG.raster_along_n ? tiles_m : tiles_n;
    const int along_count = CONFIG.raster_along_n ? tiles_n : tiles_m;
    // No band is higher than the grid, so that a band's tiles are never more than all tiles, which fit 32 bits.
    const int group = min(CONFIG.group, across_count);
    const int band_tiles = group * along_count;
    const int first = t / band_tiles * group;
    const int height = min(group, across_count - first);
    const int in_band = t % band_tiles;
    const int across = first + in_band % height;
    const int along = in_band / height;
    return CONFIG.raster_along_n ? TileIndex{across, along} : TileIndex{along, across};
}
