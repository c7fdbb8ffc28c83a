#pragma once

// What the kernels for few rows on ARM do with vectors, whatever the type of weights.

#include "cpu-few-rows-task.h"

#include <arm_neon.h>

namespace {

inline float few_rows_half(const ggml_half & from) {
    return few_rows_load<__fp16>(&from);
}

// half of 2^(e - 127), as the table of MXFP4 holds twice the values
inline float few_rows_power(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1u) << 23;
    return few_rows_load<float>(&bits);
}

// What compilers make of vmlaq in llama.cpp's sources, and of vmulq and vaddq: GCC fuses only the latter, clang the
// former.
#if defined(__clang__)
constexpr bool FEW_ROWS_MLA_IS_FUSED = true;
#else
constexpr bool FEW_ROWS_MLA_IS_FUSED = false;
#endif

inline float32x4_t few_rows_add_product(bool fused, float32x4_t sum, float32x4_t x, float32x4_t y) {
    return fused ? vfmaq_f32(sum, x, y) : vaddq_f32(sum, vmulq_f32(x, y));
}

inline float32x4_t few_rows_mla(float32x4_t sum, float32x4_t x, float32x4_t y) {
    return few_rows_add_product(FEW_ROWS_MLA_IS_FUSED, sum, x, y);
}

// n bits of each byte
[[gnu::always_inline]] inline uint8x16_t few_rows_bits(uint8x16_t bytes, uint8_t first, int n) {
    const uint8x16_t shifted = first > 0 ? bytes >> first : bytes;
    return first + n < 8 ? shifted & vdupq_n_u8((1 << n) - 1) : shifted;
}

// of 32 bytes
[[gnu::always_inline]] inline uint8x16x2_t few_rows_bits(const uint8_t * from, uint8_t first, int n) {
    return { { few_rows_bits(vld1q_u8(from), first, n), few_rows_bits(vld1q_u8(from + 16), first, n) } };
}

// the low halves of 16 bytes, then the high ones
inline uint8x16x2_t few_rows_nibbles_of_16(const uint8_t * from) {
    const uint8x16_t bytes = vld1q_u8(from);
    return { { bytes & 0x0f, bytes >> 4 } };
}

inline uint8x16x2_t few_rows_join(uint8x16x2_t low_4, uint8x16x2_t high) {
    return { { vsliq_n_u8(low_4.val[0], high.val[0], 4), vsliq_n_u8(low_4.val[1], high.val[1], 4) } };
}

inline int8x16x2_t few_rows_as_signed(uint8x16x2_t x) {
    return { { vreinterpretq_s8_u8(x.val[0]), vreinterpretq_s8_u8(x.val[1]) } };
}

inline int8x16x2_t few_rows_subtract(uint8x16x2_t x, int8_t what) {
    return { { vreinterpretq_s8_u8(x.val[0]) - what, vreinterpretq_s8_u8(x.val[1]) - what } };
}

inline int8x16x2_t few_rows_look_up(const int8_t * table, uint8x16x2_t places) {
    const int8x16_t values = vld1q_s8(table);
    return { { vqtbl1q_s8(values, places.val[0]), vqtbl1q_s8(values, places.val[1]) } };
}

// of 16 values, in 4 lanes
inline int32x4_t few_rows_dot(int8x16_t x, const int8_t * y) {
    return vdotq_s32(vdupq_n_s32(0), x, vld1q_s8(y));
}

inline int32x4_t few_rows_dot(int8x16x2_t x, const int8_t * y) {
    return vdotq_s32(few_rows_dot(x.val[0], y), x.val[1], vld1q_s8(y + 16));
}

} // namespace
