#pragma once

// Types of weights in llama.cpp's layout of 8 matrix rows side by side: 8 bytes of each row in turn. Each follows its
// gemv for AVX2 (ggml-cpu/arch/x86/repack.cpp).

#include "cpu-few-rows-kernel.h"
#include "repack.h"

namespace {

// Blocks of 256 values, in groups with a scale and a minimum each. T::add adds products in integers, and what the minima
// take off.
struct few_rows_8_sums {
    __m256 sum  = _mm256_setzero_ps();
    __m256 mins = _mm256_setzero_ps();

    void add(__m256i products, __m256i offsets, __m256 d, __m256 min_d, float y_d) {
        sum  = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_mul_ps(d, _mm256_set1_ps(y_d)), sum);
        mins = _mm256_fmadd_ps(_mm256_cvtepi32_ps(offsets), _mm256_mul_ps(min_d, _mm256_set1_ps(y_d)), mins);
    }

    void store(float * to) const { _mm256_storeu_ps(to, _mm256_sub_ps(sum, mins)); }
};

template <class V, class T> struct few_rows_8_of_256 {
    using block                       = typename T::block;
    using block_y                     = block_q8_K;
    using sums                        = few_rows_8_sums;
    static constexpr int64_t N_ROWS   = 8;
    static constexpr int64_t N_VALUES = QK_K;

    template <int N> static void add(sums * to, const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        few_rows_prefetch(x);
        typename V::ints products[N];
        __m256i          offsets[N];
        for (int n = 0; n < N; ++n) {
            products[n] = V::zero();
            offsets[n]  = _mm256_setzero_si256();
        }
        T::template add<N>(products, offsets, x, y, b);

        const __m256 d     = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x.d));
        const __m256 min_d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x.dmin));
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            to[n].add(V::add_neighbours(products[n]), offsets[n], d, min_d, y[n][b].d);
        }
    }
};

template <class V> struct few_rows_q4_K_8 {
    using block = block_q4_Kx8;

    template <int N>
    static void add(typename V::ints * products, __m256i * offsets, const block & x,
                    const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        UNROLLED_FOR (int i = 0; i < 4; ++i) { // 64 values: two groups of 32, each with a scale and a minimum
            const __m128i group[2] = { few_rows_k4_bytes(x.scales + 24 * i),
                                       few_rows_k4_bytes(x.scales + 24 * i + 12) };

            typename V::ints packed[4];
            UNROLLED_FOR (int k = 0; k < 4; ++k) {
                packed[k] = V::load(x.qs + 256 * i + 64 * k);
            }
            UNROLLED_FOR (int g = 0; g < 2; ++g) {
                const auto    scales = V::spread_8_scales(group[g]);
                const __m256i mins   = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(group[g], group[g]));

                typename V::ints values[4];
                UNROLLED_FOR (int k = 0; k < 4; ++k) {
                    values[k] = V::mask(V::left(packed[k], -4 * g), 0x0f);
                }
                UNROLLED_FOR (int n = 0; n < N; ++n) {
                    const block_q8_K & with = y[n][b];

                    products[n] = V::add(products[n], V::multiply_8_rows(values, with.qs + 64 * i + 32 * g, scales));
                    offsets[n]  = V::add_pairs(offsets[n], mins, with.bsums + 4 * i + 2 * g);
                }
            }
        }
    }
};

