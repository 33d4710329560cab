// Copies of 16 bytes from global to shared memory by the threads themselves: one function an instruction (PTX ISA,
// "cp.async"). Without L2 cache hints: ptxas before 13.4 encodes some copies that have one as other instructions (seen
// with 13.0 where few registers are left; triton-lang/triton issue 11660).
#pragma once
#include "ptx/types.cuh"

__device__ __forceinline__ void cp_async_16(uint32_t shared, const uint8_t* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Copies the first `bytes` of 16 and zeros the others; of 0 bytes nothing is read.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const uint8_t* global, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
}

// Ends a group: the copies that this thread has begun since the group before, or none.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING groups of this thread have been copied.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
