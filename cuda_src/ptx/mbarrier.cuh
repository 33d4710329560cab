// mbarrier: one function an instruction (PTX ISA, "Parallel Synchronization and Communication: mbarrier").
#pragma once
#include "ptx/types.cuh"

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other CTAs of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, which also announces `bytes` that TMA will deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// An arrival at the same barrier of another CTA of the cluster (or of this one). The default scope is the CTA's: what
// the arrival hands over was read by WGMMA and is written by TMA, so there is nothing for a wider fence to order, and
// `.release.cluster` costs a MEMBAR.ALL.GPU a stage (62 instead of 44 µs at 2048x2048x4096 on an H200, 2026-11).
__device__ __forceinline__ void mbarrier_arrive_remote(uint64_t* barrier, uint32_t cta_rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(cta_rank)
        : "memory");
}

// The same where what was read or written before must be seen in order by the other CTA: once a tile, not once a stage.
__device__ __forceinline__ void mbarrier_arrive_remote_release(uint64_t* barrier, uint32_t cta_rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(cta_rank)
        : "memory");
}

// Waits until the phase of the given parity has completed. What TMA wrote before its complete_tx is visible after it.
// (Acquire at cluster scope would invalidate L1 at every stage.)
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "wait:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// The same for what other CTAs of the cluster wrote or read before they arrived.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "wait:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
