// CTAs of a cluster that divide K (`cluster_k`): each has a partial sum of the whole tile, and stores one part of its columns.
// It sends the other parts to those who store them, through distributed shared memory, and adds up what it is sent.
#pragma once
#include "config.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

template <KernelConfig CONFIG>
struct PartialSums {
    static constexpr int M_STEPS = CONFIG.consumer_m() / MMA_M;
    static constexpr int PEERS = CONFIG.cluster_k - 1;
    // A vector is four accumulators of each thread: 64 rows of 8 columns. The last parts may have fewer, or none.
    static constexpr int VECTORS = CONFIG.consumer_n() / 8;
    static constexpr int PART_VECTORS = CONFIG.part_n() / 8;
    static constexpr int PART_BYTES = M_STEPS * PART_VECTORS * WARPGROUP * 16;
    static constexpr int INBOX_BYTES = PEERS * PART_BYTES;  // of one consumer

    // A consumer's inbox and its barriers.
    struct Inbox {
        uint8_t* received;
        uint64_t* full;   // all peers' parts have come
        uint64_t* empty;  // all peers have read what this consumer sent them
    };

    __device__ __forceinline__ static void init_barriers(const Inbox& inbox) {
        mbarrier_init(inbox.full, 1);
        mbarrier_init(inbox.empty, PEERS * WARPGROUP / WARP);
    }

    // The sum of this CTA's part, of this and all peers' accumulators, added in the order of the shares of K: the same
    // bits whoever comes first. `parity` is that of the tile's number. After the last tile a CTA may leave: all that its
    // peers send has arrived, and they tell it nothing more.
    __device__ __forceinline__ static void exchange(const Inbox& inbox, const float (&d)[M_STEPS][CONFIG.consumer_n() / 2],
                                                    float (&part)[M_STEPS][CONFIG.part_n() / 2], int rank_k,
                                                    int rank_in_plane, uint32_t parity, bool is_first, bool is_last) {
        const int thread = threadIdx.x % WARPGROUP;
        const uint32_t slot = shared_address(inbox.received) + thread * 16;
        const int own_vectors = max(0, min(PART_VECTORS, VECTORS - rank_k * PART_VECTORS));
        // A CTA without a part is sent nothing. It must not end phases of `full` by itself either: nothing would keep its
        // warps from falling more than one phase apart.
        const bool has_part = own_vectors > 0;
        if (has_part && thread == 0) {
            mbarrier_arrive_expect_tx(inbox.full, PEERS * M_STEPS * own_vectors * WARPGROUP * 16);
        }
        // Wait until the peers have read the tile before.
        if (!is_first) mbarrier_wait_cluster(inbox.empty, parity ^ 1);
#pragma unroll
        for (int to = 0; to < CONFIG.cluster_k; ++to) {
            const uint32_t cta = rank_in_plane + CONFIG.cluster_plane() * to;
            const uint32_t remote = mapa(slot + place(rank_k, to) * PART_BYTES, cta);
            const uint32_t remote_full = mapa(shared_address(inbox.full), cta);
#pragma unroll
            for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
                for (int v = 0; v < PART_VECTORS; ++v) {
                    if (to * PART_VECTORS + v >= VECTORS) continue;
                    const float* from = &d[step][(to * PART_VECTORS + v) * 4];
                    if (to == rank_k) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) part[step][v * 4 + i] = from[i];
                    } else {
                        st_async_v4(remote + offset(step, v), from[0], from[1], from[2], from[3], remote_full);
                    }
                }
            }
        }
        // Wait for the parts of all peers.
        if (has_part) mbarrier_wait_cluster(inbox.full, parity);
#pragma unroll
        for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
            for (int v = 0; v < PART_VECTORS; ++v) {
                float* own = &part[step][v * 4];
                float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
                for (int from = 0; from < CONFIG.cluster_k; ++from) {
                    float4 term = make_float4(own[0], own[1], own[2], own[3]);
                    if (from != rank_k) term = ld_shared_v4(slot + place(from, rank_k) * PART_BYTES + offset(step, v));
                    sum = make_float4(sum.x + term.x, sum.y + term.y, sum.z + term.z, sum.w + term.w);
                }
                own[0] = sum.x, own[1] = sum.y, own[2] = sum.z, own[3] = sum.w;
            }
        }
        if (is_last) return;
        // Tell each peer, once for each warp, that its part has been read.
        __syncwarp();
        const int lane = thread % WARP;
        if (lane < CONFIG.cluster_k && lane != rank_k) {
            mbarrier_arrive_remote_release(inbox.empty, rank_in_plane + CONFIG.cluster_plane() * lane);
        }
    }

    // Where a vector lies in a part.
    __device__ __forceinline__ static constexpr int offset(int step, int v) {
        return (step * PART_VECTORS + v) * WARPGROUP * 16;
    }
    // Where, in the inbox of CTA `to`, the part lies that CTA `from` sends: a CTA sends nothing to itself.
    __device__ __forceinline__ static int place(int from, int to) { return from < to ? from : from - 1; }
};
