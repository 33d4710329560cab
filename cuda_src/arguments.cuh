// What a launch tells the kernel, beside the tensor maps: `_Arguments` of cupygemm/kernels/kernel_plan.py.
#pragma once
#include "raster.cuh"

// Sizes in elements. `out` and its row stride are used where TMA does not store. `loaded_bytes` is what TMA delivers of a
// stage: less than its tiles hold where boxes leave out rows that A or B does not have. The policies are L2 cache hints.
// `prefetch` stages of the first tile are fetched from `a` and `b` into the L2 before TMA asks for them.
// Where K is divided, a share has `share_stages` stages, and the first `longer_shares` one more.
// Of several products each has `matrix_tiles`; `a_step` and `b_step` are 0 for an operand that all of them share, else 1.
// From `bias` on it is what fusion.cuh says.
struct Arguments {
    uint8_t* out;
    int64_t out_row_stride;
    int m;
    int n;
    int k;
    int loaded_bytes;
    int share_stages;
    int longer_shares;
    int prefetch;
    Raster raster;
    uint64_t policy_a;
    uint64_t policy_b;
    uint64_t policy_out;
    const uint8_t* a;
    const uint8_t* b;
    int64_t a_row_bytes;
    int64_t b_row_bytes;
    Divisor matrix_tiles;
    int a_step;
    int b_step;
    int64_t a_batch_bytes;
    int64_t b_batch_bytes;
    int64_t out_batch_stride;
    const uint8_t* bias;
    const uint8_t* residual;
    int64_t residual_row_stride;
    int64_t residual_batch_stride;
    float alpha;
    float beta;
};
