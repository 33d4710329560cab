// The kernel of gemm.cuh with an earlier start, for small products: the consumers copy the first stages themselves.
//
// Before TMA loads anything it fetches a descriptor, which no cache near it has when a kernel starts, and the barriers
// that it signals must exist. A thread that copies 16 bytes needs an address. So the consumers begin with COPIED stages of
// the CTA's first tile (cp.async), and TMA brings the rest of it and all other tiles as in gemm.cuh: copying keeps threads
// busy, and brings less a cycle. The producer is one warp, and warps store what they have staged. No multicast.
#pragma once
#include "copied_tile.cuh"
#include "gemm.cuh"
#include "warp_store.cuh"

template <KernelSpec SPEC, KernelConfig CONFIG, int COPIED>
struct GemmCpAsync : Gemm<SPEC, CONFIG> {
    using Base = Gemm<SPEC, CONFIG>;
    using typename Base::RingPosition;
    using typename Base::Schedule;
    using typename Base::SharedStorage;
    using typename Base::Sums;
    using typename Base::TileA;
    using typename Base::TileB;
    static_assert(COPIED >= 1 && COPIED <= CONFIG.stages, "cp_async_stages: of those that there are");
    static_assert(CONFIG.cluster_plane() == 1, "cp_async_stages: no multicast");
    static_assert(CONFIG.consumers <= 2 && !CONFIG.ping_pong, "cp_async_stages: two consumers, which divide a tile");
    // 288 threads are launched with as many registers as 384.
    static_assert(CONFIG.consumers == 1 || CONFIG.accumulators() <= 168 - 32, "accumulators: registers of a consumer");
    static_assert(CONFIG.wait_depth == 1 && CONFIG.store_stages <= 1, "cp_async_stages: what is not built");

    static constexpr int CONSUMING = CONFIG.consumers * WARPGROUP;  // threads; the producer's warp comes after them
    static constexpr int THREADS = CONSUMING + WARP;
    // Named barriers: of all threads, and of the consumers.
    static constexpr int READY = 4;
    static constexpr int STAGE_COPIED = 5;
    static constexpr int N = Base::N;
    static constexpr int M_STEPS = Base::M_STEPS;
    using CopyA = CopiedTile<SPEC.a_major, SPEC.a_dtype, CONFIG.block_m, CONFIG.block_k, CONSUMING>;
    using CopyB = CopiedTile<SPEC.b_major, SPEC.b_dtype, CONFIG.block_n, CONFIG.block_k, CONSUMING>;

    // Stages of the CTA's first tile that the consumers copy: all that there are, where they are few.
    __device__ __forceinline__ static int copied_stages(const Schedule& schedule) {
        return min(COPIED, max(0, ceil_div(schedule.k_end - schedule.k_begin, CONFIG.block_k)));
    }

    // Begins this thread's copies of the first stages: COPIED groups, of a stage each or of nothing.
    __device__ __forceinline__ static void copy(SharedStorage& shared, const Arguments& args, const Schedule& schedule,
                                                TileIndex tile, int copied) {
        const uint8_t *a = args.a, *b = args.b;
        if constexpr (SPEC.batched) {
            a += tile.batch * args.a_batch_bytes;
            b += tile.batch * args.b_batch_bytes;
        }
        CopyA copy_a(a, args.a_row_bytes, tile.m, args.m, schedule.k_begin, schedule.k_end, threadIdx.x);
        CopyB copy_b(b, args.b_row_bytes, tile.n, args.n, schedule.k_begin, schedule.k_end, threadIdx.x);
        griddepcontrol_wait();
#pragma unroll 1  // unrolled, it is slower (docs/small.md)
        for (int slot = 0; slot < COPIED; ++slot) {
            if (slot < copied) {
                copy_a.copy(shared_address(shared.a[slot]));
                copy_b.copy(shared_address(shared.b[slot]));
            }
            cp_async_commit_group();
        }
    }

