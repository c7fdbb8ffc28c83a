// The kernels for few rows on ARM, with dotprod, and i8mm where the compiler may take it; and here those for matrices
// that llama.cpp repacks: 4 or 8 matrix rows side by side, 4 or 8 bytes of each in turn (BYTES; 8 where it has i8mm).
// Four matrix rows are lanes, and their sums of floats are those of its gemv (ggml-cpu/arch/arm/repack.cpp).

#include "cpu-few-rows-task.h"

#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)

#    include "cpu-few-rows-neon.h"
#    include "ggml-cpu.h"
#    include "ggml-impl.h"
#    include "repack.h"

namespace {

#    if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int FEW_ROWS_BYTES = 8;
#    else
constexpr int FEW_ROWS_BYTES = 4;
#    endif

// The products of four matrix rows, V vectors of block b, with N rows of activations: 4 * V values from `place` on.
template <int BYTES, int V, class Y, int N>
[[gnu::always_inline]] inline void few_rows_multiply(const int8x16_t (&x)[V], const few_rows_inputs<Y, N> & y,
                                                     int64_t b, int place, int32x4_t (&products)[N]) {
#    if defined(__ARM_FEATURE_MATMUL_INT8)
    // two matrix rows with two others
    UNROLLED_FOR (int n = 0; BYTES == 8 && n < N; n += 2) {
        const int other   = n + 1 < N ? n + 1 : n;
        int32x4_t sums[2] = {};
        UNROLLED_FOR (int v = 0; v < V; v += 4) {
            const auto first  = few_rows_load<int64x2_t>(y[n][b].qs + place + 4 * v);
            const auto second = few_rows_load<int64x2_t>(y[other][b].qs + place + 4 * v);
            const auto low    = (int8x16_t) vzip1q_s64(first, second);
            const auto high   = (int8x16_t) vzip2q_s64(first, second);

            sums[0] = vmmlaq_s32(vmmlaq_s32(sums[0], x[v], low), x[v + 2], high);
            sums[1] = vmmlaq_s32(vmmlaq_s32(sums[1], x[v + 1], low), x[v + 3], high);
        }
        products[other] = vuzp2q_s32(sums[0], sums[1]);
        products[n]     = vuzp1q_s32(sums[0], sums[1]);
    }
#    endif
    UNROLLED_FOR (int n = 0; BYTES == 4 && n < N; ++n) {
        products[n] = vdupq_n_s32(0);
        UNROLLED_FOR (int v = 0; v < V; v += 4) {
            const int8x16_t with = vld1q_s8(y[n][b].qs + place + 4 * v);

            products[n] = vdotq_laneq_s32(products[n], x[v + 0], with, 0);
            products[n] = vdotq_laneq_s32(products[n], x[v + 1], with, 1);
            products[n] = vdotq_laneq_s32(products[n], x[v + 2], with, 2);
            products[n] = vdotq_laneq_s32(products[n], x[v + 3], with, 3);
        }
    }
}

// sums of 4 * PARTS matrix rows
template <int PARTS> struct few_rows_sums {
    float32x4_t of_part[PARTS] = {};

    void store(float * to) const {
        for (int part = 0; part < PARTS; ++part) {
            vst1q_f32(to + 4 * part, of_part[part]);
        }
    }
};

inline float32x4_t few_rows_halves(const ggml_half * from) {
    return vcvt_f32_f16(vld1_f16((const __fp16 *) from));
}

// --- blocks of 32 values with a scale each, of 4 matrix rows ---

struct few_rows_4 {
    float32x4_t scales;
    int8x16_t   values[8];
};

inline few_rows_4 few_rows_unpack(const block_q8_0x4 & x) {
    few_rows_4 res;
    res.scales = few_rows_halves(x.d);
    UNROLLED_FOR (int v = 0; v < 8; ++v) {
        res.values[v] = vld1q_s8(x.qs + 16 * v);
    }
    return res;
}

// signed: 16 times the values, and a 16th of the scales
inline few_rows_4 few_rows_unpack(const block_q4_0x4 & x) {
    few_rows_4 res;
    res.scales = few_rows_halves(x.d) * 0.0625f;
    UNROLLED_FOR (int v = 0; v < 4; ++v) {
        const uint8x16_t packed = vld1q_u8((const uint8_t *) x.qs + 16 * v);
        res.values[v]           = (int8x16_t) (packed << 4);
        res.values[v + 4]       = (int8x16_t) (packed & 0xf0);
    }
    return res;
}

inline few_rows_4 few_rows_look_up(float32x4_t scales, const int8_t * table, const uint8_t * qs) {
    few_rows_4 res;
    res.scales = scales;
    UNROLLED_FOR (int v = 0; v < 8; ++v) {
        res.values[v] = few_rows_look_up(table, few_rows_bits(qs + v % 4 * 16, v / 4 * 4, 4));
    }
    return res;
}

inline few_rows_4 few_rows_unpack(const block_iq4_nlx4 & x) {
    return few_rows_look_up(few_rows_halves(x.d), FEW_ROWS_IQ4, x.qs);
}

// the table holds twice the values
inline few_rows_4 few_rows_unpack(const block_mxfp4x4 & x) {
    const float32x4_t scales = { GGML_E8M0_TO_FP32_HALF(x.e[0]), GGML_E8M0_TO_FP32_HALF(x.e[1]),
                                 GGML_E8M0_TO_FP32_HALF(x.e[2]), GGML_E8M0_TO_FP32_HALF(x.e[3]) };
    return few_rows_look_up(scales, FEW_ROWS_MXFP4, x.qs);
}

template <class BLOCK, int BYTES, bool IS_FUSED> struct few_rows_4_of_32 {
    using block                   = BLOCK;
    using block_y                 = block_q8_0;
    using sums                    = few_rows_sums<1>;
    static constexpr int N_ROWS   = 4;
    static constexpr int N_VALUES = 32;

    template <int N>
    static void add(sums (&to)[N], const block & x, const few_rows_inputs<block_q8_0, N> & y, int64_t b) {
        const few_rows_4 weights = few_rows_unpack(x);
        int32x4_t        products[N];
        few_rows_multiply<BYTES>(weights.values, y, b, 0, products);
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            to[n].of_part[0] = few_rows_add_product(IS_FUSED, to[n].of_part[0], vcvtq_f32_s32(products[n]),
                                                    vmulq_n_f32(weights.scales, few_rows_half(y[n][b].d)));
        }
    }
};

