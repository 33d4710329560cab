// Clusters, named barriers, election and register reallocation: one function an instruction.
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
