// The kernels for few rows on ARM, with dotprod, and i8mm where the compiler may take it; and here those for matrices
// that llama.cpp repacks: 4 or 8 matrix rows side by side (ROWS), 4 or 8 bytes of each in turn (BYTES; 8 where it has
// i8mm). Four matrix rows are lanes, and their sums of floats are those of its gemv (ggml-cpu/arch/arm/repack.cpp).

#include "cpu-few-rows-task.h"

#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)

#    include "cpu-few-rows-neon.h"
#    include "ggml-cpu.h"
#    include "repack.h"

#    include <algorithm>

namespace {

#    if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int FEW_ROWS_BYTES = 8;
#    else
constexpr int FEW_ROWS_BYTES = 4;
#    endif

// Where vector v of the four matrix rows begins that are the part `part` of ROWS. A vector has 4 bytes of each of them,
// or 8 of two.
template <int ROWS, int BYTES> constexpr int few_rows_place(int v, int part) {
    return BYTES == 4 ? 4 * ROWS * v + 16 * part : 8 * ROWS * (v / 2) + 32 * part + 16 * (v % 2);
}

// The product of four matrix rows with one row: 4 * V values of each.
template <int BYTES, int V>
[[gnu::always_inline]] inline int32x4_t few_rows_multiply(const int8x16_t (&x)[V], const int8_t * y) {
    int32x4_t sums[2] = {};
    if constexpr (BYTES == 4) {
        UNROLLED_FOR (int v = 0; v < V; v += 4) {
            const int8x16_t with = vld1q_s8(y + 4 * v);

            sums[0] = vdotq_laneq_s32(sums[0], x[v + 0], with, 0);
            sums[0] = vdotq_laneq_s32(sums[0], x[v + 1], with, 1);
            sums[0] = vdotq_laneq_s32(sums[0], x[v + 2], with, 2);
            sums[0] = vdotq_laneq_s32(sums[0], x[v + 3], with, 3);
        }
        return sums[0];
    }
    UNROLLED_FOR (int v = 0; v < V; v += 2) {
        const int8x16_t with = vreinterpretq_s8_s64(vdupq_n_s64(few_rows_load<int64_t>(y + 4 * v)));

        sums[0] = vdotq_s32(sums[0], x[v], with);
        sums[1] = vdotq_s32(sums[1], x[v + 1], with);
    }
    return vpaddq_s32(sums[0], sums[1]);
}

// With N rows. An instruction of i8mm multiplies two matrix rows with two others.
template <int BYTES, int V, int N>
[[gnu::always_inline]] inline void few_rows_multiply(const int8x16_t (&x)[V], const int8_t * const (&y)[N],
                                                     int32x4_t (&products)[N]) {
    int n = 0;
#    if defined(__ARM_FEATURE_MATMUL_INT8)
    UNROLLED_FOR (; BYTES == 8 && n + 1 < N; n += 2) {
        int32x4_t sums[2] = {};
        UNROLLED_FOR (int v = 0; v < V; v += 4) {
            const int64x2_t one    = vreinterpretq_s64_s8(vld1q_s8(y[n] + 4 * v));
            const int64x2_t other  = vreinterpretq_s64_s8(vld1q_s8(y[n + 1] + 4 * v));
            const int8x16_t first  = vreinterpretq_s8_s64(vzip1q_s64(one, other));
            const int8x16_t second = vreinterpretq_s8_s64(vzip2q_s64(one, other));

            sums[0] = vmmlaq_s32(vmmlaq_s32(sums[0], x[v], first), x[v + 2], second);
            sums[1] = vmmlaq_s32(vmmlaq_s32(sums[1], x[v + 1], first), x[v + 3], second);
        }
        products[n]     = vuzp1q_s32(sums[0], sums[1]);
        products[n + 1] = vuzp2q_s32(sums[0], sums[1]);
    }
#    endif
    UNROLLED_FOR (; n < N; ++n) {
        products[n] = few_rows_multiply<BYTES>(x, y[n]);
    }
}

// T::add adds the products of a block to the sums of its matrix rows.
template <class T, int N> void few_rows_side_by_side(const few_rows_task & task) {
    constexpr int PARTS = T::ROWS / 4;

    const few_rows_inputs<typename T::block_y, N> y(task);
    for (int64_t i = task.begin; i < task.end; i += T::ROWS) {
        const auto * x = (const typename T::block *) (task.matrix + i * task.stride);

        float32x4_t sums[PARTS][N] = {};
        for (int64_t b = 0; b < task.n_values / T::N_VALUES; ++b) {
            T::template add<N>(sums, x[b], y, b);
        }
        for (int part = 0; part < PARTS; ++part) {
            for (int n = 0; n < N; ++n) {
                vst1q_f32(task.out[n] + i + 4 * part, sums[part][n]);
            }
        }
    }
}

inline float32x4_t few_rows_halves(const ggml_half * from) {
    return vcvt_f32_f16(vld1_f16((const __fp16 *) from));
}

// --- blocks of 32 values with a scale each ---
//
//   values   of the four matrix rows
//   scales   of these

template <class T> struct few_rows_4_of_32 : T {
    using block_y                 = block_q8_0;
    static constexpr int ROWS     = 4;
    static constexpr int N_VALUES = 32;

    template <int N>
    static void add(float32x4_t (&sums)[1][N], const typename T::block & x, const few_rows_inputs<block_q8_0, N> & y,
                    int64_t b) {
        int8x16_t values[8];
        T::values(x, values);

        const int8_t * with[N];
        int32x4_t      products[N];
        for (int n = 0; n < N; ++n) {
            with[n] = y[n][b].qs;
        }
        few_rows_multiply<T::BYTES>(values, with, products);

        const float32x4_t scales = T::scales(x);
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            sums[0][n] = few_rows_add_product(T::IS_FUSED, sums[0][n], vcvtq_f32_s32(products[n]),
                                              vmulq_n_f32(scales, few_rows_half(y[n][b].d)));
        }
    }
};

