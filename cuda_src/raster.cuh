// The order in which a persistent grid visits the output tiles.
#pragma once
#include "ptx/types.cuh"

struct TileIndex {
    int m;
    int n;
    int batch = 0;
};

// Division by what only the host knows, without a division: n · multiplier >> shift for 0 <= n < 2^31
// (cupygemm/kernels/raster.py computes both). The first load of a kernel waits for two of them.
struct Divisor {
    uint32_t divisor;
    uint32_t multiplier;
    uint32_t shift;

    __device__ __forceinline__ int quotient(int n) const {
        return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier >> shift);
    }
};

// All tiles (of clusters) in bands of as many tiles as `group` across the raster direction, the last band the rest.
struct Raster {
    int tiles;
    int full_bands;
    int along_n;
    Divisor band_tiles;
    Divisor height;
    Divisor last_height;

    // Tile `t`: bands are swept along the raster direction, so that the tiles in flight together share rows of A and
    // columns of B in L2.
    __device__ __forceinline__ TileIndex tile_at(int t) const {
        const int band = band_tiles.quotient(t);
        const int in_band = t - band * static_cast<int>(band_tiles.divisor);
        const Divisor& rows = band < full_bands ? height : last_height;
        const int along = rows.quotient(in_band);
        const int across = band * static_cast<int>(height.divisor) + in_band - along * static_cast<int>(rows.divisor);
        return along_n ? TileIndex{across, along} : TileIndex{along, across};
    }
};
