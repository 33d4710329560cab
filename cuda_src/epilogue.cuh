// From a consumer's accumulators to global memory: through shared memory and TMA, or straight from registers.
//
// Accumulators of one m64nN WGMMA (PTX ISA, "wgmma D fragment"): thread t of the warpgroup holds, for each group j of 8
// columns, rows r = 16·(t/32) + (t%32)/4 (values 4j, 4j+1) and r + 8 (values 4j+2, 4j+3), columns 8j + 2·(t%4) + {0, 1}.
#pragma once
#include "config.cuh"
#include "ptx/cluster.cuh"
#include "ptx/convert.cuh"
#include "ptx/tma.cuh"
#include "raster.cuh"

template <DType OUT>
__device__ __forceinline__ uint32_t pack(float low, float high) {
    static_assert(OUT == DType::float16 || OUT == DType::bfloat16);
    return OUT == DType::float16 ? cvt_f16x2(low, high) : cvt_bf16x2(low, high);
}

// Stages 64 x store_columns sub-tiles in shared memory, transposed where the result is, swizzled as the tensor map of C
// says, and stores them with TMA.
template <KernelSpec SPEC, KernelConfig CONFIG>
struct TmaStore {
    static constexpr int COLUMNS = store_columns<SPEC, CONFIG>();
    static constexpr int ROW_BYTES = (SPEC.out_transposed ? MMA_M : COLUMNS) * dtype_bytes(SPEC.out_dtype);
    static constexpr int BUFFER_BYTES = MMA_M * COLUMNS * dtype_bytes(SPEC.out_dtype);
    // With three buffers or more, one barrier a sub-tile says both that it is staged and that the next buffer is free;
    // with two, TMA would have to read each sub-tile while the next is staged.
    static constexpr bool ONE_BARRIER = CONFIG.store_stages > 2;

    // TMA's swizzle of ROW_BYTES: the 16-byte chunk index is xored with address bits 7 and up.
    __device__ __forceinline__ static uint32_t swizzled(uint32_t row, uint32_t chunk) {
        const uint32_t offset = row * ROW_BYTES + chunk * 16;
        return offset ^ ((offset >> 7) % (ROW_BYTES / 16) << 4);
    }

