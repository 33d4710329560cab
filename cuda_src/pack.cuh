// Copies 16-bit matrices that TMA cannot read into rows that it can: a page of its own, which shares no code with
// gemm.cuh but what divides.
//
// One operand is a stack of matrices of any strides. Its copy has rows of the axis whose elements lie closest together,
// each a multiple of 16 bytes long, one after the other without gaps. It is written in chunks of 8 elements, 16 bytes; a
// thread has up to PACK_CHUNKS of them, PACK_THREADS apart. Two ways to fill a chunk:
//
// - elements side by side: wherever a row begins, it is read as the aligned 16 bytes that its elements lie in, two of
//   them a chunk, and shifted into place. A thread's second 16 bytes are its neighbour's first: they come from the L1.
//   Where some of those bytes lie before the operand's first element in memory, or behind its last, a chunk is read
//   element by element: they may be another's, or nobody's. What lies between two rows is read with them.
// - elements apart: the lanes of a warp read neighbouring elements, and exchange them through shared memory.
//
// What a row of the copy has beyond the matrix is written as zeros. TMA is told the true extent and gives zeros there by
// itself; but what lay in the buffer before, another's data perhaps, is not to stay in what is handed on.
#pragma once
#include "ptx/types.cuh"
#include "raster.cuh"

constexpr int PACK_THREADS = 256;
constexpr int PACK_CHUNKS = 4;
constexpr int CHUNK_ELEMENTS = 8;
constexpr int WARP_LANES = 32;

// One operand: `PackedOperand` of cupygemm/kernels/pack_kernel.py. Strides of the source are in elements, and may be
// negative or 0; its elements lie from `span_begin` to before `span_end`, counted from the first one. The copy has
// `chunks` chunks in all and `row_chunks` a row; a matrix has `matrix_rows` rows.
struct PackedOperand {
    const uint16_t* source;
    uint4* copy;
    int64_t matrix_stride;
    int64_t row_stride;
    int64_t element_stride;
    int64_t span_begin;
    int64_t span_end;
    int columns;
    int chunks;
    int thread_chunks;
    Divisor row_chunks;
    Divisor matrix_rows;
};

// Of two operands the first has the first `first_blocks` blocks of the grid.
struct PackArguments {
    PackedOperand operands[2];
    int first_blocks;
};

// What a chunk of the copy is of: where its first element lies, and how many elements of it there are, if any.
struct Chunk {
    const uint16_t* source;
    int elements;

    __device__ __forceinline__ Chunk(const PackedOperand& operand, int index, int64_t element_stride) {
        const int row = operand.row_chunks.quotient(index);
        const int column = (index - row * static_cast<int>(operand.row_chunks.divisor)) * CHUNK_ELEMENTS;
        const int matrix = operand.matrix_rows.quotient(row);
        const int in_matrix = row - matrix * static_cast<int>(operand.matrix_rows.divisor);
        source = operand.source + matrix * operand.matrix_stride + in_matrix * operand.row_stride +
                 column * element_stride;
        elements = min(CHUNK_ELEMENTS, operand.columns - column);
    }
};

// 16 bytes from where `offset` elements of the first 16 end.
__device__ __forceinline__ uint4 shifted(uint4 first, uint4 second, uint32_t offset) {
    uint32_t words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    // By 4, 2 and 1 elements, each or not: which word is wanted must be known to the compiler.
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        words[i] = offset & 4 ? words[i + 2] : words[i];
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        words[i] = offset & 2 ? words[i + 1] : words[i];
    }
    const uint32_t bits = (offset & 1) * 16;
    return {__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
            __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
}

// The first `elements` elements, and zeros.
__device__ __forceinline__ uint4 cut(uint4 values, int elements) {
    const auto word = [elements](uint32_t value, int first) {
        return first + 1 < elements ? value : first < elements ? value & 0xFFFF : 0u;
    };
    return {word(values.x, 0), word(values.y, 2), word(values.z, 4), word(values.w, 6)};
}

// A chunk of elements side by side, of which nothing else is read.
__device__ __forceinline__ uint4 gathered(const Chunk& chunk) {
    uint32_t values[CHUNK_ELEMENTS];
#pragma unroll
    for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
        values[i] = i < chunk.elements ? __ldg(chunk.source + i) : 0u;
    }
    return {values[0] | values[1] << 16, values[2] | values[3] << 16, values[4] | values[5] << 16,
            values[6] | values[7] << 16};
}

