#pragma once

// Products of a quantized matrix with few rows on ARM, for matrix rows that follow each other. A block of weights is
// unpacked once for all rows of activations. Knows vectors and types of weights, never tensors or threads.
//
// The results are bit for bit those of llama.cpp's vec_dot for NEON (ggml-cpu/arch/arm/quants.c): within a block it
// sums integers, whose order does not matter; floats are summed in its order. Products and sums are fused by name,
// where compilers that optimize fuse them there. Where llama.cpp is compiled for SVE, its vec_dot has other orders.

#include "cpu-few-rows-task.h"

#include <arm_neon.h>

namespace {

// --- vectors, whatever the type of weights ---

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

// --- blocks of 256 values, with activations in Q8_K ---
//
//   values(k)   32 values
//   scale(i)    of 32 or of 16 values
//   add         of the product in integers

template <class T, int N> void few_rows_of_256(const few_rows_task & task) {
    const few_rows_inputs<block_q8_K, N> y(task);
    for (int64_t i = task.begin; i < task.end; ++i) {
        const auto * x = (const typename T::block *) (task.matrix + i * task.stride);

        float sums[N] = {};
        for (int64_t b = 0; b < task.n_values / QK_K; ++b) {
            const T weights(x[b]);

            int32x4_t products[N] = {};
            UNROLLED_FOR (int k = 0; k < QK_K / 32; ++k) {
                const int8x16x2_t values = weights.values(k);
                if constexpr (T::N_SCALES == 8) {
                    const int32x4_t scale = vdupq_n_s32(weights.scale(k));
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        products[n] = vmlaq_s32(products[n], few_rows_dot(values, y[n][b].qs + 32 * k), scale);
                    }
                } else {
                    UNROLLED_FOR (int h = 0; h < 2; ++h) {
                        const int32x4_t scale = vdupq_n_s32(weights.scale(2 * k + h));
                        UNROLLED_FOR (int n = 0; n < N; ++n) {
                            products[n] = vmlaq_s32(products[n],
                                                    few_rows_dot(values.val[h], y[n][b].qs + 32 * k + 16 * h), scale);
                        }
                    }
                }
            }
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                sums[n] = weights.add(sums[n], vaddvq_s32(products[n]), y[n][b]);
            }
        }
        for (int n = 0; n < N; ++n) {
            task.out[n][i] = sums[n];
        }
    }
}

// 8 scales and minima of 6 bits, of groups of 32 values
struct few_rows_k4_scales {
    uint8_t scales[8];
    int16_t mins[8];

    few_rows_k4_scales() = default;

    explicit few_rows_k4_scales(const uint8_t * from) {
        const auto low    = few_rows_load<uint32_t>(from);
        const auto middle = few_rows_load<uint32_t>(from + 4);
        const auto high   = few_rows_load<uint32_t>(from + 8);

        const uint32_t of_scales[2] = { low & 0x3f3f3f3f, (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030) };
        const uint32_t of_mins[2]   = { middle & 0x3f3f3f3f, (high >> 4 & 0x0f0f0f0f) | (middle >> 2 & 0x30303030) };
        __builtin_memcpy(scales, of_scales, sizeof(scales));
        vst1q_s16(mins, vreinterpretq_s16_u16(vmovl_u8(vld1_u8((const uint8_t *) of_mins))));
    }
};

// sums of 32 activations
inline int16x8_t few_rows_sums_of_32(const block_q8_K & y) {
    return vpaddq_s16(vld1q_s16(y.bsums), vld1q_s16(y.bsums + 8));
}

// sums of activations, with a factor for each
inline int32x4_t few_rows_offsets(int16x8_t factors, int16x8_t sums) {
    return vmlal_high_s16(vmull_s16(vget_low_s16(factors), vget_low_s16(sums)), factors, sums);
}

