// One operand's tile in shared memory, filled by threads in pieces of 16 bytes, where TMA would put them: each is at home
// in row r of a slab as piece p under the 128-byte swizzle, 16 · (p ^ r % 8) bytes into the row.
#pragma once
#include "operand.cuh"
#include "ptx/cp_async.cuh"

// What one of THREADS threads copies of the tiles of a matrix along K.
template <Major MAJOR, DType DTYPE, int ROWS, int BLOCK_K, int THREADS>
struct CopiedTile {
    using Tile = OperandTile<MAJOR, DTYPE, ROWS, BLOCK_K, 1>;
    static constexpr int PIECE_BYTES = 16;
    static constexpr int PIECE = PIECE_BYTES / dtype_bytes(DTYPE);
    // Pieces of a slab's row, each of another thread, and rows that are copied at once. An mn-major tile may be narrower
    // than its slabs.
    static constexpr int WIDTH = MAJOR == Major::mn && ROWS < Tile::SPAN ? ROWS : Tile::SPAN;
    static constexpr int PIECES = WIDTH / PIECE;
    static constexpr int ROWS_AT_ONCE = THREADS / PIECES;
    static constexpr bool EVEN = THREADS % PIECES == 0 && Tile::SLAB_ROWS % ROWS_AT_ONCE == 0 &&
                                 (MAJOR == Major::k || ROWS % WIDTH == 0);

    const uint8_t* source;  // this thread's first piece
    int64_t row_bytes;      // from one row of memory to the next
    int left;               // elements from the piece's first to the end of its row
    int rows_left;          // rows of memory from this one to the last
    uint32_t first, piece;  // where it is put

    // For the tiles at row `mn` and from `k` on of a matrix that ends at (mn_end, k_end).
    __device__ __forceinline__ CopiedTile(const uint8_t* matrix, int64_t row_bytes, int mn, int mn_end, int k, int k_end,
                                          uint32_t thread)
        : row_bytes(row_bytes), first(thread / PIECES), piece(thread % PIECES) {
        const int row = (MAJOR == Major::k ? mn : k) + first;
        const int column = (MAJOR == Major::k ? k : mn) + piece * PIECE;
        source = matrix + row * row_bytes + static_cast<int64_t>(column) * dtype_bytes(DTYPE);
        left = (MAJOR == Major::k ? k_end : mn_end) - column;
        rows_left = (MAJOR == Major::k ? mn_end : k_end) - row;
    }

    // Starts this thread's part of the copy of a tile, and goes on to the next. Beyond the end of k there are zeros. Beyond
    // the other end nothing is written: what lies there reaches only rows and columns that are not stored.
    __device__ __forceinline__ void copy(uint32_t tile) {
        const bool whole = left >= (Tile::SLABS - 1) * Tile::SPAN + PIECE && rows_left > Tile::SLAB_ROWS - ROWS_AT_ONCE;
        // The compiler lays out the second branch first.
        if (!EVEN || !whole) {
            copy_some(tile);
        } else {
            copy_whole(tile + place(first));
        }
        source += MAJOR == Major::k ? BLOCK_K * dtype_bytes(DTYPE) : BLOCK_K * row_bytes;
        (MAJOR == Major::k ? left : rows_left) -= BLOCK_K;
    }

  private:
    __device__ __forceinline__ uint32_t place(uint32_t row) const {
        return row * SWIZZLE_BYTES + (piece ^ row % 8) * PIECE_BYTES;
    }

    __device__ __forceinline__ void copy_whole(uint32_t target) {
        const uint8_t* from = source;
#pragma unroll
        for (int row = 0; row < Tile::SLAB_ROWS; row += ROWS_AT_ONCE) {
#pragma unroll
            for (int slab = 0; slab < Tile::SLABS; ++slab) {
                cp_async_16(target + slab * Tile::SLAB_BYTES + row * SWIZZLE_BYTES, from + slab * SWIZZLE_BYTES);
            }
            from += ROWS_AT_ONCE * row_bytes;
        }
    }

    __device__ __forceinline__ void copy_some(uint32_t tile) {
        if (first >= ROWS_AT_ONCE) return;
#pragma unroll 1
        for (int slab = 0; slab < Tile::SLABS; ++slab) {
            const int there = min(left - slab * Tile::SPAN, PIECE);
            if (MAJOR == Major::mn && (there <= 0 || slab * Tile::SPAN + piece * PIECE >= ROWS)) break;
            const uint32_t bytes = max(there, 0) * dtype_bytes(DTYPE);
#pragma unroll 1
            for (uint32_t row = 0; first + row < Tile::SLAB_ROWS; row += ROWS_AT_ONCE) {
                const bool exists = static_cast<int>(row) < rows_left;
                if (MAJOR == Major::k && !exists) break;
                cp_async_16(tile + slab * Tile::SLAB_BYTES + place(first + row),
                            source + slab * SWIZZLE_BYTES + row * row_bytes, exists ? bytes : 0);
            }
        }
    }
};