struct few_rows_q8_0_4 {
    using block                    = block_q8_0x4;
    static constexpr int  BYTES    = FEW_ROWS_BYTES;
    static constexpr bool IS_FUSED = true;

    static void values(const block & x, int8x16_t (&to)[8]) {
        UNROLLED_FOR (int v = 0; v < 8; ++v) {
            to[v] = vld1q_s8(x.qs + 16 * v);
        }
    }

    static float32x4_t scales(const block & x) { return few_rows_halves(x.d); }
};

// 4 bits, which are places in a table
template <class BLOCK, const int8_t (&TABLE)[16]> struct few_rows_nibbles_4 {
    using block                    = BLOCK;
    static constexpr int  BYTES    = 4;
    static constexpr bool IS_FUSED = FEW_ROWS_MLA_IS_FUSED;

    static float32x4_t scales(const block & x) { return few_rows_halves(x.d); }

    static void values(const block & x, int8x16_t (&to)[8]) {
        const int8x16_t table = vld1q_s8(TABLE);
        UNROLLED_FOR (int v = 0; v < 4; ++v) {
            const uint8x16_t packed = vld1q_u8((const uint8_t *) x.qs + 16 * v);
            to[v]                   = vqtbl1q_s8(table, packed & 0x0f);
            to[v + 4]               = vqtbl1q_s8(table, packed >> 4);
        }
    }
};

// signed: 16 times the values, and a 16th of the scales
struct few_rows_q4_0_4 {
    using block                    = block_q4_0x4;
    static constexpr int  BYTES    = FEW_ROWS_BYTES;
    static constexpr bool IS_FUSED = true;

    static void values(const block & x, int8x16_t (&to)[8]) {
        UNROLLED_FOR (int v = 0; v < 4; ++v) {
            const uint8x16_t packed = vld1q_u8((const uint8_t *) x.qs + 16 * v);
            to[v]                   = vreinterpretq_s8_u8(packed << 4);
            to[v + 4]               = vreinterpretq_s8_u8(packed & 0xf0);
        }
    }

    static float32x4_t scales(const block & x) { return few_rows_halves(x.d) * 0.0625f; }
};

struct few_rows_mxfp4_4 : few_rows_nibbles_4<block_mxfp4x4, FEW_ROWS_MXFP4> {
    static float32x4_t scales(const block & x) {
        const float of_4[4] = { few_rows_power(x.e[0]), few_rows_power(x.e[1]), few_rows_power(x.e[2]),
                                few_rows_power(x.e[3]) };
        return vld1q_f32(of_4);
    }
};