template <class BLOCK> struct few_rows_k4 : few_rows_k4_scales {
    using block                   = BLOCK;
    static constexpr int N_SCALES = 8;

    const block & x;
    float         d;
    float         min_d;

    explicit few_rows_k4(const block & x) :
        few_rows_k4_scales(x.scales), x(x), d(few_rows_half(x.data.data.d)), min_d(few_rows_half(x.data.data.dmin)) {}

    int scale(int i) const { return scales[i]; }

    int offset(const block_q8_K & y) const {
        return vaddvq_s32(few_rows_offsets(vld1q_s16(mins), few_rows_sums_of_32(y)));
    }
};

struct few_rows_q4_K : few_rows_k4<block_q4_K> {
    using few_rows_k4::few_rows_k4;

    int8x16x2_t values(int k) const { return few_rows_as_signed(few_rows_bits(x.qs + k / 2 * 32, k % 2 * 4, 4)); }

    float add(float sum, int product, const block_q8_K & y) const {
        return __builtin_fmaf(y.d * d, product, __builtin_fmaf(-(y.d * min_d), offset(y), sum));
    }
};

struct few_rows_q5_K : few_rows_k4<block_q5_K> {
    using few_rows_k4::few_rows_k4;

    int8x16x2_t values(int k) const {
        return few_rows_as_signed(
            few_rows_join(few_rows_bits(x.qs + k / 2 * 32, k % 2 * 4, 4), few_rows_bits(x.qh, k, 1)));
    }

    float add(float sum, int product, const block_q8_K & y) const {
        return sum + __builtin_fmaf(y.d * d, product, -(y.d * min_d * offset(y)));
    }
};

template <class BLOCK, int N> struct few_rows_with_scales {
    using block                   = BLOCK;
    static constexpr int N_SCALES = N;

    const block & x;

    explicit few_rows_with_scales(const block & x) : x(x) {}

    float add(float sum, int product, const block_q8_K & y) const {
        return __builtin_fmaf(y.d * few_rows_half(x.d), product, sum);
    }
};

struct few_rows_q6_K : few_rows_with_scales<block_q6_K, 16> {
    using few_rows_with_scales::few_rows_with_scales;

    int8x16x2_t values(int k) const {
        const uint8x16x2_t low  = few_rows_bits(x.ql + k / 4 * 64 + k % 2 * 32, k % 4 / 2 * 4, 4);
        const uint8x16x2_t high = few_rows_bits(x.qh + k / 4 * 32, k % 4 * 2, 2);
        return few_rows_subtract(few_rows_join(low, high), 32);
    }

    int scale(int i) const { return x.scales[i]; }
};

struct few_rows_q2_K : few_rows_with_scales<block_q2_K, 16> {
    using few_rows_with_scales::few_rows_with_scales;

    int8x16x2_t values(int k) const { return few_rows_as_signed(few_rows_bits(x.qs + k / 4 * 32, k % 4 * 2, 2)); }

    int scale(int i) const { return x.scales[i] & 0x0f; }

    float add(float sum, int product, const block_q8_K & y) const {
        const uint8x16_t mins = vld1q_u8(x.scales) >> 4;
        const int32x4_t  offsets =
            vaddq_s32(few_rows_offsets(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(mins))), vld1q_s16(y.bsums)),
                      few_rows_offsets(vreinterpretq_s16_u16(vmovl_high_u8(mins)), vld1q_s16(y.bsums + 8)));
        sum = __builtin_fmaf(-y.d * few_rows_half(x.data.data.dmin), vaddvq_s32(offsets), sum);
        return __builtin_fmaf(y.d * few_rows_half(x.data.data.d), product, sum);
    }
};

struct few_rows_q3_K : few_rows_with_scales<block_q3_K, 16> {
    int8_t scales[16];