// Elements side by side. The aligned 16 bytes of which a row has an element are read whole, with what lies before and
// behind the row in them; a chunk for which that would leave the operand's span is gathered. Nothing else is touched.
__device__ __forceinline__ void pack_rows(const PackedOperand& operand, int block) {
    uint4 first[PACK_CHUNKS], second[PACK_CHUNKS];
    uint32_t offset[PACK_CHUNKS];
    int elements[PACK_CHUNKS];
    uint32_t at_ends = 0;  // a bit for each chunk that is not read by pieces
    const uint64_t span_begin = reinterpret_cast<uint64_t>(operand.source + operand.span_begin);
    const uint64_t span_end = reinterpret_cast<uint64_t>(operand.source + operand.span_end);
    const int begin = block * operand.thread_chunks * PACK_THREADS + threadIdx.x;
    const int thread_chunks = operand.thread_chunks;
    // All loads before the first store: a thread has as many in flight as it has chunks.
#pragma unroll
    for (int i = 0; i < PACK_CHUNKS; ++i) {
        const int index = begin + i * PACK_THREADS;
        first[i] = second[i] = {0, 0, 0, 0};
        offset[i] = 0;
        elements[i] = 0;
        if (i < thread_chunks && index < operand.chunks) {
            const Chunk chunk(operand, index, 1);
            const uint64_t address = reinterpret_cast<uint64_t>(chunk.source);
            const uint4* aligned = reinterpret_cast<const uint4*>(address & ~uint64_t{15});
            offset[i] = static_cast<uint32_t>(address) / 2 % CHUNK_ELEMENTS;
            elements[i] = chunk.elements;
            const bool has_second = static_cast<int>(offset[i]) + chunk.elements > CHUNK_ELEMENTS;
            const uint64_t begin_read = reinterpret_cast<uint64_t>(aligned);
            const bool is_inside = begin_read >= span_begin && begin_read + (has_second ? 32 : 16) <= span_end;
            at_ends |= is_inside ? 0u : 1u << i;
            if (chunk.elements > 0 && is_inside) {
                first[i] = __ldg(aligned);
            }
            if (has_second && is_inside) {
                second[i] = __ldg(aligned + 1);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PACK_CHUNKS; ++i) {
        const int index = begin + i * PACK_THREADS;
        if (i < thread_chunks && index < operand.chunks && !(at_ends >> i & 1)) {
            const uint4 values = shifted(first[i], second[i], offset[i]);
            operand.copy[index] = elements[i] < CHUNK_ELEMENTS ? cut(values, elements[i]) : values;
        }
    }
    // Few threads have any: what they do is kept out of the way of the others.
#pragma unroll 1
    for (int i = 0; at_ends >> i; ++i) {
        if (at_ends >> i & 1) {
            const int index = begin + i * PACK_THREADS;
            operand.copy[index] = gathered(Chunk(operand, index, 1));
        }
    }
}

// Elements apart. Each thread knows a chunk; in each step four of a warp's chunks are read by its lanes together, eight
// neighbouring elements each, and in the end each lane writes its own.
__device__ __forceinline__ void pack_elements(const PackedOperand& operand, int block) {
    __shared__ uint4 collected[PACK_THREADS];
    constexpr uint32_t WARP_MASK = 0xFFFFFFFF;
    const int lane = static_cast<int>(threadIdx.x) % WARP_LANES;
    uint4* own = collected + threadIdx.x;
    uint16_t* of_warp = reinterpret_cast<uint16_t*>(own - lane);
    const int64_t element_offset = lane % CHUNK_ELEMENTS * operand.element_stride;
    const int begin = block * operand.thread_chunks * PACK_THREADS + threadIdx.x;
    for (int i = 0; i < operand.thread_chunks; ++i) {
        const int index = begin + i * PACK_THREADS;
        const bool is_there = index < operand.chunks;
        const Chunk chunk(operand, is_there ? index : 0, operand.element_stride);
        const int elements = is_there ? chunk.elements : 0;
        uint16_t values[CHUNK_ELEMENTS];
#pragma unroll
        for (int step = 0; step < CHUNK_ELEMENTS; ++step) {
            const int from = (step * WARP_LANES + lane) / CHUNK_ELEMENTS;
            const uint64_t source = __shfl_sync(WARP_MASK, reinterpret_cast<uint64_t>(chunk.source), from);
            const int count = __shfl_sync(WARP_MASK, elements, from);
            values[step] = 0;
            if (lane % CHUNK_ELEMENTS < count) {
                values[step] = __ldg(reinterpret_cast<const uint16_t*>(source) + element_offset);
            }
        }
#pragma unroll
        for (int step = 0; step < CHUNK_ELEMENTS; ++step) {
            of_warp[step * WARP_LANES + lane] = values[step];
        }
        __syncwarp();  // until the other lanes have written what they read of this one's chunk
        if (is_there) {
            operand.copy[index] = *own;
        }
        __syncwarp();  // until all have read, before the next chunks are written there
    }
}

__global__ void __launch_bounds__(PACK_THREADS) pack_kernel(const __grid_constant__ PackArguments args) {
    const int block = static_cast<int>(blockIdx.x);
    const bool is_first = block < args.first_blocks;
    const PackedOperand& operand = args.operands[is_first ? 0 : 1];
    const int own_block = is_first ? block : block - args.first_blocks;
    if (operand.element_stride == 1) {
        pack_rows(operand, own_block);
    } else {
        pack_elements(operand, own_block);
    }
}
