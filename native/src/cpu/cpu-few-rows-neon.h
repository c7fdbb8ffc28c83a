#pragma once

// Products of a quantized matrix with few rows on ARM, for matrix rows that follow each other. A block of weights is
// unpacked once for all rows of activations. Knows vectors and types of weights, never tensors or threads.
//
// The results are bit for bit those of llama.cpp's vec_dot for NEON (ggml-cpu/arch/arm/quants.c): within a block it
// sums integers, whose order does not matter; floats are summed in its order. Products and sums are fused by name,
// where compilers that optimize fuse them there. Where llama.cpp is compiled for SVE, its vec_dot has other orders.

#include "cpu-few-rows-task.h"

#include <arm_neon.h>

#include <type_traits>

namespace {

// --- vectors, whatever the type of weights ---

inline float few_rows_half(const ggml_half & from) {
    return few_rows_load<__fp16>(&from);
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

// n bits of each of 16 bytes
[[gnu::always_inline]] inline uint8x16_t few_rows_bits(const void * from, uint8_t first, int n) {
    const uint8x16_t bytes   = vld1q_u8((const uint8_t *) from);
    const uint8x16_t shifted = first > 0 ? bytes >> first : bytes;
    return first + n < 8 ? shifted & vdupq_n_u8((1 << n) - 1) : shifted;
}

inline int8x16_t few_rows_look_up(const int8_t * table, uint8x16_t places) {
    return vqtbl1q_s8(vld1q_s8(table), places);
}

// --- blocks of 256 values, with activations in Q8_K ---
//
//   values(v)   16 values
//   scale(i)    of 32 or of 16 values
//   add         of the product in integers

struct few_rows_sum {
    float sum = 0.0f;

    void store(float * to) const { *to = sum; }
};

template <class T> struct few_rows_of_256 {
    using block                   = typename T::block;
    using block_y                 = block_q8_K;
    using sums                    = few_rows_sum;
    static constexpr int N_ROWS   = 1;
    static constexpr int N_VALUES = QK_K;

    template <int N>
    static void add(sums (&to)[N], const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        constexpr int N_VECTORS = QK_K / 16 / T::N_SCALES;

        const T   weights{ x };
        int32x4_t products[N] = {};
        UNROLLED_FOR (int i = 0; i < T::N_SCALES; ++i) {
            int32x4_t of_group[N] = {};
            UNROLLED_FOR (int v = i * N_VECTORS; v < (i + 1) * N_VECTORS; ++v) {
                const int8x16_t values = weights.values(v);
                UNROLLED_FOR (int n = 0; n < N; ++n) {
                    of_group[n] = vdotq_s32(of_group[n], values, vld1q_s8(y[n][b].qs + 16 * v));
                }
            }
            const int32x4_t scale = vdupq_n_s32(weights.scale(i));
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                products[n] = vmlaq_s32(products[n], of_group[n], scale);
            }
        }
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            to[n].sum = weights.add(to[n].sum, vaddvq_s32(products[n]), y[n][b]);
        }
    }
};

// sums of activations, with a factor for each
inline int32x4_t few_rows_offsets(int16x8_t factors, int16x8_t sums) {
    return vmlal_high_s16(vmull_s16(vget_low_s16(factors), vget_low_s16(sums)), factors, sums);
}

// sums of 32 activations
inline int16x8_t few_rows_sums_of_32(const block_q8_K & y) {
    return vpaddq_s16(vld1q_s16(y.bsums), vld1q_s16(y.bsums + 8));
}

// 8 scales and minima of 6 bits, of groups of 32 values
struct few_rows_k4_scales {
    uint8_t scales[8];
    int16_t mins[8];

    few_rows_k4_scales() = default;

    explicit few_rows_k4_scales(const uint8_t * from) {
        const auto       low   = few_rows_load<uint32x2_t>(from);
        const uint32x2_t high  = vdup_n_u32(few_rows_load<uint32_t>(from + 8)) >> uint32x2_t{ 0, 4 };
        const uint32x2_t first = low & 0x3f3f3f3f;
        const uint32x2_t last  = (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030);
        vst1_u8(scales, (uint8x8_t) vzip1_u32(first, last));
        vst1q_s16(mins, (int16x8_t) vmovl_u8((uint8x8_t) vzip2_u32(first, last)));
    }
};

template <class BLOCK, int N> struct few_rows_with_scales {
    using block                   = BLOCK;
    static constexpr int N_SCALES = N;

    const block & x;

    few_rows_with_scales(const block & x) : x(x) {}

    float add(float sum, int product, const block_q8_K & y) const {
        return __builtin_fmaf(y.d * few_rows_half(x.d), product, sum);
    }
};

