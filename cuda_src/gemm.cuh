// C[m,n] = A[m,k] · B[k,n] on Hopper: the page to read first, in time order.
//
// One producer warpgroup keeps a ring of stages in shared memory filled by TMA; consumer warpgroups multiply them with
// WGMMA and store the result. Two barriers a stage connect them: `full` (TMA has delivered it) and `empty` (every
// consumer that reads what this CTA multicasts has let go of it). The grid is persistent: each cluster takes tile after
// tile, and the producer runs ahead into the next tile while the consumers store the last one. The consumers divide each
// tile among them, or (ping-pong) take whole tiles by turns, so that one stores while another multiplies.
#pragma once
#include "arguments.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "fusion.cuh"
#include "operand.cuh"
#include "ptx/cluster.cuh"
#include "ptx/griddepcontrol.cuh"
#include "ptx/mbarrier.cuh"
#include "split_k.cuh"
#include "wgmma_mma_async.cuh"

template <KernelSpec SPEC, KernelConfig CONFIG>
struct Gemm : Legal<SPEC, CONFIG> {
    using TileA = OperandTile<SPEC.a_major, SPEC.a_dtype, CONFIG.block_m, CONFIG.block_k, CONFIG.cluster_n>;
    using TileB = OperandTile<SPEC.b_major, SPEC.b_dtype, CONFIG.block_n, CONFIG.block_k, CONFIG.cluster_m>;
    using Store = TmaStore<SPEC, CONFIG>;
    using Sums = PartialSums<CONFIG>;
    static constexpr int MMA_K = MMA_K_BYTES / dtype_bytes(SPEC.a_dtype);
    static constexpr int M_STEPS = CONFIG.consumer_m() / MMA_M;
    static constexpr int N = CONFIG.consumer_n();
    // Consumers that read each stage of this CTA, and consumers that take a tile before one gets its next.
    static constexpr int READERS = CONFIG.ping_pong ? 1 : CONFIG.consumers;
    static constexpr int TURNS = CONFIG.ping_pong ? CONFIG.consumers : 1;
    static constexpr int PRODUCER_WARP = 0;
    // Named barriers; 1 to 3 are the consumers' own (epilogue.cuh).
    static constexpr int READY_TO_PRODUCE = 4;
    static constexpr int READY_TO_CONSUME = 5;
    static constexpr int STORE_BYTES = CONFIG.consumers * CONFIG.store_stages * Store::BUFFER_BYTES;

    struct alignas(SWIZZLE_ATOM_BYTES) SharedStorage {
        uint8_t a[CONFIG.stages][TileA::BYTES];
        uint8_t b[CONFIG.stages][TileB::BYTES];
        uint8_t store[STORE_BYTES > 0 ? STORE_BYTES : 16];
        uint8_t received[CONFIG.cluster_k > 1 ? CONFIG.consumers * Sums::INBOX_BYTES : 16];
        uint64_t full[CONFIG.stages];
        uint64_t empty[CONFIG.stages];
        uint64_t turn[CONFIG.consumers];
        uint64_t sums_full[CONFIG.consumers];
        uint64_t sums_empty[CONFIG.consumers];

        __device__ __forceinline__ typename Sums::Inbox inbox(int consumer) {
            return {received + consumer * Sums::INBOX_BYTES, &sums_full[consumer], &sums_empty[consumer]};
        }
    };

    // Position in the ring: the slot, and the parity of the phase its barriers are in.
    struct RingPosition {
        uint32_t slot = 0;
        uint32_t parity = 0;
        __device__ __forceinline__ void advance() {
            if (++slot == CONFIG.stages) {
                slot = 0;
                parity ^= 1;
            }
        }
        __device__ __forceinline__ void skip(uint32_t stages) {
            slot += stages;
            parity ^= slot / CONFIG.stages & 1;
            slot %= CONFIG.stages;
        }
    };

    // Which tiles this CTA computes: its cluster's share of the grid, and its own place in the cluster.
    struct Schedule {
        const Arguments& args;
        const Raster& raster;
        int rank_m, rank_n, first, step;
        int rank_k, first_rank;  // which share of K, and the rank of the first CTA that has it
        int k_begin, k_end;

