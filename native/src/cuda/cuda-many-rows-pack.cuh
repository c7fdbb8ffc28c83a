#pragma once

// Rows of activations as products of many rows take them: halves, each row with a factor.
// Whoever includes it has ggml_cuda_pdl_lc() and ggml_cuda_pdl_sync().

#include "cuda-many-rows-memory.cuh"

static constexpr int MANY_ROWS_PACK_THREADS = 1024;

// Puts 4 values of a row of n times 4 where they belong: the place-th 4. factor: what its halves are to be multiplied
// with; those of norms and gates are no large numbers, and have 1.
static __device__ __forceinline__ void many_rows_put(char * to, int n_tiles, int row, int place, int n, float4 v,
                                                     float factor = 1.0f) {
    if (place == 0) {
        ((float *) to)[row] = factor;
    }
    if (place < n) {
        const int half = place / 64 * MANY_ROWS_HALVES + place % 16 * 2; // the first of two

        to += MANY_ROWS_HEADER + ((int64_t) half * n_tiles + row / 8) * MANY_ROWS_TILE_SIZE + row % 8 * 16 +
              place / 16 % 4 * 4;
        *(__half2 *) to                                   = __floats2half2_rn(v.x, v.y);
        *(__half2 *) (to + n_tiles * MANY_ROWS_TILE_SIZE) = __floats2half2_rn(v.z, v.w);
    }
}

// A thread block for each row, whose highest value becomes 1. stride: between rows, in values
static __global__ void __launch_bounds__(MANY_ROWS_PACK_THREADS)
    many_rows_pack(const float * rows, char * to, int n_values, int n_rows, int n_tiles, int64_t stride) {
    __shared__ float highest_of[MANY_ROWS_PACK_THREADS / 32];
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const int  row    = blockIdx.x;
    const auto values = [&](int place) {
        return row < n_rows ? *(const float4 *) (rows + row * stride + place * 4) : float4{};
    };
    float highest = 0.0f;
    for (int place = threadIdx.x; place < n_values / 4; place += MANY_ROWS_PACK_THREADS) {
        const float4 v = values(place);
        highest        = fmaxf(fmaxf(highest, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, distance));
    }
    if (threadIdx.x % 32 == 0) {
        highest_of[threadIdx.x / 32] = highest;
    }
    __syncthreads();
    for (int i = 0; i < MANY_ROWS_PACK_THREADS / 32; ++i) {
        highest = fmaxf(highest, highest_of[i]);
    }
    const float factor = highest > 0.0f ? 1.0f / highest : 0.0f;
    for (int place = threadIdx.x; place < n_values / 4; place += MANY_ROWS_PACK_THREADS) {
        const float4 v = values(place);
        many_rows_put(to, n_tiles, row, place, n_values / 4, { v.x * factor, v.y * factor, v.z * factor, v.w * factor },
                      highest);
    }
}
