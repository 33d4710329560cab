// From a consumer's accumulators to global memory through shared memory, by the warps that staged them: sooner done than
// TMA's store, which waits for all four warps and fetches a descriptor, where a kernel ends with it.
#pragma once
#include "epilogue.cuh"

template <KernelSpec SPEC, KernelConfig CONFIG>
struct WarpStore {
    using Staged = TmaStore<SPEC, CONFIG>;
    static constexpr int COLUMNS = Staged::COLUMNS;
    static constexpr int PIECE_BYTES = 16;
    static constexpr int PIECES = Staged::ROW_BYTES / PIECE_BYTES;
    static constexpr int PIECE = PIECE_BYTES / dtype_bytes(SPEC.out_dtype);
    static constexpr int WARP_ROWS = MMA_M / (WARPGROUP / WARP);

    // Stores 64 rows x N columns, of those that there are before row `size_m` and column `end`, a multiple of PIECE. Each
    // warp has its own rows of the buffer.
    template <int N>
    __device__ __forceinline__ static void store(const float (&accumulators)[N / 2], uint8_t* buffer, uint8_t* out,
                                                 int64_t row_stride, TileIndex at, int size_m, int end) {
        const int thread = threadIdx.x % WARPGROUP;
        const int first_row = thread / WARP * WARP_ROWS;
        const uint32_t staged = shared_address(buffer);
#pragma unroll
        for (int first = 0; first < N; first += COLUMNS) {
            __syncwarp();  // all have read what was staged before
            Staged::stage(staged, accumulators + first / 2, thread);
            __syncwarp();
#pragma unroll
            for (int i = thread % WARP; i < WARP_ROWS * PIECES; i += WARP) {
                const int row = first_row + i / PIECES, piece = i % PIECES;
                const int m = at.m + row, n = at.n + first + piece * PIECE;
                const float4 value = ld_shared_v4(staged + Staged::swizzled(row, piece));
                if (m < size_m && n < end) {
                    *reinterpret_cast<float4*>(out + (m * row_stride + n) * dtype_bytes(SPEC.out_dtype)) = value;
                }
            }
        }
    }
};