// --- blocks of 256 values, of 8 matrix rows ---

struct few_rows_8 {
    using block_y                 = block_q8_K;
    static constexpr int ROWS     = 8;
    static constexpr int BYTES    = FEW_ROWS_BYTES;
    static constexpr int N_VALUES = QK_K;

    // 4 bytes, of a matrix row each
    static int32x4_t extend(const void * from) {
        return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(few_rows_load<int32_t>(from))))));
    }

    // n bits of each byte of four matrix rows
    template <int V>
    [[gnu::always_inline]] static void bits(const uint8_t * from, int part, uint8_t first, int n, uint8x16_t (&to)[V]) {
        UNROLLED_FOR (int v = 0; v < V; ++v) {
            to[v] = few_rows_bits(vld1q_u8(from + few_rows_place<ROWS, BYTES>(v, part)), first, n);
        }
    }

    // The product with N rows: activations from the given place of block b on
    template <int V, int N>
    [[gnu::always_inline]] static void multiply(const int8x16_t (&x)[V], const few_rows_inputs<block_q8_K, N> & y,
                                                int64_t b, int place, int32x4_t (&products)[N]) {
        const int8_t * with[N];
        for (int n = 0; n < N; ++n) {
            with[n] = y[n][b].qs + place;
        }
        few_rows_multiply<BYTES>(x, with, products);
    }
};

// Q4_K and Q5_K: groups of 32 values. T::values unpacks those of group k + h, with k even.
template <class T> struct few_rows_k4_8 : few_rows_8 {
    using block = typename T::block;

    // by the minima of the T::N_OFFSETS groups before `end`
    [[gnu::always_inline]] static int32x4_t offset_before(int end, const few_rows_k4_scales * groups, int part,
                                                          const int16_t * y_sums) {
        int32x4_t offset = vdupq_n_s32(0);
        UNROLLED_FOR (int g = end - T::N_OFFSETS; g < end; ++g) {
            offset = vmlal_n_s16(offset, vld1_s16(groups[g].mins + 4 * part), y_sums[g]);
        }
        return offset;
    }

    template <int N>
    static void add(float32x4_t (&sums)[2][N], const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        few_rows_k4_scales groups[QK_K / 32];
        for (int k = 0; k < QK_K / 32; ++k) {
            groups[k] = few_rows_k4_scales(x.scales + 12 * k);
        }
        int16_t y_sums[N][QK_K / 32];
        for (int n = 0; n < N; ++n) {
            vst1q_s16(y_sums[n], few_rows_sums_of_32(y[n][b]));
        }
        for (int part = 0; part < 2; ++part) {
            const float32x4_t d     = few_rows_halves(x.d + 4 * part);
            const float32x4_t min_d = vnegq_f32(few_rows_halves(x.dmin + 4 * part));
            float32x4_t       of_part[N];
            std::copy_n(sums[part], N, of_part);
            const auto add_two_groups = [&](int k) __attribute__((always_inline)) {
                int32x4_t of_both[N] = {};
                UNROLLED_FOR (int h = 0; h < 2; ++h) {
                    uint8x16_t packed[8];
                    int8x16_t  values[8];
                    int32x4_t  products[N];
                    T::values(x, k, h, part, packed);
                    UNROLLED_FOR (int v = 0; v < 8; ++v) {
                        values[v] = vreinterpretq_s8_u8(packed[v]);
                    }
                    multiply(values, y, b, 32 * (k + h), products);

                    const int32x4_t scales = extend(groups[k + h].scales + 4 * part);
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        of_both[n] = vmlaq_s32(of_both[n], products[n], scales);
                        // with 4 bytes in turn, llama.cpp has one sum of floats for two groups
                        if (BYTES == 8 || h == 1) {
                            of_part[n] = vfmaq_f32(of_part[n], vcvtq_f32_s32(of_both[n]), vmulq_n_f32(d, y[n][b].d));
                            of_both[n] = vdupq_n_s32(0);
                        }
                    }
                }
                if ((k + 2) % T::N_OFFSETS == 0) {
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        const int32x4_t offset = offset_before(k + 2, groups, part, y_sums[n]);
                        of_part[n] = few_rows_mla(of_part[n], vcvtq_f32_s32(offset), vmulq_n_f32(min_d, y[n][b].d));
                    }
                }
            };
            if constexpr (N == 1) { // more do not fit into the registers then
                UNROLLED_FOR (int k = 0; k < QK_K / 32; k += 2) {
                    add_two_groups(k);
                }
            } else {
                for (int k = 0; k < QK_K / 32; k += 2) {
                    add_two_groups(k);
                }
            }
            std::copy_n(of_part, N, sums[part]);
        }
    }
};