    // One thread: loads what the consumers do not copy.
    __device__ __forceinline__ static void produce(SharedStorage& shared, const CUtensorMap* map_a,
                                                   const CUtensorMap* map_b, const Arguments& args,
                                                   const Schedule& schedule) {
        const int copied = copied_stages(schedule);
        RingPosition ring;
        ring.skip(copied);
        int k = schedule.k_begin + copied * CONFIG.block_k;
        griddepcontrol_wait();
        for (int t = schedule.first; t < schedule.raster.tiles; t += schedule.step) {
            const TileIndex tile = schedule.element(t);
#pragma unroll 1
            for (; k < schedule.k_end; k += CONFIG.block_k) {
                mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
                uint64_t* full = &shared.full[ring.slot];
                mbarrier_arrive_expect_tx(full, args.loaded_bytes);
                TileA::template load<SPEC.batched>(shared.a[ring.slot], map_a, full, tile.m, k, tile.batch * args.a_step,
                                                   0, 0, args.policy_a);
                TileB::template load<SPEC.batched>(shared.b[ring.slot], map_b, full, tile.n, k, tile.batch * args.b_step,
                                                   0, 0, args.policy_b);
                ring.advance();
            }
            k = schedule.k_begin;
        }
        // Nothing to drain: no peer multicasts into this CTA, and its own consumers leave when they have waited for all
        // that was loaded or copied.
    }

    // Does what the epilogue says to a consumer's rows of COLUMNS columns, and stores them, except from column `end` on.
    template <int COLUMNS>
    __device__ __forceinline__ static void store(float (&d)[M_STEPS][COLUMNS / 2], const Arguments& args, uint8_t* buffer,
                                                 TileIndex at, int end) {
        uint8_t* out = args.out;
        if constexpr (SPEC.batched) out += at.batch * args.out_batch_stride * dtype_bytes(SPEC.out_dtype);
#pragma unroll
        for (int step = 0; step < M_STEPS; ++step) {
            const TileIndex part{at.m + step * MMA_M, at.n, at.batch};
            if constexpr (SPEC.epilogue.any()) {
                Fusion<SPEC>::template apply<COLUMNS>(d[step], args, part.batch, part.m, part.n);
            }
            if constexpr (CONFIG.store_stages > 0) {
                WarpStore<SPEC, CONFIG>::template store<COLUMNS>(d[step], buffer, out, args.out_row_stride, part, args.m,
                                                                 end);
            } else {
                DirectStore<SPEC.out_dtype>::template store<COLUMNS>(d[step], out, args.out_row_stride, part.m, part.n,
                                                                     args.m, end);
            }
        }
    }