    // 4 bits of each, two to a byte, then 2 bits of each, four to a byte
    explicit few_rows_q3_K(const block & x) : few_rows_with_scales(x) {
        for (int i = 0; i < 4; ++i) {
            const auto low  = few_rows_load<uint32_t>(x.scales + i % 2 * 4) >> (i / 2 * 4) & 0x0f0f0f0f;
            const auto high = few_rows_load<uint32_t>(x.scales + 8) >> (i * 2) & 0x03030303;
            const auto both = low | high << 4;
            __builtin_memcpy(scales + 4 * i, &both, sizeof(both));
        }
    }

    // 4 less where the high bit is not set
    int8x16x2_t values(int k) const {
        const uint8x16x2_t low  = few_rows_bits(x.qs + k / 4 * 32, k % 4 * 2, 2);
        const uint8x16x2_t high = few_rows_bits(x.hmask, k, 1);
        return few_rows_subtract({ { low.val[0] | high.val[0] << 2, low.val[1] | high.val[1] << 2 } }, 4);
    }

    int scale(int i) const { return scales[i] - 32; }
};

struct few_rows_iq4_xs : few_rows_with_scales<block_iq4_xs, 8> {
    using few_rows_with_scales::few_rows_with_scales;

    int8x16x2_t values(int k) const { return few_rows_look_up(FEW_ROWS_IQ4, few_rows_nibbles_of_16(x.qs + 16 * k)); }

    int scale(int i) const {
        const int low  = x.scales_l[i / 2] >> (i % 2 * 4) & 0x0f;
        const int high = x.scales_h >> (2 * i) & 0x03;
        return (low | high << 4) - 32;
    }
};

// --- blocks of 32 values with a scale each, with activations in Q8_0 ---
//
//   values(x)   32 values
//   sums        of pairs of blocks
//   add_last    of a block that has no other

template <class BLOCK> float few_rows_scale(const BLOCK & x) {
    return few_rows_half(x.d);
}

inline float few_rows_scale(const block_mxfp4 & x) {
    return few_rows_power(x.e);
}

template <class T, int N> void few_rows_of_32(const few_rows_task & task) {
    const int64_t n_blocks = task.n_values / 32;

    const few_rows_inputs<block_q8_0, N> y(task);
    for (int64_t i = task.begin; i < task.end; ++i) {
        const auto * x = (const typename T::block *) (task.matrix + i * task.stride);

        typename T::sums sums[N];
        for (int64_t b = 0; b + 1 < n_blocks; b += 2) {
            const int8x16x2_t values[2] = { T::values(x[b]), T::values(x[b + 1]) };
            const float       scales[2] = { few_rows_scale(x[b]), few_rows_scale(x[b + 1]) };
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                const block_q8_0 * with = y[n] + b;
                sums[n].add(few_rows_dot(values[0], with[0].qs), scales[0] * few_rows_half(with[0].d),
                            few_rows_dot(values[1], with[1].qs), scales[1] * few_rows_half(with[1].d));
            }
        }
        for (int n = 0; n < N; ++n) {
            task.out[n][i] = sums[n].total();
            if (n_blocks % 2 == 1) {
                const auto & last    = x[n_blocks - 1];
                const auto & with    = y[n][n_blocks - 1];
                const int    product = vaddvq_s32(few_rows_dot(T::values(last), with.qs));
                task.out[n][i] = T::add_last(task.out[n][i], product, few_rows_scale(last), few_rows_half(with.d));
            }
        }
    }
}

struct few_rows_in_lanes {
    struct sums {
        float32x4_t even = vdupq_n_f32(0.0f);
        float32x4_t odd  = vdupq_n_f32(0.0f);

        void add(int32x4_t x, float x_scale, int32x4_t y, float y_scale) {
            even = few_rows_mla(even, vcvtq_f32_s32(x), vdupq_n_f32(x_scale));
            odd  = few_rows_mla(odd, vcvtq_f32_s32(y), vdupq_n_f32(y_scale));
        }

        float total() const { return vaddvq_f32(even) + vaddvq_f32(odd); }
    };

    static float add_last(float sum, int product, float x_scale, float y_scale) {
        return __builtin_fmaf(x_scale * y_scale, product, sum);
    }
};