template <class V> struct few_rows_q2_K_8 {
    using block = block_q2_Kx8;

    template <int N>
    static void add(typename V::ints * products, __m256i * offsets, const block & x,
                    const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        UNROLLED_FOR (int i = 0; i < 2;
                      ++i) { // 128 values: four pairs of groups of 16, each with a scale and a minimum
            typename V::ints packed[2][2];
            UNROLLED_FOR (int k = 0; k < 4; ++k) {
                packed[k / 2][k % 2] = V::load(x.qs + 256 * i + 64 * k);
            }
            UNROLLED_FOR (int g = 0; g < 4; ++g) {
                // for each row a byte of the first group and one of the second: the scale, and above it the minimum
                const __m128i bytes = _mm_loadu_si128((const __m128i *) (x.scales + 64 * i + 16 * g));
                const __m256i mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(0x0f)));
                UNROLLED_FOR (int n = 0; n < N; ++n) {
                    offsets[n] = V::add_pairs(offsets[n], mins, y[n][b].bsums + 8 * i + 2 * g);
                }
                UNROLLED_FOR (int k = 0; k < 2; ++k) {
                    const __m128i of_group = _mm_and_si128(_mm_srli_epi16(bytes, 8 * k), _mm_set1_epi16(0x0f));
                    const auto    scales   = V::spread_8_scales(_mm_packus_epi16(of_group, of_group));

                    const typename V::ints values[2] = { V::mask(V::left(packed[k][0], -2 * g), 0x03),
                                                         V::mask(V::left(packed[k][1], -2 * g), 0x03) };
                    UNROLLED_FOR (int n = 0; n < N; ++n) {
                        const int8_t * with = y[n][b].qs + 128 * i + 32 * g + 16 * k;
                        products[n]         = V::add(products[n], V::multiply_8_rows(values, with, scales));
                    }
                }
            }
        }
    }
};

// Blocks of 32 values of 4 bits, which are places in a table
template <class V, class T> struct few_rows_8_of_32 {
    using block                       = typename T::block;
    using block_y                     = block_q8_0;
    static constexpr int64_t N_ROWS   = 8;
    static constexpr int64_t N_VALUES = 32;

    struct sums {
        __m256 sum = _mm256_setzero_ps();

        void store(float * to) const { _mm256_storeu_ps(to, sum); }
    };

    template <int N> static void add(sums * to, const block & x, const few_rows_inputs<block_q8_0, N> & y, int64_t b) {
        few_rows_prefetch(x);
        typename V::ints values[4];
        UNROLLED_FOR (int k = 0; k < 2; ++k) {
            const auto packed = V::load(x.qs + 64 * k);
            values[k]         = V::look_up(T::VALUES, V::mask(packed, 0x0f));
            values[k + 2]     = V::look_up(T::VALUES, V::mask(V::left(packed, -4), 0x0f));
        }
        const __m256 d = T::scales(x);
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            const __m256i product = V::add_neighbours(V::multiply_8_rows_signed(values, y[n][b].qs));
            const __m256  scale   = _mm256_mul_ps(d, few_rows_halves(&y[n][b].d));
            to[n].sum             = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), scale, to[n].sum);
        }
    }
};

template <class BLOCK, const int8_t (&TABLE)[16]> struct few_rows_nibbles_8 {
    using block                    = BLOCK;
    static constexpr auto & VALUES = TABLE;

    static __m256 scales(const block & x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x.d)); }
};

struct few_rows_mxfp4_8 {
    using block                    = block_mxfp4x8;
    static constexpr auto & VALUES = FEW_ROWS_MXFP4;

    // half of 2^(e - 127), as the table holds twice the values
    static __m256 scales(const block & x) {
        const __m256i e     = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) x.e));
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e); // denormal
        const __m256i large = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(large, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
    }
};

template <class V> few_rows_kernel few_rows_find_repacked(ggml_type type) {
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q2_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_256<V, few_rows_q2_K_8<V>>) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_256<V, few_rows_q4_K_8<V>>) },
        { GGML_TYPE_Q4_0,
          FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_32<V, few_rows_nibbles_8<block_q4_0x8, FEW_ROWS_SIGNED_4>>) },
        { GGML_TYPE_IQ4_NL,
          FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_32<V, few_rows_nibbles_8<block_iq4_nlx8, FEW_ROWS_IQ4>>) },
        { GGML_TYPE_MXFP4, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_8_of_32<V, few_rows_mxfp4_8>) },
    };
    return few_rows_find(ENTRIES, type);
}

} // namespace