// --- blocks of 256 values, of 8 matrix rows ---
//
//   N_OUTER, N_INNER   groups of values with a scale: inner ones are unpacked by different instructions
//   values             vector v of a group, of the four matrix rows that are a part
//   scales             of a group, of all rows
//   N_SUMMED           groups whose products are summed as integers, before IS_FUSED says how floats are
//   N_OFFSETS          groups whose minima are, which add_offset then takes off

// n bits of each byte
[[gnu::always_inline]] inline uint8x16_t few_rows_bits_of_8(const uint8_t * from, int v, int part, uint8_t first,
                                                            int n) {
    return few_rows_bits(from + (FEW_ROWS_BYTES == 4 ? 32 * v + 16 * part : v / 2 * 64 + 32 * part + v % 2 * 16), first,
                         n);
}

// 4 bytes, of a matrix row each
inline int32x4_t few_rows_extend(const void * from) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(few_rows_load<int32_t>(from))))));
}

template <class T> struct few_rows_8_of_256 {
    using block                   = typename T::block;
    using block_y                 = block_q8_K;
    using sums                    = few_rows_sums<2>;
    static constexpr int N_ROWS   = 8;
    static constexpr int N_VALUES = QK_K;

    template <int N>
    static void add(sums (&to)[N], const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        constexpr int N_VECTORS = QK_K / 4 / (T::N_OUTER * T::N_INNER);

        int16_t y_sums[N][QK_K / 32];
        for (int n = 0; n < N; ++n) {
            vst1q_s16(y_sums[n], few_rows_sums_of_32(y[n][b]));
        }
        const T weights{ x };
        for (int part = 0; part < 2; ++part) {
            const float32x4_t d = few_rows_halves(x.d + 4 * part);

            int32x4_t products[N] = {};
            for (int outer = 0; outer < T::N_OUTER; ++outer) {
                UNROLLED_FOR (int inner = 0; inner < T::N_INNER; ++inner) {
                    const int group = outer * T::N_INNER + inner;

                    int8x16_t values[N_VECTORS];
                    int32x4_t of_group[N];
                    UNROLLED_FOR (int v = 0; v < N_VECTORS; ++v) {
                        values[v] = weights.values(outer, inner, v, part);
                    }
                    few_rows_multiply<FEW_ROWS_BYTES>(values, y, b, 4 * N_VECTORS * group, of_group);

                    const int32x4_t scales = few_rows_extend(weights.scales(group) + 4 * part);
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        products[n] = vmlaq_s32(products[n], of_group[n], scales);
                        if ((group + 1) % T::N_SUMMED == 0) {
                            to[n].of_part[part] =
                                few_rows_add_product(T::IS_FUSED, to[n].of_part[part], vcvtq_f32_s32(products[n]),
                                                     vmulq_n_f32(d, y[n][b].d));
                            products[n] = vdupq_n_s32(0);
                        }
                    }
                    if ((group + 1) % T::N_OFFSETS == 0) {
                        UNROLLED_FOR (int n = 0; n < N; ++n) {
                            weights.add_offset(to[n].of_part[part], group + 1, part, y_sums[n], y[n][b].d);
                        }
                    }
                }
            }
        }
    }
};

