#pragma once

// Rows of activations as products of many rows take them: halves, each row with a factor.
// Whoever includes it has ggml_cuda_pdl_lc() and ggml_cuda_pdl_sync().

#include "cuda-many-rows-memory.cuh"

static constexpr int MANY_ROWS_PACK_THREADS = 1024; // at most

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

static __device__ __forceinline__ float many_rows_highest(float value) { // of a warp
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    return value;
}

// whole warps that have 16 values for each lane
static FEW_ROWS_HOST_FUNCTION int many_rows_pack_threads(int n_values) {
    const int n = GGML_PAD(n_values, 16 * 32) / 16;
    return n < MANY_ROWS_PACK_THREADS ? n : MANY_ROWS_PACK_THREADS;
}

// A thread block for each row, or with experts for each column, whose highest value becomes 1. What is missing of the last
// 256 values becomes 0.
static __global__ void __launch_bounds__(MANY_ROWS_PACK_THREADS) many_rows_pack(const few_rows_input in, char * to) {
    __shared__ float highest_of[MANY_ROWS_PACK_THREADS / 32];
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const int     at   = in.groups ? in.places[blockIdx.x] : blockIdx.x;
    const int     row  = in.groups ? at % (8 * in.n_tiles) : at;
    const float * from = in.groups ? in.column_of(blockIdx.x) : row < in.n_rows ? in.rows + row * in.stride : nullptr;
    to += in.groups ? at / (8 * in.n_tiles) * in.group_size : 0;
    const int  n_of_16  = GGML_PAD(in.n_values, 256) / 16;
    const auto place_of = [](int group) { // the first of four
        return group / 16 * 64 + group % 16;
    };
    const auto read = [&](int group, float4(&v)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int place = place_of(group) + i * 16;
            v[i]            = from && place * 4 < in.n_values ? *(const float4 *) (from + place * 4) : float4{};
        }
    };
    float4 v[4]    = {};
    float  highest = 0.0f;
    for (int group = threadIdx.x; group < n_of_16; group += blockDim.x) {
        read(group, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            highest = fmaxf(fmaxf(highest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
        }
    }
    highest = many_rows_highest(highest);
    if (threadIdx.x % 32 == 0) {
        highest_of[threadIdx.x / 32] = highest;
    }
    __syncthreads();
    highest = many_rows_highest(threadIdx.x % 32 < blockDim.x / 32 ? highest_of[threadIdx.x % 32] : 0.0f);
    if (threadIdx.x == 0) {
        ((float *) to)[row] = highest;
    }
    const float factor = highest > 0.0f ? 1.0f / highest : 0.0f;
    for (int group = threadIdx.x; group < n_of_16; group += blockDim.x) {
        if (n_of_16 > blockDim.x) { // else it has them
            read(group, v);
        }
        many_rows_put_group(to, in.n_tiles, row, place_of(group), v, factor);
    }
}
