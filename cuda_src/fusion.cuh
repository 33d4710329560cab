// What an epilogue does to the accumulators, in registers, before they are stored:
//
//   out = activation(alpha · (a · b) + bias + beta · residual)
//
// in fp32. Bias and residual have the result's dtype.
#pragma once
#include "arguments.cuh"
#include "config.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"

template <Activation ACTIVATION>
__device__ __forceinline__ float activated(float x) {
    if constexpr (ACTIVATION == Activation::relu) return x < 0.0f ? 0.0f : x;  // NaN stays
    if constexpr (ACTIVATION == Activation::gelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    if constexpr (ACTIVATION == Activation::gelu_tanh) {
        // 0.5 · x · (1 + tanh(u)) is x · sigmoid(2u).
        return times_sigmoid(x, x * (1.5957691f + 0.071354816f * x * x));
    }
    if constexpr (ACTIVATION == Activation::silu) return times_sigmoid(x, x);
    return x;
}

template <KernelSpec SPEC>
struct Fusion {
    static constexpr Epilogue EPILOGUE = SPEC.epilogue;
    static constexpr int OUT_BYTES = dtype_bytes(SPEC.out_dtype);

    // Two elements of the result's dtype from `index` on. Where rows of the result are aligned, n is even, and the launch
    // has seen to it that bias and residual are aligned to pairs. (Where it is stored transposed nothing is read so.)
    __device__ __forceinline__ static float2 pair_at(const uint8_t* matrix, int64_t index, int to_second) {
        const uint8_t* at = matrix + index * OUT_BYTES;
        if constexpr (SPEC.out_dtype == DType::float32) {
            if constexpr (SPEC.out_aligned) return *reinterpret_cast<const float2*>(at);
            const float* values = reinterpret_cast<const float*>(at);
            return make_float2(values[0], values[to_second]);
        } else {
            uint32_t bits;
            if constexpr (SPEC.out_aligned) {
                bits = *reinterpret_cast<const uint32_t*>(at);
            } else {
                const uint16_t* values = reinterpret_cast<const uint16_t*>(at);
                bits = values[0] | static_cast<uint32_t>(values[to_second]) << 16;
            }
            return SPEC.out_dtype == DType::float16 ? unpack_f16x2(bits) : unpack_bf16x2(bits);
        }
    }

    // Replaces 64 rows of COLUMNS columns at (m, n) of the product by what is to be stored; the fragment is that of
    // epilogue.cuh. Beyond the last row and column, where nothing is stored, the last ones are read again.
    template <int COLUMNS>
    __device__ __forceinline__ static void apply(float (&d)[COLUMNS / 2], const Arguments& args, int batch, int m,
                                                 int n) {
        const int thread = threadIdx.x % WARPGROUP;
        const int row = m + thread / WARP * 16 + thread % WARP / 4;
        const int first_column = n + thread % 4 * 2;
        float row_bias[2] = {};
        int64_t residual_row[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int own = min(row + 8 * half, args.m - 1);
            if constexpr (EPILOGUE.bias == Bias::m) row_bias[half] = scalar_at(args.bias, own);
            residual_row[half] = batch * args.residual_batch_stride + own * args.residual_row_stride;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
            const int column = min(first_column + 8 * j, args.n - (SPEC.out_aligned ? 2 : 1));
            const int to_second = column + 1 < args.n;
            float2 column_bias = make_float2(0.0f, 0.0f);
            if constexpr (EPILOGUE.bias == Bias::n) column_bias = pair_at(args.bias, column, to_second);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float2 added = make_float2(column_bias.x + row_bias[half], column_bias.y + row_bias[half]);
                if constexpr (EPILOGUE.residual) {
                    const float2 found = pair_at(args.residual, residual_row[half] + column, to_second);
                    added.x += args.beta * found.x;
                    added.y += args.beta * found.y;
                }
                float* value = &d[4 * j + 2 * half];
                value[0] = activated<EPILOGUE.activation>(args.alpha * value[0] + added.x);
                value[1] = activated<EPILOGUE.activation>(args.alpha * value[1] + added.y);
            }
        }
    }

    __device__ __forceinline__ static float scalar_at(const uint8_t* vector, int index) {
        const uint8_t* at = vector + static_cast<int64_t>(index) * OUT_BYTES;
        if constexpr (SPEC.out_dtype == DType::float32) return *reinterpret_cast<const float*>(at);
        const uint32_t bits = *reinterpret_cast<const uint16_t*>(at);
        return SPEC.out_dtype == DType::float16 ? unpack_f16x2(bits).x : unpack_bf16x2(bits).x;
    }
};