struct few_rows_q4_K_8 {
    using block                    = block_q4_Kx8;
    static constexpr int N_OFFSETS = 8; // groups whose minima have one sum of floats

    static void values(const block & x, int k, int h, int part, uint8x16_t (&to)[8]) {
        few_rows_8::bits(x.qs + 128 * k, part, 4 * h, 4, to);
    }
};

struct few_rows_q5_K_8 {
    using block                    = block_q5_Kx8;
    static constexpr int N_OFFSETS = few_rows_8::BYTES == 8 ? 2 : 8;

    static void values(const block & x, int k, int h, int part, uint8x16_t (&to)[8]) {
        uint8x16_t high[8];
        few_rows_8::bits(x.qs + 128 * k, part, 4 * h, 4, to);
        few_rows_8::bits(x.qh, part, k + h, 1, high);
        UNROLLED_FOR (int v = 0; v < 8; ++v) {
            to[v] = vsliq_n_u8(to[v], high[v], 4);
        }
    }
};

// groups of 16 values
struct few_rows_q6_K_8 : few_rows_8 {
    using block = block_q6_Kx8;

    template <int N>
    static void add(float32x4_t (&sums)[2][N], const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        for (int part = 0; part < 2; ++part) {
            int32x4_t products[N] = {};
            for (int half = 0; half < 2; ++half) {
                UNROLLED_FOR (int k = 0; k < 8; ++k) {
                    uint8x16_t low[4];
                    uint8x16_t high[4];
                    int8x16_t  values[4];
                    bits(x.ql + 512 * half + k % 4 * 128, part, k / 4 * 4, 4, low);
                    bits(x.qh + 256 * half + k % 2 * 128, part, k / 2 * 2, 2, high);
                    UNROLLED_FOR (int v = 0; v < 4; ++v) {
                        values[v] = vreinterpretq_s8_u8(vsliq_n_u8(low[v], high[v], 4)) - 32;
                    }
                    int32x4_t of_group[N];
                    multiply(values, y, b, 128 * half + 16 * k, of_group);

                    const int32x4_t scales = extend(x.scales + 64 * half + 8 * k + 4 * part);
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        products[n] = vmlaq_s32(products[n], of_group[n], scales);
                    }
                }
            }
            const float32x4_t d = few_rows_halves(x.d + 4 * part);
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                const float32x4_t product = vcvtq_f32_s32(products[n]);
                const float32x4_t scale   = vmulq_n_f32(d, y[n][b].d);
                // where llama.cpp has 8 bytes in turn, it multiplies halves of vectors, which no compiler fuses
                sums[part][n] =
                    few_rows_add_product(BYTES == 4 && !FEW_ROWS_MLA_IS_FUSED, sums[part][n], product, scale);
            }
        }
    }
};

inline few_rows_kernel few_rows_find_repacked(ggml_type type) {
    if (type == GGML_TYPE_Q4_0 &&
        ggml_cpu_get_sve_cnt() == 32) { // bytes of a vector: 8 matrix rows may be side by side
        return nullptr;
    }
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q4_0, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_4_of_32<few_rows_q4_0_4>) },
        { GGML_TYPE_Q8_0, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_4_of_32<few_rows_q8_0_4>) },
        { GGML_TYPE_IQ4_NL,
          FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_4_of_32<few_rows_nibbles_4<block_iq4_nlx4, FEW_ROWS_IQ4>>) },
        { GGML_TYPE_MXFP4, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_4_of_32<few_rows_mxfp4_4>) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_k4_8<few_rows_q4_K_8>) },
        { GGML_TYPE_Q5_K, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_k4_8<few_rows_q5_K_8>) },
        { GGML_TYPE_Q6_K, FEW_ROWS_PRODUCT(few_rows_side_by_side, few_rows_q6_K_8) },
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
