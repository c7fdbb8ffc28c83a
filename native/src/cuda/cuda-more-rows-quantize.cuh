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

// stride: between rows, in values. blockIdx.y: a tile
static __global__ void more_rows_quantize(const float * rows, char * tiles, int n_values, int n_rows, int64_t stride) {
    const int place = blockIdx.x * 32 + threadIdx.x % 32; // of 4 values
    const int row   = blockIdx.y * 8 + threadIdx.x / 32;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const bool is_there = place * 4 < n_values;
    float4     v        = {};
    if (row < n_rows && is_there) {
        v = *(const float4 *) (rows + row * stride + place * 4);
    }
    more_rows_put(tiles, gridDim.y, row, place, v, is_there);
}
