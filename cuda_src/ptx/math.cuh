// Arithmetic of epilogues.
#pragma once
#include "ptx/types.cuh"

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x / (1 + e^-u), within 2^-20 of |x|. Where e^-u is too large the reciprocal is 0, and so is the result.
__device__ __forceinline__ float times_sigmoid(float x, float u) {
    return x * reciprocal_approx(1.0f + exp2_approx(-1.44269504f * u));
}

// Two halves of a register as fp32.
__device__ __forceinline__ float2 unpack_f16x2(uint32_t bits) {
    float2 values;
    asm("{\n.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n}"
        : "=f"(values.x), "=f"(values.y)
        : "r"(bits));
    return values;
}

__device__ __forceinline__ float2 unpack_bf16x2(uint32_t bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u));
}
