// Types that NVRTC lacks without headers (<cstdint> and <cuda.h> do not compile there).
#pragma once

using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

// The driver's opaque 128-byte TMA descriptor (CUtensorMap in cuda.h).
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};

// The 32-bit address that shared-memory instructions take (PTX ISA, state space .shared).
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
