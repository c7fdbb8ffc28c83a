#pragma once

// Quantizes rows of activations for the kernel for more rows, rounding as llama.cpp's quantize_q8_1 does.
// Whoever includes it has ggml_cuda_pdl_lc() and ggml_cuda_pdl_sync().

#include "cuda-more-rows-memory.cuh"

static constexpr int MORE_ROWS_QUANTIZE_THREADS = 256; // 8 columns of 128 values, 4 values for a thread

// Puts 4 values of a row where they belong: the place-th 4, of which 8 lanes that follow each other have 32 values. All of
// a warp's lanes come here. is_there: whether the row has such values.
static __device__ __forceinline__ void more_rows_put(char * tiles, int n_tiles, int row, int place, float4 v,
                                                     bool is_there) {
    constexpr int n_lanes = 8;

    float highest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int distance = n_lanes / 2; distance > 0; distance /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, distance));
    }
    const float d     = highest / 127.0f;
    const auto  round = [&](float value) {
        return (signed char) (d == 0.0f ? 0.0f : roundf(value / d));
    };
    const char4 bytes = { round(v.x), round(v.y), round(v.z), round(v.w) };
    int         sum   = bytes.x + bytes.y + bytes.z + bytes.w;
#pragma unroll
    for (int distance = n_lanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    if (is_there) {
        const int word   = place % n_lanes;
        const int column = row % 8;
        char *    to     = tiles + ((int64_t) (place / n_lanes) * n_tiles + row / 8) * MORE_ROWS_Y_SIZE;
        *(char4 *) (to + column * 32 + (word % 4 * 2 + word / 4) * 4) = bytes;
        if (word == 0) {
            const float scale                                  = __half2float(__float2half(d));
            *(float2 *) (to + MORE_ROWS_Y_SCALES + column * 8) = { scale, __fmul_rn(scale, (float) sum) };
        }
    }
}

// blockIdx.y: a tile; of all groups, one after the other
static __global__ void more_rows_quantize(const few_rows_input in, char * tiles) {
    const int place = blockIdx.x * 32 + threadIdx.x % 32; // of 4 values
    const int tile  = blockIdx.y % in.n_tiles;
    const int row   = tile * 8 + threadIdx.x / 32;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const int i = blockIdx.y / in.n_tiles;
    const int n = in.n_rows_of(i);
    if (tile * 8 >= n) {
        return;
    }
    float4 v = {};
    if (row < n && place * 4 < in.n_values) {
        v = *(const float4 *) (in.row_of(i, row) + place * 4);
    }
    more_rows_put(tiles + i * in.group_size, in.n_tiles, row, place, v, true);
}

// Puts columns that have the same expert into groups of `width`. ids: the experts of each token
static __global__ void more_rows_route(const int32_t * ids, int ids_stride, int n_places, int n_columns, int n_experts,
                                       int width, int n_groups_max, few_rows_group * groups, int * group_columns,
                                       int * places, int * n_groups_used) {
    __shared__ int n_of[MORE_ROWS_EXPERTS_MAX];     // columns
    __shared__ int first_of[MORE_ROWS_EXPERTS_MAX]; // group
    __shared__ int n_groups;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const auto expert_of = [&](int column) {
        return ids[column / n_places * ids_stride + column % n_places];
    };
    for (int expert = threadIdx.x; expert < n_experts; expert += blockDim.x) {
        n_of[expert] = 0;
    }
    n_groups = 0;
    __syncthreads();
    for (int column = threadIdx.x; column < n_columns; column += blockDim.x) {
        atomicAdd(&n_of[expert_of(column)], 1);
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < n_experts; expert += blockDim.x) {
        const int n      = n_of[expert];
        const int first  = atomicAdd(&n_groups, (n + width - 1) / width);
        first_of[expert] = first;
        n_of[expert]     = 0;
        for (int begin = 0; begin < n; begin += width) {
            groups[first + begin / width] = { expert, min(width, n - begin) };
        }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < n_columns; column += blockDim.x) {
        const int expert = expert_of(column);
        const int at     = atomicAdd(&n_of[expert], 1); // in any order: columns do not depend on each other
        const int place  = first_of[expert] * width + at;

        group_columns[place] = column;
        places[column]       = place;
    }
    for (int i = n_groups + threadIdx.x; i < n_groups_max; i += blockDim.x) {
        groups[i].n_columns = 0;
    }
    if (threadIdx.x == 0) {
        *n_groups_used = n_groups;
    }
}
