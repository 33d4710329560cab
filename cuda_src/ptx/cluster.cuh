// Clusters, distributed shared memory, named barriers, election and register reallocation: one function an instruction.
#pragma once
#include "ptx/types.cuh"

__device__ __forceinline__ uint32_t cluster_cta_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Orders nothing by itself: what the peers must see has its own fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier of `threads` threads of the CTA; identifier 0 is __syncthreads().
__device__ __forceinline__ void barrier_sync(uint32_t identifier, uint32_t threads) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

// The same for threads that need not wait.
__device__ __forceinline__ void barrier_arrive(uint32_t identifier, uint32_t threads) {
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// True in one lane of a warp whose lanes are all here. The compiler knows that it is one, and so that what it computes
// is uniform: under `threadIdx.x == 0` each TMA instruction stands in a loop over the lanes.
__device__ __forceinline__ bool elect_one() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        "elect.sync _|elected, 0xffffffff;\n"
        "selp.b32 %0, 1, 0, elected;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

// The address, in the shared memory of another CTA of the cluster, of what lies at `address` in this one's.
__device__ __forceinline__ uint32_t mapa(uint32_t address, uint32_t cta_rank) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta_rank));
    return remote;
}

// Stores to another CTA's shared memory; its barrier there takes off the 16 bytes once they can be seen.
__device__ __forceinline__ void st_async_v4(uint32_t remote, float x, float y, float z, float w, uint32_t remote_barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
        "f"(x), "f"(y), "f"(z), "f"(w), "r"(remote_barrier)
        : "memory");
}

__device__ __forceinline__ float4 ld_shared_v4(uint32_t address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
