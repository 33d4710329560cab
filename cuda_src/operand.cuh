// One operand's tile in shared memory: how TMA fills it, alone or in slices for a cluster, and how WGMMA reads it.
//
// A tile is a row of slabs, each 128 bytes wide with the 128-byte swizzle:
//   k-major   a slab holds all ROWS rows and 128 bytes of k:   [slab][row][k within the slab]
//   mn-major  a slab holds all of block_k and 128 bytes of mn: [slab][k][mn within the slab]
#pragma once
#include "config.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <Major MAJOR, DType DTYPE, int ROWS, int BLOCK_K, int PEERS>
struct OperandTile {
    static constexpr int SPAN = SWIZZLE_BYTES / dtype_bytes(DTYPE);
    static constexpr int SLABS = MAJOR == Major::k ? BLOCK_K / SPAN : ceil_div(ROWS, SPAN);
    static constexpr int SLAB_ROWS = MAJOR == Major::k ? ROWS : BLOCK_K;
    static constexpr int SLAB_BYTES = SLAB_ROWS * SWIZZLE_BYTES;
    static constexpr int BYTES = SLABS * SLAB_BYTES;

    // The PEERS CTAs that share the tile load a slice each: whole slabs where they divide evenly, else rows of all slabs.
    static constexpr bool BY_SLAB = MAJOR == Major::mn && SLABS % PEERS == 0;
    static constexpr int BOX_ROWS = BY_SLAB ? SLAB_ROWS : SLAB_ROWS / PEERS;
    static constexpr int BOXES = BY_SLAB ? SLABS / PEERS : SLABS;

    // Starts the copies of slice `peer` of the tile at element (mn, k), in matrix z of several, into every CTA of `mask`.
    template <bool BATCHED>
    __device__ __forceinline__ static void load(uint8_t* tile, const CUtensorMap* map, uint64_t* barrier, int mn, int k,
                                                int z, int peer, uint16_t mask, uint64_t policy) {
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const int slab = BY_SLAB ? peer * BOXES + box : box;
            const int row = BY_SLAB ? 0 : peer * BOX_ROWS;
            const int x = (MAJOR == Major::k ? k : mn) + slab * SPAN;
            const int y = (MAJOR == Major::k ? mn : k) + row;
            uint8_t* target = tile + slab * SLAB_BYTES + row * SWIZZLE_BYTES;
            if constexpr (BATCHED && PEERS == 1) {
                tma_load_3d(map, barrier, target, x, y, z, policy);
            } else if constexpr (BATCHED) {
                tma_load_3d_multicast(map, barrier, target, x, y, z, mask, policy);
            } else if constexpr (PEERS == 1) {
                tma_load_2d(map, barrier, target, x, y, policy);
            } else {
                tma_load_2d_multicast(map, barrier, target, x, y, mask, policy);
            }
        }
    }

    // Has the L2 fetch the tile at element (mn, k), `depth` deep, of a matrix that ends at `mn_end`: each of `threads` some
    // of its lines. Rows of memory are `row_bytes` apart.
    __device__ __forceinline__ static void prefetch(const uint8_t* matrix, int64_t row_bytes, int mn, int mn_end, int k,
                                                    int depth, int thread, int threads) {
        constexpr int LINE = 128 / dtype_bytes(DTYPE);
        constexpr int LINES_AT_ONCE = MAJOR == Major::k ? 8 : ceil_div(ROWS, LINE);
        const int extent = min(ROWS, mn_end - mn);
        const int rows = MAJOR == Major::k ? extent : depth;
        const int columns = MAJOR == Major::k ? depth : extent;
        const uint8_t* start = matrix + (MAJOR == Major::k ? mn : k) * row_bytes +
                               static_cast<int64_t>(MAJOR == Major::k ? k : mn) * dtype_bytes(DTYPE);
        for (int row = thread / LINES_AT_ONCE; row < rows; row += threads / LINES_AT_ONCE) {
            for (int column = thread % LINES_AT_ONCE * LINE; column < columns; column += LINES_AT_ONCE * LINE) {
                prefetch_l2(start + row * row_bytes + column * dtype_bytes(DTYPE));
            }
        }
    }

    // Where element (mn, k) of a tile starts, in bytes. mn: a multiple of 8 (k-major) or of SPAN (mn-major); k: a
    // multiple of one instruction's depth.
    __device__ __forceinline__ static constexpr int offset(int mn, int k) {
        return MAJOR == Major::k ? k / SPAN * SLAB_BYTES + mn * SWIZZLE_BYTES + k % SPAN * dtype_bytes(DTYPE)
                                 : mn / SPAN * SLAB_BYTES + k * SWIZZLE_BYTES;
    }

    // The descriptor of a tile from row `mn` on; adding `descriptor_step`s to it moves it within and between tiles.
    __device__ __forceinline__ static uint64_t descriptor(const uint8_t* tile, int mn) {
        const uint32_t leading = MAJOR == Major::k ? 16 : SLAB_BYTES;
        return wgmma_descriptor(shared_address(tile + offset(mn, 0)), leading, SWIZZLE_ATOM_BYTES);
    }
};