template <class BLOCK> struct few_rows_k4 : few_rows_with_scales<BLOCK, 8> {
    few_rows_k4_scales groups{ this->x.scales };
    float              d     = few_rows_half(this->x.data.data.d);
    float              min_d = few_rows_half(this->x.data.data.dmin);

    few_rows_k4(const BLOCK & x) : few_rows_with_scales<BLOCK, 8>(x) {}

    uint8x16_t low(int v) const { return few_rows_bits(this->x.qs + v / 4 * 32 + v % 2 * 16, v / 2 % 2 * 4, 4); }

    int scale(int i) const { return groups.scales[i]; }

    int offset(const block_q8_K & y) const {
        return vaddvq_s32(few_rows_offsets(vld1q_s16(groups.mins), few_rows_sums_of_32(y)));
    }
};

struct few_rows_q4_K : few_rows_k4<block_q4_K> {
    int8x16_t values(int v) const { return (int8x16_t) low(v); }

    float add(float sum, int product, const block_q8_K & y) const {
        return __builtin_fmaf(y.d * d, product, __builtin_fmaf(-(y.d * min_d), offset(y), sum));
    }
};

struct few_rows_q5_K : few_rows_k4<block_q5_K> {
    int8x16_t values(int v) const {
        return (int8x16_t) vsliq_n_u8(low(v), few_rows_bits(x.qh + v % 2 * 16, v / 2, 1), 4);
    }

    float add(float sum, int product, const block_q8_K & y) const {
        return sum + __builtin_fmaf(y.d * d, product, -(y.d * min_d * offset(y)));
    }
};

struct few_rows_q6_K : few_rows_with_scales<block_q6_K, 16> {
    int8x16_t values(int v) const {
        const uint8x16_t low  = few_rows_bits(x.ql + v / 8 * 64 + v % 4 * 16, v % 8 / 4 * 4, 4);
        const uint8x16_t high = few_rows_bits(x.qh + v / 8 * 32 + v % 2 * 16, v % 8 / 2 * 2, 2);
        return (int8x16_t) vsliq_n_u8(low, high, 4) - 32;
    }

    int scale(int i) const { return x.scales[i]; }
};

// 2 bits of 16 values, in the order of Q2_K and Q3_K
inline uint8x16_t few_rows_2_bits(const uint8_t * qs, int v) {
    return few_rows_bits(qs + v / 8 * 32 + v % 2 * 16, v % 8 / 2 * 2, 2);
}

struct few_rows_q2_K : few_rows_with_scales<block_q2_K, 16> {
    int8x16_t values(int v) const { return (int8x16_t) few_rows_2_bits(x.qs, v); }

    int scale(int i) const { return x.scales[i] & 0x0f; }

    float add(float sum, int product, const block_q8_K & y) const {
        const uint8x16_t mins = vld1q_u8(x.scales) >> 4;
        const int32x4_t  offsets =
            few_rows_offsets(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(mins))), vld1q_s16(y.bsums)) +
            few_rows_offsets(vreinterpretq_s16_u16(vmovl_high_u8(mins)), vld1q_s16(y.bsums + 8));
        sum = __builtin_fmaf(-y.d * few_rows_half(x.data.data.dmin), vaddvq_s32(offsets), sum);
        return __builtin_fmaf(y.d * few_rows_half(x.data.data.d), product, sum);
    }
};

struct few_rows_q3_K : few_rows_with_scales<block_q3_K, 16> {
    int8_t scales[16];

    // 4 bits of each, two to a byte, then 2 bits of each, four to a byte
    explicit few_rows_q3_K(const block & x) : few_rows_with_scales(x) {
        const uint8x8_t  low  = vld1_u8(x.scales);
        const uint32x4_t high = vdupq_n_u32(few_rows_load<uint32_t>(x.scales + 8)) >> uint32x4_t{ 0, 2, 4, 6 };
        const uint8x16_t both = vsliq_n_u8(vcombine_u8(low & 0x0f, low >> 4), (uint8x16_t) high & 0x03, 4);
        vst1q_s8(scales, (int8x16_t) both - 32);
    }

    // 4 less where the high bit is not set
    int8x16_t values(int v) const {
        return (int8x16_t) (few_rows_2_bits(x.qs, v) | few_rows_bits(x.hmask + v % 2 * 16, v / 2, 1) << 2) - 4;
    }

    int scale(int i) const { return scales[i]; }
};

