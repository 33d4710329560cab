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
    // Transposed, a warp's rows are two pieces of every row of the buffer.
    static constexpr int WARP_PIECES = SPEC.out_transposed ? WARP_ROWS / PIECE : PIECES;
    static constexpr int STAGED_ROWS = SPEC.out_transposed ? COLUMNS : WARP_ROWS;

    // Stores 64 rows x N columns, of those that there are before row `size_m` and column `end`, of which that is a multiple
    // of PIECE which is contiguous. Each warp has its own part of the buffer.
    template <int N>
    __device__ __forceinline__ static void store(const float (&accumulators)[N / 2], uint8_t* buffer, uint8_t* out,
                                                 int64_t row_stride, TileIndex at, int size_m, int end) {
        const int thread = threadIdx.x % WARPGROUP;
        const int warp = thread / WARP;
        const uint32_t staged = shared_address(buffer);
#pragma unroll
        for (int next = 0; next < N; next += COLUMNS) {
            const int first = next < N - COLUMNS ? next : N - COLUMNS;  // as TmaStore
            __syncwarp();  // all have read what was staged before
            Staged::stage(staged, accumulators + first / 2, thread);
            __syncwarp();
#pragma unroll
            for (int i = thread % WARP; i < STAGED_ROWS * WARP_PIECES; i += WARP) {
                const int row = (SPEC.out_transposed ? 0 : warp * WARP_ROWS) + i / WARP_PIECES;
                const int piece = (SPEC.out_transposed ? warp * WARP_PIECES : 0) + i % WARP_PIECES;
                const int y = (SPEC.out_transposed ? at.n + first : at.m) + row;
                const int x = (SPEC.out_transposed ? at.m : at.n + first) + piece * PIECE;
                const float4 value = ld_shared_v4(staged + Staged::swizzled(row, piece));
                if (y < (SPEC.out_transposed ? end : size_m) && x < (SPEC.out_transposed ? size_m : end)) {
                    *reinterpret_cast<float4*>(out + (y * row_stride + x) * dtype_bytes(SPEC.out_dtype)) = value;
                }
            }
        }
    }
};