        __device__ __forceinline__ Schedule(const Arguments& args)
            : args(args), raster(args.raster) {
            const int rank = CONFIG.cluster_size() == 1 ? 0 : static_cast<int>(cluster_cta_rank());
            rank_m = rank % CONFIG.cluster_m;
            rank_n = rank / CONFIG.cluster_m % CONFIG.cluster_n;
            first = blockIdx.x / CONFIG.cluster_size();
            step = gridDim.x / CONFIG.cluster_size();
            rank_k = CONFIG.cluster_k == 1 ? 0 : rank / CONFIG.cluster_plane();
            first_rank = rank_k * CONFIG.cluster_plane();
            k_begin = 0;
            k_end = args.k;
            if constexpr (CONFIG.cluster_k > 1) {
                k_begin = (rank_k * args.share_stages + min(rank_k, args.longer_shares)) * CONFIG.block_k;
                k_end = min(args.k, k_begin + (args.share_stages + (rank_k < args.longer_shares)) * CONFIG.block_k);
            }
        }
        __device__ __forceinline__ int rank_in_plane() const { return rank_m + CONFIG.cluster_m * rank_n; }
        __device__ __forceinline__ TileIndex element(int t) const {
            int batch = 0;
            if constexpr (SPEC.batched) {
                batch = args.matrix_tiles.quotient(t);
                t -= batch * static_cast<int>(args.matrix_tiles.divisor);
            }
            const TileIndex tile = raster.tile_at(t);
            return {(tile.m * CONFIG.cluster_m + rank_m) * CONFIG.block_m,
                    (tile.n * CONFIG.cluster_n + rank_n) * CONFIG.block_n, batch};
        }
    };

    __device__ __forceinline__ static void init_barriers(SharedStorage& shared) {
        // A slot is free again when the consumers of all CTAs that receive a slice of A or B from this one say so:
        // the CTAs of its cluster row and of its cluster column, itself counted once.
        constexpr int SHARERS = CONFIG.cluster_m + CONFIG.cluster_n - 1;
#pragma unroll
        for (int slot = 0; slot < CONFIG.stages; ++slot) {
            mbarrier_init(&shared.full[slot], 1);
            mbarrier_init(&shared.empty[slot], READERS * SHARERS);
        }
        if constexpr (CONFIG.ping_pong) {
            for (int consumer = 0; consumer < CONFIG.consumers; ++consumer) {
                mbarrier_init(&shared.turn[consumer], WARPGROUP / WARP);
            }
        }
        if constexpr (CONFIG.cluster_k > 1) {
            for (int consumer = 0; consumer < CONFIG.consumers; ++consumer) Sums::init_barriers(shared.inbox(consumer));
        }
        fence_mbarrier_init();
        fence_proxy_async();  // TMA, in the async proxy, is what signals `full`
    }

    // Consumers, while the barriers are made: has the L2 fetch the first stages, which spares the first loads the way to
    // device memory.
    __device__ __forceinline__ static void prefetch(const Arguments& args, const Schedule& schedule) {
        if (args.prefetch == 0) return;
        const TileIndex tile = schedule.element(schedule.first);
        const int depth = min(schedule.k_end - schedule.k_begin, args.prefetch * CONFIG.block_k);
        const int thread = threadIdx.x - WARPGROUP;
        constexpr int THREADS = CONFIG.consumers * WARPGROUP;
        const uint8_t *a = args.a, *b = args.b;
        if constexpr (SPEC.batched) {
            a += tile.batch * args.a_batch_bytes;
            b += tile.batch * args.b_batch_bytes;
        }
        TileA::prefetch(a, args.a_row_bytes, tile.m, args.m, schedule.k_begin, depth, thread, THREADS);
        TileB::prefetch(b, args.b_row_bytes, tile.n, args.n, schedule.k_begin, depth, thread, THREADS);
    }

