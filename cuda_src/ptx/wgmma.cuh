// Warpgroup matrix multiply-accumulate (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
// wgmma_mma_async itself, whose operand list depends on n and the dtype, is generated into "wgmma_mma_async.cuh".
#pragma once
#include "ptx/types.cuh"

// Before the first wgmma_mma_async, and whenever other instructions wrote the accumulators.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving a use of an accumulator above the wait that precedes this.
__device__ __forceinline__ void pin_register(float& value) {
    asm volatile("" : "+f"(value)::"memory");
}

// Has a value computed here, and not where it is used.
__device__ __forceinline__ void pin_register(int& value) {
    asm volatile("" : "+r"(value));
}

// The shared-memory matrix descriptor for 128-byte swizzle (PTX ISA, "Matrix Descriptor Format"); byte offsets are
// multiples of 16. `leading` and `stride` mean: k-major, unused and the step between groups of 8 rows; mn-major, the
// step between 128-byte slabs along mn and the step between groups of 8 along k.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    constexpr uint64_t SWIZZLE_128B = 1ull << 62;
    return SWIZZLE_128B | static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32;
}

// What to add to a descriptor to move its start by `bytes`: shared memory ends below the 14 bits of the address field.
__device__ __forceinline__ constexpr uint64_t descriptor_step(uint32_t bytes) {
    return bytes >> 4;
}
