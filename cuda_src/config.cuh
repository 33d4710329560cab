// KernelSpec and KernelConfig: the same structs, fields and order as cupygemm/config.py, used as template values. Of a
// config only what is compiled is here: the rest (order of tiles, L2 hints) reaches the kernel in Arguments.
// What is said of legality there and does not depend on the device is repeated here as static_asserts.
#pragma once
#include "ptx/types.cuh"

enum class DType : int { float16, bfloat16, float32, float8_e4m3fn, float8_e5m2 };
enum class Major : int { k, mn };
enum class Scales : int { none };
enum class Bias : int { none, n, m };
enum class Activation : int { none, relu, gelu, gelu_tanh, silu };

constexpr int WARP = 32;
constexpr int WARPGROUP = 128;
constexpr int MMA_M = 64;
constexpr int MMA_K_BYTES = 32;
constexpr int SWIZZLE_BYTES = 128;
constexpr int SWIZZLE_ATOM_BYTES = 1024;
constexpr int MAX_STAGES = 16;
constexpr int MAX_CLUSTER = 8;
constexpr int MOST_STORED_ROWS = 104;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

constexpr int dtype_bytes(DType dtype) {
    switch (dtype) {
        case DType::float32: return 4;
        case DType::float16:
        case DType::bfloat16: return 2;
        default: return 1;
    }
}

// What is done to the accumulators before they are stored: cupygemm/epilogue.py.
struct Epilogue {
    Bias bias;
    bool residual;
    Activation activation;
    bool scaled;

    constexpr bool any() const {
        return bias != Bias::none || residual || activation != Activation::none || scaled;
    }
};

struct KernelSpec {
    DType a_dtype;
    DType b_dtype;
    DType out_dtype;
    Major a_major;
    Major b_major;
    DType accumulate;
    Scales scales;
    Epilogue epilogue;
    bool out_aligned;
    bool batched;
    // With swap_ab a kernel computes Cᵀ = Bᵀ · Aᵀ, and all that it calls a, b, m and n is of that product.
    bool out_transposed;
};

struct KernelConfig {
    int block_m;
    int block_n;
    int block_k;
    int stages;
    int consumers;
    bool split_n;
    int cluster_m;
    int cluster_n;
    int producer_registers;
    int wait_depth;
    int store_stages;
    bool ping_pong;
    int cluster_k;

    constexpr int cluster_plane() const { return cluster_m * cluster_n; }
    constexpr int cluster_size() const { return cluster_plane() * cluster_k; }
    constexpr int threads() const { return WARPGROUP * (1 + consumers); }
    constexpr int consumer_m() const { return split_n || ping_pong ? block_m : block_m / consumers; }
    constexpr int consumer_n() const { return split_n ? block_n / consumers : block_n; }
    constexpr int part_n() const { return ceil_div(consumer_n() / 8, cluster_k) * 8; }
    constexpr int accumulators() const { return consumer_m() * consumer_n() / WARPGROUP; }
    // setmaxnreg redistributes what the CTA was launched with; a sum above that pool deadlocks.
    constexpr int consumer_registers() const {
        const int at_launch = 65536 / threads();
        const int pool = (at_launch < 255 ? at_launch : 255) / 8 * 8 * (1 + consumers);
        const int share = (pool - producer_registers) / consumers / 8 * 8;
        return share < 248 ? share : 248;
    }
};

// Columns of the sub-tile that one TMA store writes: the widest of 128, 64, 32 or 16 bytes that divides part_n. Transposed
// they are rows, of 128 bytes: the most eights up to 104 that divide part_n, or where those are few as many as make the
// fewest sub-tiles, of which the last one overlaps the one before.
template <KernelSpec SPEC, KernelConfig CONFIG>
constexpr int store_columns() {
    if (SPEC.out_transposed) {
        int rows = CONFIG.part_n() < MOST_STORED_ROWS ? CONFIG.part_n() : MOST_STORED_ROWS;
        while (CONFIG.part_n() % rows != 0) rows -= 8;
        if (rows == CONFIG.part_n() || 2 * rows > MOST_STORED_ROWS) return rows;
        return ceil_div(ceil_div(CONFIG.part_n(), ceil_div(CONFIG.part_n(), MOST_STORED_ROWS)), 8) * 8;
    }
    const int out_bytes = dtype_bytes(SPEC.out_dtype);
    for (int row_bytes = 128; row_bytes > 16; row_bytes /= 2) {
        if (CONFIG.part_n() % (row_bytes / out_bytes) == 0) return row_bytes / out_bytes;
    }
    return 16 / out_bytes;
}