    // One warpgroup: copies its part of the first stages, multiplies stage after stage, and stores the tile.
    __device__ __forceinline__ static void consume(SharedStorage& shared, const Arguments& args,
                                                   const Schedule& schedule, int consumer) {
        TileIndex tile = schedule.element(schedule.first);
        const int copied = copied_stages(schedule);
        copy(shared, args, schedule, tile, copied);
        const int row = CONFIG.split_n ? 0 : consumer * CONFIG.consumer_m();
        const int column = CONFIG.split_n ? consumer * N : 0;
        uint8_t* buffer = shared.store + consumer * CONFIG.store_stages * Base::Store::BUFFER_BYTES;
        const uint64_t first_a = TileA::descriptor(shared.a[0], row);
        const uint64_t first_b = TileB::descriptor(shared.b[0], column);
        float d[M_STEPS][N / 2] = {};  // as in gemm.cuh
        RingPosition ring;
        uint32_t previous = 0;
        __syncwarp();
        barrier_sync(READY, THREADS);  // the barriers exist
        // What TMA would have signalled. The producer comes to these slots when they have been let go, and a consumer
        // waits for them when it has passed the barrier below.
        if (threadIdx.x < copied) mbarrier_arrive(&shared.full[threadIdx.x]);
        __syncwarp();
        if constexpr (CONFIG.cluster_k > 1) cluster_arrive_relaxed();
        uint32_t tile_parity = 0;
        int uncopied = copied;
        for (int t = schedule.first; t < schedule.raster.tiles;) {
#pragma unroll 1  // as above
            for (int k = schedule.k_begin; k < schedule.k_end; k += CONFIG.block_k) {
                if (uncopied > 0) {
                    // This thread's copies have been made, WGMMA may read them, then those of all consumers. One group
                    // more, of nothing, keeps the number of those that need not be there the same.
                    cp_async_wait_group<COPIED - 1>();
                    fence_proxy_async();
                    barrier_sync(STAGE_COPIED, CONSUMING);
                    cp_async_commit_group();
                    --uncopied;
                } else {
                    mbarrier_wait(&shared.full[ring.slot], ring.parity);
                }
                Base::multiply(first_a + ring.slot * descriptor_step(TileA::BYTES),
                               first_b + ring.slot * descriptor_step(TileB::BYTES), d, k > schedule.k_begin);
                wgmma_wait_group<1>();
                if (k > schedule.k_begin) Base::release(shared, previous, schedule);
                previous = ring.slot;
                ring.advance();
            }
            wgmma_wait_group<0>();
            if (CONFIG.cluster_k == 1 || schedule.k_begin < schedule.k_end) Base::release(shared, previous, schedule);
#pragma unroll
            for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
                for (int i = 0; i < N / 2; ++i) pin_register(d[step][i]);
            }
            TileIndex own{tile.m + row, tile.n + column, tile.batch};
            if constexpr (CONFIG.cluster_k == 1) {
                store<N>(d, args, buffer, own, args.n);
            } else {
                // K has fewer stages than shares: this one is empty, and d still holds the tile before.
                if (schedule.k_begin >= schedule.k_end) {
#pragma unroll
                    for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
                        for (int i = 0; i < N / 2; ++i) d[step][i] = 0.0f;
                    }
                }
                constexpr int PART_N = CONFIG.part_n();
                float part[M_STEPS][PART_N / 2];
                if (t == schedule.first) cluster_wait();  // the peers' barriers exist
                Sums::exchange(shared.inbox(consumer), d, part, schedule.rank_k, schedule.rank_in_plane(), tile_parity,
                               t == schedule.first, t + schedule.step >= schedule.raster.tiles);
                tile_parity ^= 1;
                const int end = min(args.n, own.n + N);
                own.n += schedule.rank_k * PART_N;
                store<PART_N>(part, args, buffer, own, end);
            }
            t += schedule.step;
            if (t < schedule.raster.tiles) tile = schedule.element(t);
        }
    }

    __device__ __forceinline__ static void run(const CUtensorMap* map_a, const CUtensorMap* map_b,
                                               const Arguments& args) {
        extern __shared__ uint8_t dynamic_shared[];
        const uint32_t base = shared_address(dynamic_shared);
        const uint32_t padding = (SWIZZLE_ATOM_BYTES - base % SWIZZLE_ATOM_BYTES) % SWIZZLE_ATOM_BYTES;
        SharedStorage& shared = *reinterpret_cast<SharedStorage*>(dynamic_shared + padding);
        const Schedule schedule(args);
        const int warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);
        // The compiler lays out the second branch first: the consumers come to their copies without a jump.
        if (warp == CONSUMING / WARP) {
            const bool elected = elect_one();
            if (elected) {
                prefetch_tensormap(map_a);
                prefetch_tensormap(map_b);
                Base::init_barriers(shared);
                griddepcontrol_launch_dependents();
            }
            __syncwarp();
            barrier_arrive(READY, THREADS);
            if constexpr (CONFIG.cluster_k > 1) cluster_arrive_relaxed();
            if (elected) produce(shared, map_a, map_b, args, schedule);
            if constexpr (CONFIG.cluster_k > 1) {
                __syncwarp();
                cluster_wait();
            }
        } else {
            consume(shared, args, schedule, warp / (WARPGROUP / WARP));
        }
    }
};

// The parameters are those of gemm.cuh, of which the result's tensor map is not read.
template <KernelSpec SPEC, KernelConfig CONFIG, int COPIED>
__global__ void __launch_bounds__(GemmCpAsync<SPEC, CONFIG, COPIED>::THREADS, 1)
    gemm_cp_async_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                         const __grid_constant__ CUtensorMap, const __grid_constant__ Arguments args) {
    static_assert(CONFIG.cluster_size() == 1);
    GemmCpAsync<SPEC, CONFIG, COPIED>::run(&map_a, &map_b, args);
}

template <KernelSpec SPEC, KernelConfig CONFIG, int COPIED>
__global__ void __launch_bounds__(GemmCpAsync<SPEC, CONFIG, COPIED>::THREADS, 1)
    __cluster_dims__(CONFIG.cluster_size(), 1, 1)
    gemm_cp_async_cluster_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                                 const __grid_constant__ CUtensorMap, const __grid_constant__ Arguments args) {
    static_assert(CONFIG.cluster_size() > 1);
    GemmCpAsync<SPEC, CONFIG, COPIED>::run(&map_a, &map_b, args);
}
