#pragma once

// Quantizes rows of activations for the kernel for more rows, rounding as llama.cpp's quantize_q8_1 does.
// Whoever includes it has ggml_cuda_pdl_lc() and ggml_cuda_pdl_sync().

#include "cuda-more-rows-memory.cuh"

static constexpr int MORE_ROWS_QUANTIZE_THREADS = 256; // 8 columns of 128 values, 4 values for a thread

// stride: between rows, in values. blockIdx.y: a tile
static __global__ void more_rows_quantize(const float * rows, char * tiles, int n_values, int n_rows, int64_t stride) {
    constexpr int n_of_block = 8; // threads that have 32 values together

    const int column = threadIdx.x / 32;
    const int place  = blockIdx.x * 32 + threadIdx.x % 32; // of 4 values
    const int row    = blockIdx.y * 8 + column;
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    float4 v = {};
    if (row < n_rows && place * 4 < n_values) {
        v = *(const float4 *) (rows + row * stride + place * 4);
    }
    float highest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int distance = n_of_block / 2; distance > 0; distance /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, distance));
    }
    const float d     = highest / 127.0f;
    const auto  round = [&](float value) {
        return (signed char) (highest == 0.0f ? 0.0f : roundf(value / d));
    };
    const char4 bytes = { round(v.x), round(v.y), round(v.z), round(v.w) };
    int         sum   = bytes.x + bytes.y + bytes.z + bytes.w;
#pragma unroll
    for (int distance = n_of_block / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    }
    if (place * 4 < n_values) {
        const int word = place % n_of_block;
        char *    to   = tiles + ((int64_t) (place / n_of_block) * gridDim.y + blockIdx.y) * MORE_ROWS_Y_SIZE;
        *(char4 *) (to + column * 32 + (word % 4 * 2 + word / 4) * 4) = bytes;
        if (word == 0) {
            const float scale                                     = __half2float(__float2half(d));
            *(float2 *) (to + MORE_ROWS_Y_SCALES + column * 8) = { scale, __fmul_rn(scale, (float) sum) };
        }
    }
}