    // One thread: waits for a free slot, announces the bytes, starts the copies.
    __device__ __forceinline__ static void produce(SharedStorage& shared, const CUtensorMap* map_a,
                                                   const CUtensorMap* map_b, const Arguments& args,
                                                   const Schedule& schedule, TileIndex tile) {
        // Rank is first_rank + rank_m + cluster_m · rank_n. Of the CTAs that have the same share of K, a cluster row (same
        // rank_m) shares A, and a column (same rank_n) shares B.
        uint16_t row_mask = 0;
        for (int peer = 0; peer < CONFIG.cluster_n; ++peer) {
            row_mask |= 1u << (schedule.first_rank + schedule.rank_m + CONFIG.cluster_m * peer);
        }
        const int first_of_column = schedule.first_rank + CONFIG.cluster_m * schedule.rank_n;
        const uint16_t column_mask = ((1u << CONFIG.cluster_m) - 1) << first_of_column;
        RingPosition ring;
        // Until here nothing that another kernel writes has been read, and nothing is written before the first load.
        griddepcontrol_wait();
        for (int t = schedule.first; t < schedule.raster.tiles;) {
#pragma unroll 1  // unrolled, it spills where the producer has 24 registers
            for (int k = schedule.k_begin; k < schedule.k_end; k += CONFIG.block_k) {
                // Wait for the consumers (of all sharers) to let go of the slot; passes at once the first time round.
                mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
                uint64_t* full = &shared.full[ring.slot];
                // Whole boxes are counted, also where they hang over the edge: TMA fills those with zeros. The peers'
                // slices count too; they may arrive before this announcement, which leaves the phase open.
                mbarrier_arrive_expect_tx(full, args.loaded_bytes);
                TileA::template load<SPEC.batched>(shared.a[ring.slot], map_a, full, tile.m, k,
                                                   tile.batch * args.a_step, schedule.rank_n, row_mask, args.policy_a);
                TileB::template load<SPEC.batched>(shared.b[ring.slot], map_b, full, tile.n, k,
                                                   tile.batch * args.b_step, schedule.rank_m, column_mask,
                                                   args.policy_b);
                ring.advance();
            }
            t += schedule.step;
            if (t < schedule.raster.tiles) tile = schedule.element(t);
        }
        // No CTA may leave while a peer can still signal its barriers: wait until every slot has been let go by all. What
        // peers multicast into this CTA has arrived by then, since its own consumers waited for it. (Partial sums have
        // their own barriers: PartialSums::exchange.)
        if constexpr (CONFIG.cluster_plane() > 1) {
            for (int slot = 0; slot < CONFIG.stages; ++slot) {
                mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
                ring.advance();
            }
        }
    }

    // Tells every producer that writes into this CTA's slot (its cluster row and column) that this consumer is done. One
    // warp speaks for four: a WGMMA of the slot cannot have ended before all four have issued it, so none of them still
    // waits for `full`.
    __device__ __forceinline__ static void release(SharedStorage& shared, uint32_t slot, const Schedule& schedule) {
        const int thread = threadIdx.x % WARPGROUP;
        if constexpr (CONFIG.cluster_plane() == 1) {
            if (thread == 0) mbarrier_arrive(&shared.empty[slot]);
        } else {
            const bool in_column = thread / CONFIG.cluster_m == schedule.rank_n;
            const bool in_row = thread % CONFIG.cluster_m == schedule.rank_m;
            if (thread < CONFIG.cluster_plane() && (in_column || in_row)) {
                mbarrier_arrive_remote(&shared.empty[slot], schedule.first_rank + thread);
            }
        }
    }