    // Writes columns [first, first + COLUMNS) of this warpgroup's 64 rows into a buffer.
    __device__ __forceinline__ static void stage(uint32_t buffer, const float* accumulators, int thread) {
        const int warp_row = thread / WARP * 16;
        const int lane = thread % WARP;
        if constexpr (SPEC.out_transposed) {
            // A matrix of 8 x 8 goes to 8 rows, each of which holds a chunk of it: the warp's rows are two chunks.
            const int row = lane / 16 * 8 + lane % 8;
            const int chunk = warp_row / 8 + lane / 8 % 2;
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; ++j) {
                const float* d = accumulators + 8 * j;
                stmatrix_x4_trans(buffer + swizzled(row + 16 * j, chunk), pack<SPEC.out_dtype>(d[0], d[1]),
                                  pack<SPEC.out_dtype>(d[2], d[3]), pack<SPEC.out_dtype>(d[4], d[5]),
                                  pack<SPEC.out_dtype>(d[6], d[7]));
            }
            if constexpr (COLUMNS % 16 != 0) {
                const float* d = accumulators + COLUMNS / 2 - 4;
                stmatrix_x2_trans(buffer + swizzled(COLUMNS - 8 + lane % 8, chunk), pack<SPEC.out_dtype>(d[0], d[1]),
                                  pack<SPEC.out_dtype>(d[2], d[3]));
            }
        } else if constexpr (SPEC.out_dtype == DType::float32) {
            const int row = warp_row + lane / 4;
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                const float* d = accumulators + 4 * j;
                const int chunk = 2 * j + lane % 4 / 2;
                const int in_chunk = lane % 2 * 8;
                st_shared_v2(buffer + swizzled(row, chunk) + in_chunk, d[0], d[1]);
                st_shared_v2(buffer + swizzled(row + 8, chunk) + in_chunk, d[2], d[3]);
            }
        } else {
            const int row = warp_row + lane % 16;
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; ++j) {
                const float* d = accumulators + 8 * j;
                stmatrix_x4(buffer + swizzled(row, 2 * j + lane / 16), pack<SPEC.out_dtype>(d[0], d[1]),
                            pack<SPEC.out_dtype>(d[2], d[3]), pack<SPEC.out_dtype>(d[4], d[5]),
                            pack<SPEC.out_dtype>(d[6], d[7]));
            }
            if constexpr (COLUMNS % 16 != 0) {
                stmatrix_x2(buffer + swizzled(row, 0), pack<SPEC.out_dtype>(accumulators[0], accumulators[1]),
                            pack<SPEC.out_dtype>(accumulators[2], accumulators[3]));
            }
        }
    }

    // Stores 64 rows x N columns. Only thread 0 issues, commits and waits for bulk groups.
    template <int N>
    __device__ __forceinline__ static void store(const float (&accumulators)[N / 2], const CUtensorMap* map,
                                                 uint64_t policy, uint8_t* buffers, uint32_t& turn, TileIndex at,
                                                 int consumer) {
        const int thread = threadIdx.x % WARPGROUP;
#pragma unroll
        for (int next = 0; next < N; next += COLUMNS) {
            // The last sub-tile stores again what it shares with the one before: the same values to the same places.
            const int first = next < N - COLUMNS ? next : N - COLUMNS;
            uint8_t* buffer = buffers + turn * BUFFER_BYTES;
            turn = turn + 1 == CONFIG.store_stages ? 0 : turn + 1;
            // Thread 0 waits until TMA has read what this buffer held; the barrier tells the other threads.
            if constexpr (!ONE_BARRIER) {
                if (thread == 0) bulk_wait_group_read<CONFIG.store_stages - 1>();
                barrier_sync(1 + consumer, WARPGROUP);
            }
            stage(shared_address(buffer), accumulators + first / 2, thread);
            // Every writer orders its writes before TMA's reads, then thread 0 learns that all have, and (one barrier)
            // the others learn that the next buffer is free.
            fence_proxy_async();
            if constexpr (ONE_BARRIER) {
                if (thread == 0) bulk_wait_group_read<CONFIG.store_stages - 2>();
            }
            barrier_sync(1 + consumer, WARPGROUP);
            if (thread == 0) {
                const int x = SPEC.out_transposed ? at.m : at.n + first;
                const int y = SPEC.out_transposed ? at.n + first : at.m;
                if constexpr (SPEC.batched) {
                    tma_store_3d(map, buffer, x, y, at.batch, policy);
                } else {
                    tma_store_2d(map, buffer, x, y, policy);
                }
                bulk_commit_group();
            }
        }
    }
};

// Stores from registers, element by element at the edges and where rows are not aligned to two elements.
template <DType OUT>
struct DirectStore {
    __device__ __forceinline__ static void store_pair(uint8_t* out, int64_t index, float low, float high, bool second,
                                                      bool aligned) {
        uint8_t* target = out + index * dtype_bytes(OUT);
        if constexpr (OUT == DType::float32) {
            if (second && aligned) {
                *reinterpret_cast<float2*>(target) = make_float2(low, high);
            } else {
                reinterpret_cast<float*>(target)[0] = low;
                if (second) reinterpret_cast<float*>(target)[1] = high;
            }
        } else {
            const uint32_t packed = pack<OUT>(low, high);
            if (second && aligned) {
                *reinterpret_cast<uint32_t*>(target) = packed;
            } else {
                reinterpret_cast<uint16_t*>(target)[0] = static_cast<uint16_t>(packed);
                if (second) reinterpret_cast<uint16_t*>(target)[1] = static_cast<uint16_t>(packed >> 16);
            }
        }
    }

    template <int N>
    __device__ __forceinline__ static void store(const float (&accumulators)[N / 2], uint8_t* out, int64_t row_stride,
                                                 int m, int n, int size_m, int size_n) {
        const int thread = threadIdx.x % WARPGROUP;
        const int row = m + thread / WARP * 16 + thread % WARP / 4;
        const int pair_bytes = 2 * dtype_bytes(OUT);
        const bool aligned = row_stride % 2 == 0 && reinterpret_cast<uint64_t>(out) % pair_bytes == 0;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            const int column = n + 8 * j + thread % 4 * 2;
            if (column >= size_n) break;
            const float* d = accumulators + 4 * j;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (row + 8 * half >= size_m) continue;
                const int64_t index = (row + 8 * half) * row_stride + column;
                store_pair(out, index, d[2 * half], d[2 * half + 1], column + 1 < size_n, aligned);
            }
        }
    }
};
