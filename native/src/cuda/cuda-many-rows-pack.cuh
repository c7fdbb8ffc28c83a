#pragma once

// Rows of activations as products of many rows take them: halves, each row with a factor.
// Whoever includes it has ggml_cuda_pdl_lc() and ggml_cuda_pdl_sync().

#include "cuda-many-rows-memory.cuh"

static constexpr int MANY_ROWS_PACK_THREADS = 1024;

// Where the first two of a row's place-th 4 values are; the other two follow n_tiles tiles later. The places 16, 32 and 48
// after it follow each other.
static __device__ __forceinline__ char * many_rows_at(char * to, int n_tiles, int row, int place) {
    const int half = place / 64 * MANY_ROWS_HALVES + place % 16 * 2; // the first of two
    return to + MANY_ROWS_HEADER + ((int64_t) half * n_tiles + row / 8) * MANY_ROWS_TILE_SIZE + row % 8 * 16 +
           place / 16 % 4 * 4;
}

// Puts 4 values of a row of n times 4 where they belong: the place-th 4. What norms and gates give are no large numbers:
// their halves are multiplied with 1.
static __device__ __forceinline__ void many_rows_put(char * to, int n_tiles, int row, int place, int n, float4 v) {
    if (place == 0) {
        ((float *) to)[row] = 1.0f;
    }
    if (place < n) {
        to                                                = many_rows_at(to, n_tiles, row, place);
        *(__half2 *) to                                   = __floats2half2_rn(v.x, v.y);
        *(__half2 *) (to + n_tiles * MANY_ROWS_TILE_SIZE) = __floats2half2_rn(v.z, v.w);
    }
}

// Puts 16 values of a row where they belong, 4 of each of the places that follow each other, all times a factor.
static __device__ __forceinline__ void many_rows_put_group(char * to, int n_tiles, int row, int place,
                                                           const float4 (&v)[4], float factor) {
    __align__(16) __half2 first[4];
    __align__(16) __half2 second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        first[i]  = __floats2half2_rn(v[i].x * factor, v[i].y * factor);
        second[i] = __floats2half2_rn(v[i].z * factor, v[i].w * factor);
    }
    to                                             = many_rows_at(to, n_tiles, row, place);
    *(int4 *) to                                   = *(const int4 *) first;
    *(int4 *) (to + n_tiles * MANY_ROWS_TILE_SIZE) = *(const int4 *) second;
}

// A thread block for each row, whose highest value becomes 1. stride: between rows, in values
static __global__ void __launch_bounds__(MANY_ROWS_PACK_THREADS)
    many_rows_pack(const float * rows, char * to, int n_values, int n_rows, int n_tiles, int64_t stride) {
    __shared__ float highest_of[MANY_ROWS_PACK_THREADS / 32];
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const int  row      = blockIdx.x;
    const auto place_of = [](int group) { // the first of four
        return group / 16 * 64 + group % 16;
    };
    const auto read = [&](int group, float4(&v)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int place = place_of(group) + i * 16;
            v[i]            = row < n_rows ? *(const float4 *) (rows + row * stride + place * 4) : float4{};
        }
    };
    float4 v[4]    = {};
    float  highest = 0.0f;
    for (int group = threadIdx.x; group < n_values / 16; group += MANY_ROWS_PACK_THREADS) {
        read(group, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            highest = fmaxf(fmaxf(highest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
        }
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
    if (threadIdx.x == 0) {
        ((float *) to)[row] = highest;
    }
    const float factor = highest > 0.0f ? 1.0f / highest : 0.0f;
    for (int group = threadIdx.x; group < n_values / 16; group += MANY_ROWS_PACK_THREADS) {
        if (n_values / 16 > MANY_ROWS_PACK_THREADS) { // else it has them
            read(group, v);
        }
        many_rows_put_group(to, n_tiles, row, place_of(group), v, factor);
    }
}