    // Issues the WGMMAs of one stage, whose parts for this consumer start at the descriptors a and b. `accumulate` is
    // false for the first stage of a tile, which overwrites.
    __device__ __forceinline__ static void multiply(uint64_t a, uint64_t b, float (&d)[M_STEPS][N / 2], bool accumulate) {
        constexpr int TRANSPOSE_A = SPEC.a_major == Major::mn;
        constexpr int TRANSPOSE_B = SPEC.b_major == Major::mn;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < CONFIG.block_k; k += MMA_K) {
#pragma unroll
            for (int step = 0; step < M_STEPS; ++step) {
                wgmma_mma_async<TRANSPOSE_A, TRANSPOSE_B>(d[step], a + descriptor_step(TileA::offset(step * MMA_M, k)),
                                                          b + descriptor_step(TileB::offset(0, k)),
                                                          accumulate || k > 0);
            }
        }
        wgmma_commit_group();
    }

    // Does what the epilogue says to a consumer's rows of COLUMNS columns, and stores them, except from column `end` on.
    template <int COLUMNS>
    __device__ __forceinline__ static void store(float (&d)[M_STEPS][COLUMNS / 2], const CUtensorMap* map_c,
                                                 const Arguments& args, uint8_t* buffers, uint32_t& store_turn,
                                                 TileIndex at, int consumer, int end) {
        uint8_t* out = args.out;
        if constexpr (SPEC.batched) out += at.batch * args.out_batch_stride * dtype_bytes(SPEC.out_dtype);
        // The producer's wait is not the consumers'.
        if constexpr (SPEC.epilogue.any()) griddepcontrol_wait();
#pragma unroll
        for (int step = 0; step < M_STEPS; ++step) {
            const TileIndex part{at.m + step * MMA_M, at.n, at.batch};
            if constexpr (SPEC.epilogue.any()) {
                Fusion<SPEC>::template apply<COLUMNS>(d[step], args, part.batch, part.m, part.n);
            }
            if constexpr (CONFIG.store_stages > 0) {
                Store::template store<COLUMNS>(d[step], map_c, args.policy_out, buffers, store_turn, part, consumer);
            } else {
                DirectStore<SPEC.out_dtype>::template store<COLUMNS>(d[step], out, args.out_row_stride, part.m, part.n,
                                                                     args.m, end);
            }
        }
    }

    // One warpgroup: multiplies stage after stage, lets each go, and stores the tile.
    __device__ __forceinline__ static void consume(SharedStorage& shared, const CUtensorMap* map_c,
                                                   const Arguments& args, const Schedule& schedule, int consumer) {
        const int row = CONFIG.split_n || CONFIG.ping_pong ? 0 : consumer * CONFIG.consumer_m();
        const int column = CONFIG.split_n ? consumer * N : 0;
        uint8_t* buffers = shared.store + consumer * CONFIG.store_stages * Store::BUFFER_BYTES;
        uint32_t store_turn = 0;
        const uint64_t first_a = TileA::descriptor(shared.a[0], row);
        const uint64_t first_b = TileB::descriptor(shared.b[0], column);
        // Zeros, though every tile's first stage overwrites: without them NVRTC before 12.9 serialises the WGMMAs.
        float d[M_STEPS][N / 2] = {};
        RingPosition ring;
        // With ping-pong the stages of the other consumers' tiles lie between this one's.
        const int turn = CONFIG.ping_pong ? consumer : 0;
        const int tile_stages = ceil_div(args.k, CONFIG.block_k);
        if constexpr (CONFIG.ping_pong) ring.skip(turn * tile_stages);
        uint32_t turn_parity = turn == 0;  // nobody goes before the first consumer's first tile
        uint32_t tile_parity = 0;
        for (int t = schedule.first + turn * schedule.step; t < schedule.raster.tiles; t += TURNS * schedule.step) {
            // Computed here, where its divisions overlap the first loads, and not between the last WGMMA and the store.
            TileIndex tile = schedule.element(t);
            pin_register(tile.m);
            pin_register(tile.n);
            if constexpr (SPEC.batched) pin_register(tile.batch);
            // Wait until the consumer before has seen all its stages arrive. A barrier tells one phase from the next
            // only: waiting for `full` further ahead would take the other's stage for this one's.
            if constexpr (CONFIG.ping_pong) mbarrier_wait(&shared.turn[consumer], turn_parity);
            uint32_t previous = ring.slot;
            for (int k = schedule.k_begin; k < schedule.k_end; k += CONFIG.block_k) {
                // Wait for TMA to deliver the slot.
                mbarrier_wait(&shared.full[ring.slot], ring.parity);
                multiply(first_a + ring.slot * descriptor_step(TileA::BYTES),
                         first_b + ring.slot * descriptor_step(TileB::BYTES), d, k > schedule.k_begin);
                // Let go of the newest slot that no WGMMA in flight still reads.
                wgmma_wait_group<CONFIG.wait_depth>();
                if constexpr (CONFIG.wait_depth == 0) {
                    release(shared, ring.slot, schedule);
                } else {
                    if (k > schedule.k_begin) release(shared, previous, schedule);
                    previous = ring.slot;
                }
                ring.advance();
            }
            if constexpr (CONFIG.ping_pong) {
                // The next consumer's turn: its WGMMAs queue behind these, and this one goes on to store. Each warp
                // says so for itself: one that still waited for this turn when the next but one began would miss it.
                const int next = consumer + 1 == CONFIG.consumers ? 0 : consumer + 1;
                if (threadIdx.x % WARP == 0) mbarrier_arrive(&shared.turn[next]);
                turn_parity ^= 1;
            }
            if constexpr (CONFIG.wait_depth > 0) {
                wgmma_wait_group<0>();
                if (CONFIG.cluster_k == 1 || schedule.k_begin < schedule.k_end) release(shared, previous, schedule);
            }
#pragma unroll
            for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
                for (int i = 0; i < N / 2; ++i) pin_register(d[step][i]);
            }
            TileIndex own{tile.m + row, tile.n + column, tile.batch};
            if constexpr (CONFIG.cluster_k == 1) {
                store<N>(d, map_c, args, buffers, store_turn, own, consumer, args.n);
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
                Sums::exchange(shared.inbox(consumer), d, part, schedule.rank_k,
                               schedule.rank_in_plane(), tile_parity, t == schedule.first,
                               t + schedule.step >= schedule.raster.tiles);
                tile_parity ^= 1;
                const int end = min(args.n, own.n + N);
                own.n += schedule.rank_k * PART_N;
                store<PART_N>(part, map_c, args, buffers, store_turn, own, consumer, end);
            }
            if constexpr (CONFIG.ping_pong) ring.skip((TURNS - 1) * tile_stages);
        }
        // Shared memory must outlive TMA's reads of it.
        if constexpr (CONFIG.store_stages > 0) {
            if (threadIdx.x % WARPGROUP == 0) bulk_wait_group_read<0>();
        }
    }

    __device__ __forceinline__ static void run(const CUtensorMap* map_a, const CUtensorMap* map_b,
                                               const CUtensorMap* map_c, const Arguments& args) {
        // First of all: no cache has them yet, and the first load waits for them.
        if (threadIdx.x == 0) {
            prefetch_tensormap(map_a);
            prefetch_tensormap(map_b);
            if constexpr (CONFIG.store_stages > 0) prefetch_tensormap(map_c);
            griddepcontrol_launch_dependents();
        }
        // The runtime aligns dynamic shared memory to 16 bytes only; the launch asks for one atom more.
        extern __shared__ uint8_t dynamic_shared[];
        const uint32_t base = shared_address(dynamic_shared);
        const uint32_t padding = (SWIZZLE_ATOM_BYTES - base % SWIZZLE_ATOM_BYTES) % SWIZZLE_ATOM_BYTES;
        SharedStorage& shared = *reinterpret_cast<SharedStorage*>(dynamic_shared + padding);
        const Schedule schedule(args);
        // Shuffled, so that the compiler knows it is the same in all lanes and keeps what follows in uniform registers.
        const int warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);

        // Two warps, so that neither waits for the other; all the first load needs is ready by the barrier below.
        TileIndex first{};
        if (warp == PRODUCER_WARP) {
            first = schedule.element(schedule.first);
            pin_register(first.m);
            pin_register(first.n);
            if constexpr (SPEC.batched) pin_register(first.batch);
        }
        if (warp == PRODUCER_WARP + 1 && elect_one()) init_barriers(shared);
        __syncwarp();
        const bool consumes = warp >= WARPGROUP / WARP;
        if constexpr (CONFIG.cluster_size() > 1) {
            // No CTA may signal or multicast into another before the barriers there exist.
            cluster_arrive_relaxed();
            if (consumes) prefetch(args, schedule);
            __syncwarp();
            cluster_wait();
        } else if (consumes) {
            prefetch(args, schedule);
            __syncwarp();
            barrier_sync(READY_TO_CONSUME, WARP + CONFIG.consumers * WARPGROUP);
        } else if (warp <= PRODUCER_WARP + 1) {
            // The producer does not wait for the consumers, who have other things to do.
            if (warp == PRODUCER_WARP + 1) barrier_arrive(READY_TO_CONSUME, WARP + CONFIG.consumers * WARPGROUP);
            barrier_sync(READY_TO_PRODUCE, 2 * WARP);
        }

        // The compiler lays out the second branch first: the producer's instructions then follow those above, which have
        // been fetched, and the first load does not wait for more.
        if (consumes) {
            setmaxnreg_inc<CONFIG.consumer_registers()>();
            consume(shared, map_c, args, schedule, warp / (WARPGROUP / WARP) - 1);
        } else {
            // Every warp of the producer gives up registers, also the three that only wait.
            setmaxnreg_dec<CONFIG.producer_registers>();
            if (warp == PRODUCER_WARP && elect_one()) produce(shared, map_a, map_b, args, schedule, first);
        }
    }
};

template <KernelSpec SPEC, KernelConfig CONFIG>
__global__ void __launch_bounds__(CONFIG.threads(), 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ CUtensorMap map_c, const __grid_constant__ Arguments args) {
    static_assert(CONFIG.cluster_size() == 1);
    Gemm<SPEC, CONFIG>::run(&map_a, &map_b, &map_c, args);
}

// The same with a cluster. A kernel without one carries no cluster attribute: even 1x1x1 costs speed (H100, CUTLASS
// issue 1673).
template <KernelSpec SPEC, KernelConfig CONFIG>
__global__ void __launch_bounds__(CONFIG.threads(), 1) __cluster_dims__(CONFIG.cluster_size(), 1, 1)
    gemm_cluster_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                        const __grid_constant__ CUtensorMap map_c, const __grid_constant__ Arguments args) {
    static_assert(CONFIG.cluster_size() > 1);
    Gemm<SPEC, CONFIG>::run(&map_a, &map_b, &map_c, args);
}