struct few_rows_iq4_xs : few_rows_with_scales<block_iq4_xs, 8> {
    int8x16_t values(int v) const {
        return few_rows_look_up(FEW_ROWS_IQ4, few_rows_bits(x.qs + v / 2 * 16, v % 2 * 4, 4));
    }

    int scale(int i) const {
        const int low  = x.scales_l[i / 2] >> (i % 2 * 4) & 0x0f;
        const int high = x.scales_h >> (2 * i) & 0x03;
        return (low | high << 4) - 32;
    }
};

// --- blocks of 32 values with a scale each, with activations in Q8_0 ---

struct few_rows_32 {
    float     scale;
    int8x16_t first;
    int8x16_t last;

    int32x4_t multiply(const block_q8_0 & y) const {
        return vdotq_s32(vdotq_s32(vdupq_n_s32(0), first, vld1q_s8(y.qs)), last, vld1q_s8(y.qs + 16));
    }
};

inline few_rows_32 few_rows_unpack(const block_q8_0 & x) {
    return { few_rows_half(x.d), vld1q_s8(x.qs), vld1q_s8(x.qs + 16) };
}

inline few_rows_32 few_rows_unpack(const block_q4_0 & x) {
    return { few_rows_half(x.d), (int8x16_t) few_rows_bits(x.qs, 0, 4) - 8, (int8x16_t) few_rows_bits(x.qs, 4, 4) - 8 };
}

inline few_rows_32 few_rows_unpack(const block_q5_0 & x) {
    const auto values = [&](int half) {
        const uint8x16_t bit    = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
        const uint8x16_t places = vcombine_u8(vdup_n_u8(2 * half), vdup_n_u8(2 * half + 1));
        const uint8x16_t bytes  = vreinterpretq_u8_u32(vdupq_n_u32(few_rows_load<uint32_t>(x.qh)));
        const uint8x16_t is_set = vtstq_u8(vqtbl1q_u8(bytes, places), bit);
        return (int8x16_t) vsliq_n_u8(few_rows_bits(x.qs, 4 * half, 4), is_set & 1, 4) - 16;
    };
    return { few_rows_half(x.d), values(0), values(1) };
}

// The sums of a row are of pairs of blocks, in lanes.
template <class BLOCK, int N> void few_rows_of_32(const few_rows_task & task) {
    const int64_t n_blocks = task.n_values / 32;

    const few_rows_inputs<block_q8_0, N> y(task);
    for (int64_t i = task.begin; i < task.end; ++i) {
        const auto * x = (const BLOCK *) (task.matrix + i * task.stride);

        float32x4_t sums[N][2] = {};
        int64_t     b          = 0;
        for (; b + 1 < n_blocks; b += 2) {
            const few_rows_32 weights[2] = { few_rows_unpack(x[b]), few_rows_unpack(x[b + 1]) };
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                UNROLLED_FOR (int k = 0; k < 2; ++k) {
                    const block_q8_0 & with = y[n][b + k];
                    sums[n][k] = few_rows_add_product(FEW_ROWS_MLA_IS_FUSED, sums[n][k],
                                                      vcvtq_f32_s32(weights[k].multiply(with)),
                                                      vdupq_n_f32(weights[k].scale * few_rows_half(with.d)));
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            float sum = vaddvq_f32(sums[n][0]) + vaddvq_f32(sums[n][1]);
            if (b < n_blocks) {
                const few_rows_32 weights = few_rows_unpack(x[b]);
                const float       product = vaddvq_s32(weights.multiply(y[n][b]));
                const float       d       = few_rows_half(y[n][b].d);
                sum = std::is_same_v<BLOCK, block_q4_0> ? __builtin_fmaf(product * weights.scale, d, sum) :
                                                          __builtin_fmaf(weights.scale * d, product, sum);
            }
            task.out[n][i] = sum;
        }
    }
}

inline few_rows_kernel few_rows_find_in_order(ggml_type type) {
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q4_0, FEW_ROWS_PRODUCT(few_rows_of_32, block_q4_0) },
        { GGML_TYPE_Q5_0, FEW_ROWS_PRODUCT(few_rows_of_32, block_q5_0) },
        { GGML_TYPE_Q8_0, FEW_ROWS_PRODUCT(few_rows_of_32, block_q8_0) },
        { GGML_TYPE_Q2_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_q2_K>) },
        { GGML_TYPE_Q3_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_q3_K>) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_q4_K>) },
        { GGML_TYPE_Q5_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_q5_K>) },
        { GGML_TYPE_Q6_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_q6_K>) },
        { GGML_TYPE_IQ4_XS, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_of_256<few_rows_iq4_xs>) },
    };
    return few_rows_find(ENTRIES, type);
}

} // namespace