struct few_rows_in_pairs {
    struct sums {
        float sum = 0.0f;

        void add(int32x4_t x, float x_scale, int32x4_t y, float y_scale) {
            sum += __builtin_fmaf(x_scale, vaddvq_s32(x), y_scale * vaddvq_s32(y));
        }

        float total() const { return sum; }
    };

    static constexpr auto add_last = few_rows_in_lanes::add_last;
};

struct few_rows_q8_0 : few_rows_in_lanes {
    using block = block_q8_0;

    static int8x16x2_t values(const block & x) { return { { vld1q_s8(x.qs), vld1q_s8(x.qs + 16) } }; }
};

struct few_rows_q4_0 : few_rows_in_lanes {
    using block = block_q4_0;

    static int8x16x2_t values(const block & x) { return few_rows_subtract(few_rows_nibbles_of_16(x.qs), 8); }

    static float add_last(float sum, int product, float x_scale, float y_scale) {
        return __builtin_fmaf(product * x_scale, y_scale, sum);
    }
};

struct few_rows_q5_0 : few_rows_in_lanes {
    using block = block_q5_0;

    static int8x16x2_t values(const block & x) {
        const uint8x16_t   bit    = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
        const uint8x16_t   places = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        const uint8x16_t   bytes  = vreinterpretq_u8_u32(vdupq_n_u32(few_rows_load<uint32_t>(x.qh)));
        const uint8x16x2_t is_set = { { vtstq_u8(vqtbl1q_u8(bytes, places), bit),
                                        vtstq_u8(vqtbl1q_u8(bytes, places + 2), bit) } };
        return few_rows_subtract(
            few_rows_join(few_rows_nibbles_of_16(x.qs), { { is_set.val[0] & 1, is_set.val[1] & 1 } }), 16);
    }
};

struct few_rows_iq4_nl : few_rows_in_pairs {
    using block = block_iq4_nl;

    static int8x16x2_t values(const block & x) { return few_rows_look_up(FEW_ROWS_IQ4, few_rows_nibbles_of_16(x.qs)); }
};

struct few_rows_mxfp4 : few_rows_in_pairs {
    using block = block_mxfp4;

    // where scales have branches, GCC fuses the other product
    struct sums : few_rows_in_pairs::sums {
        void add(int32x4_t x, float x_scale, int32x4_t y, float y_scale) {
            few_rows_in_pairs::sums::add(y, y_scale, x, x_scale);
        }
    };

    static int8x16x2_t values(const block & x) {
        return few_rows_look_up(FEW_ROWS_MXFP4, few_rows_nibbles_of_16(x.qs));
    }
};

inline few_rows_kernel few_rows_find_in_order(ggml_type type) {
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q4_0, FEW_ROWS_PRODUCT(few_rows_of_32, few_rows_q4_0) },
        { GGML_TYPE_Q5_0, FEW_ROWS_PRODUCT(few_rows_of_32, few_rows_q5_0) },
        { GGML_TYPE_Q8_0, FEW_ROWS_PRODUCT(few_rows_of_32, few_rows_q8_0) },
        { GGML_TYPE_IQ4_NL, FEW_ROWS_PRODUCT(few_rows_of_32, few_rows_iq4_nl) },
        { GGML_TYPE_MXFP4, FEW_ROWS_PRODUCT(few_rows_of_32, few_rows_mxfp4) },
        { GGML_TYPE_Q2_K, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_q2_K) },
        { GGML_TYPE_Q3_K, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_q3_K) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_q4_K) },
        { GGML_TYPE_Q5_K, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_q5_K) },
        { GGML_TYPE_Q6_K, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_q6_K) },
        { GGML_TYPE_IQ4_XS, FEW_ROWS_PRODUCT(few_rows_of_256, few_rows_iq4_xs) },
    };
    return few_rows_find(ENTRIES, type);
}

} // namespace
