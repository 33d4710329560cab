// CTAs of a cluster that divide K: each has a partial sum of the whole tile, and stores one part of its columns. It sends
// the other parts to those who store them, through distributed shared memory, and adds up what it is sent.
#pragma once
#include "config.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

template <KernelConfig CONFIG>
struct PartialSums {
    static constexpr int M_STEPS = CONFIG.consumer_m() / MMA_M;
    static constexpr int PEERS = CONFIG.cluster_k - 1;
    // Of one part: accumulators of a thread for each 64 rows, and vectors of four for all rows.
    static constexpr int VALUES = CONFIG.part_n() / 2;
    static constexpr int VECTORS = M_STEPS * VALUES / 4;
    static constexpr int PART_BYTES = VECTORS * WARPGROUP * 16;

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

    // The sum of this CTA's part, of this and all peers' accumulators, added in the order of the slices of K: the same
    // bits whoever comes first. `parity` is that of the tile's number.
    __device__ __forceinline__ static void exchange(const Inbox& inbox, const float (&d)[M_STEPS][CONFIG.consumer_n() / 2],
                                                    float (&part)[M_STEPS][VALUES], int rank_k, int rank_in_plane,
                                                    uint32_t parity) {
        const int thread = threadIdx.x % WARPGROUP;
        const uint32_t slot = shared_address(inbox.received) + thread * 16;
        if (thread == 0) mbarrier_arrive_expect_tx(inbox.full, INBOX_BYTES);
        // Wait until the peers have read the tile before; passes at once for the first.
        mbarrier_wait_cluster(inbox.empty, parity ^ 1);
#pragma unroll
        for (int to = 0; to < CONFIG.cluster_k; ++to) {
            if (to == rank_k) {
#pragma unroll
                for (int step = 0; step < M_STEPS; ++step) {
#pragma unroll
                    for (int i = 0; i < VALUES; ++i) part[step][i] = d[step][to * VALUES + i];
                }
                continue;
            }
            const uint32_t cta = rank_in_plane + CONFIG.cluster_plane() * to;
            const uint32_t remote = mapa(slot + place(rank_k, to) * PART_BYTES, cta);
            const uint32_t remote_full = mapa(shared_address(inbox.full), cta);
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                const float* from = &d[v * 4 / VALUES][to * VALUES + v * 4 % VALUES];
                st_async_v4(remote + v * WARPGROUP * 16, from[0], from[1], from[2], from[3], remote_full);
            }
        }
        // Wait for the parts of all peers.
        mbarrier_wait_cluster(inbox.full, parity);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            float* own = &part[v * 4 / VALUES][v * 4 % VALUES];
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int from = 0; from < CONFIG.cluster_k; ++from) {
                float4 term = make_float4(own[0], own[1], own[2], own[3]);
                if (from != rank_k) term = ld_shared_v4(slot + place(from, rank_k) * PART_BYTES + v * WARPGROUP * 16);
                sum = make_float4(sum.x + term.x, sum.y + term.y, sum.z + term.z, sum.w + term.w);
            }
            own[0] = sum.x, own[1] = sum.y, own[2] = sum.z, own[3] = sum.w;
        }
        // Tell each peer, once for each warp, that its part has been read.
        __syncwarp();
        const int lane = thread % WARP;
        if (lane < CONFIG.cluster_k && lane != rank_k) {
            mbarrier_arrive_remote_release(inbox.empty, rank_in_plane + CONFIG.cluster_plane() * lane);
        }
    }

    // No CTA may leave while a peer can still write or arrive: wait until all have read the last tile's parts.
    __device__ __forceinline__ static void drain(const Inbox& inbox, uint32_t parity) {
        mbarrier_wait_cluster(inbox.empty, parity ^ 1);
    }

    // Where, in the inbox of CTA `to`, the part lies that CTA `from` sends: a CTA sends nothing to itself.
    __device__ __forceinline__ static int place(int from, int to) { return from < to ? from : from - 1; }
};