// Q4_K and Q5_K: groups of 32 values. With 4 bytes in turn, the products of two have one sum of floats.
template <class BLOCK, int N> struct few_rows_k4_8 {
    using block                     = BLOCK;
    static constexpr int  N_OUTER   = 4;
    static constexpr int  N_INNER   = 2;
    static constexpr int  N_SUMMED  = FEW_ROWS_BYTES == 8 ? 1 : 2;
    static constexpr int  N_OFFSETS = N;
    static constexpr bool IS_FUSED  = true;

    const block &      x;
    few_rows_k4_scales groups[8];

    explicit few_rows_k4_8(const block & x) : x(x) {
        for (int k = 0; k < 8; ++k) {
            groups[k] = few_rows_k4_scales(x.scales + 12 * k);
        }
    }

    int8x16_t values(int outer, int inner, int v, int part) const {
        const uint8x16_t low = few_rows_bits_of_8(x.qs + 256 * outer, v, part, 4 * inner, 4);
        if constexpr (std::is_same_v<BLOCK, block_q5_Kx8>) {
            return (int8x16_t) vsliq_n_u8(low, few_rows_bits_of_8(x.qh, v, part, 2 * outer + inner, 1), 4);
        }
        return (int8x16_t) low;
    }

    const uint8_t * scales(int group) const { return groups[group].scales; }

    [[gnu::always_inline]] void add_offset(float32x4_t & to, int end, int part, const int16_t * y_sums,
                                           float y_d) const {
        const float32x4_t min_d  = vnegq_f32(few_rows_halves(x.dmin + 4 * part));
        int32x4_t         offset = vdupq_n_s32(0);
        UNROLLED_FOR (int g = end - N_OFFSETS; g < end; ++g) {
            offset = vmlal_n_s16(offset, vld1_s16(groups[g].mins + 4 * part), y_sums[g]);
        }
        to = few_rows_add_product(FEW_ROWS_MLA_IS_FUSED, to, vcvtq_f32_s32(offset), vmulq_n_f32(min_d, y_d));
    }
};

// groups of 16 values
struct few_rows_q6_K_8 {
    using block                     = block_q6_Kx8;
    static constexpr int  N_OUTER   = 2;
    static constexpr int  N_INNER   = 8;
    static constexpr int  N_SUMMED  = 16;
    static constexpr int  N_OFFSETS = 17; // there are none
    // where llama.cpp has 8 bytes in turn, it multiplies halves of vectors, which no compiler fuses
    static constexpr bool IS_FUSED  = FEW_ROWS_BYTES == 4 && !FEW_ROWS_MLA_IS_FUSED;

    const block & x;

    int8x16_t values(int outer, int inner, int v, int part) const {
        const uint8x16_t low  = few_rows_bits_of_8(x.ql + 512 * outer + inner % 4 * 128, v, part, inner / 4 * 4, 4);
        const uint8x16_t high = few_rows_bits_of_8(x.qh + 256 * outer + inner % 2 * 128, v, part, inner / 2 * 2, 2);
        return (int8x16_t) vsliq_n_u8(low, high, 4) - 32;
    }

    const int8_t * scales(int group) const { return (const int8_t *) x.scales + 8 * group; }

    template <class... ARGS> static void add_offset(ARGS &&...) {}
};

inline few_rows_kernel few_rows_find_repacked(ggml_type type) {
    if (type == GGML_TYPE_Q4_0 &&
        ggml_cpu_get_sve_cnt() == 32) { // bytes of a vector: 8 matrix rows may be side by side
        return nullptr;
    }
    constexpr int                   BYTES     = FEW_ROWS_BYTES;
    constexpr bool                  FUSED     = FEW_ROWS_MLA_IS_FUSED;
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q4_0, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_4_of_32<block_q4_0x4, BYTES, true>) },
        { GGML_TYPE_Q8_0, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_4_of_32<block_q8_0x4, BYTES, true>) },
        { GGML_TYPE_IQ4_NL, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_4_of_32<block_iq4_nlx4, 4, FUSED>) },
        { GGML_TYPE_MXFP4, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_4_of_32<block_mxfp4x4, 4, FUSED>) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_256<few_rows_k4_8<block_q4_Kx8, 8>>) },
        { GGML_TYPE_Q5_K,
          FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_256<few_rows_k4_8<block_q5_Kx8, BYTES == 8 ? 2 : 8>>) },
        { GGML_TYPE_Q6_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_256<few_rows_q6_K_8>) },
    };
    return few_rows_find(ENTRIES, type);
}

} // namespace

few_rows_kernel few_rows_kernel_neon(ggml_type type, bool repacked) {
    return repacked ? few_rows_find_repacked(type) : few_rows_find_in_order(type);
}

#else

few_rows_kernel few_rows_kernel_neon(ggml_type, bool) {
    return nullptr;
}

#endif