constexpr bool slices_evenly(int rows, int block_k, Major major, DType dtype, int peers) {
    const int slabs = ceil_div(rows, SWIZZLE_BYTES / dtype_bytes(dtype));
    const int sliced = major == Major::k ? rows : block_k;
    return (major == Major::mn && slabs % peers == 0) || sliced % (8 * peers) == 0;
}

constexpr bool is_cluster_extent(int extent) { return extent == 1 || extent == 2 || extent == 4 || extent == 8; }

template <KernelSpec S, KernelConfig C>
struct Legal {
    static_assert(S.a_dtype == S.b_dtype && (S.a_dtype == DType::float16 || S.a_dtype == DType::bfloat16),
                  "dtypes: both operands float16 or both bfloat16");
    static_assert(S.out_dtype == DType::float16 || S.out_dtype == DType::bfloat16 || S.out_dtype == DType::float32,
                  "dtypes: the result is float16, bfloat16 or float32");
    static_assert(S.accumulate == DType::float32, "accumulate: float32");
    static_assert(C.consumers >= 1 && C.consumers <= 3, "consumers: 1 to 3");
    static_assert(!C.ping_pong || (C.consumers > 1 && !C.split_n), "ping_pong: whole tiles, two consumers or more");
    static constexpr int ROWS = MMA_M * (C.split_n || C.ping_pong ? 1 : C.consumers);
    static_assert(C.block_m > 0 && C.block_m % ROWS == 0 && C.block_m <= 256, "block_m: 64 rows a consumer");
    static constexpr int COLUMNS = 8 * (C.split_n ? C.consumers : 1);
    static_assert(C.block_n > 0 && C.block_n % COLUMNS == 0 && C.block_n <= 256, "block_n: eights a consumer");
    static_assert(!C.split_n || C.consumers > 1, "split_n: nothing to divide");
    static constexpr int SPAN = SWIZZLE_BYTES / dtype_bytes(S.b_dtype);
    static_assert(!C.split_n || S.b_major == Major::k || C.consumer_n() % SPAN == 0, "split_n: whole slabs of B");
    static_assert(C.block_k > 0 && C.block_k % SPAN == 0 && C.block_k <= 256, "block_k: whole swizzle spans");
    static_assert(is_cluster_extent(C.cluster_m) && is_cluster_extent(C.cluster_n), "cluster: powers of two");
    static_assert(C.cluster_k >= 1 && C.cluster_size() <= MAX_CLUSTER, "cluster: portable size");
    static_assert(C.cluster_k == 1 || !C.ping_pong, "cluster_k: not built with ping-pong");
    static_assert(C.store_stages == 0 || C.consumer_n() % (8 * C.cluster_k) == 0, "cluster_k: equal parts, to store by TMA");
    // With a single part its CTA would send nothing, and its barrier `empty` could end two phases unseen.
    static_assert(C.cluster_k == 1 || C.consumer_n() > 8, "cluster_k: two parts at least");
    static_assert(slices_evenly(C.block_m, C.block_k, S.a_major, S.a_dtype, C.cluster_n), "multicast: slices of A");
    static_assert(slices_evenly(C.block_n, C.block_k, S.b_major, S.b_dtype, C.cluster_m), "multicast: slices of B");
    static_assert(C.producer_registers % 8 == 0 && C.producer_registers >= 24 && C.producer_registers <= 128,
                  "producer_registers: setmaxnreg");
    static_assert(C.accumulators() <= C.consumer_registers() - 16, "accumulators: registers of a consumer");
    static_assert(C.consumers < 3 || C.consumer_n() <= 200, "accumulators: of one WGMMA in 160 registers");
    static_assert(C.stages >= 2 && C.stages <= MAX_STAGES, "stages");
    static_assert(C.wait_depth == 0 || C.wait_depth == 1, "wait_depth: 0 or 1");
    static_assert(C.store_stages >= 0 && C.store_stages <= 4, "store_stages: 0 to 4");
    static_assert(C.store_stages == 0 || S.out_aligned, "store_stages: TMA stores whole 16-byte rows");
    static_assert(!S.out_transposed || (C.store_stages > 0 && dtype_bytes(S.out_dtype) == 2), "swap_ab: staged, 16 bits");
    // What its epilogue reads in pairs would lie a row apart.
    static_assert(!S.out_transposed || (!S.epilogue.residual && S.epilogue.bias != Bias::n), "swap_ab: epilogue");
};
