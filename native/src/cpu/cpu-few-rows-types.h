#pragma once

// Types of weights whose matrix rows follow each other. Each follows llama.cpp's vec_dot for AVX2
// (ggml-cpu/arch/x86/quants.c).
// --- Blocks of 32 values are signed bytes times d. Blocks of 256, with activations in Q8_K:
//   values(k)   64 bytes
//   scales      16-bit integers, of 16 values each
//   IS_SIGNED   whether values may be negative
//   add         of the product in integers, in 8 lanes, each of 4 values of every 32

#include "cpu-few-rows-kernel.h"

namespace {

struct few_rows_sums {
    __m256 sum = _mm256_setzero_ps();

    void add(__m256i product, float scale) {
        sum = _mm256_fmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(product), sum);
    }

    void store(float * out) const { *out = few_rows_sum(sum); }
};

// sums of 16 activations, times a factor for each, in pairs
inline __m256i few_rows_offsets(__m256i factors, const block_q8_K & y) {
    return _mm256_madd_epi16(factors, _mm256_loadu_si256((const __m256i *) y.bsums));
}

template <class BLOCK, bool SIGNED> struct few_rows_of_256 {
    using block                     = BLOCK;
    using sums                      = few_rows_sums;
    static constexpr bool IS_SIGNED = SIGNED;

    const block & x;

    explicit few_rows_of_256(const block & x) : x(x) {}

    void add(sums & to, __m256i product, const block_q8_K & y) const { to.add(product, y.d * few_rows_half(&x.d)); }
};

// Q4_K and Q5_K
template <class BLOCK> struct few_rows_k4 : few_rows_of_256<BLOCK, false> {
    __m256i scales;
    __m256i mins;
    float   d;
    float   min_d;

    explicit few_rows_k4(const BLOCK & x) : few_rows_of_256<BLOCK, false>(x) {
        const __m128i bytes = few_rows_k4_bytes(x.scales);

        scales = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes));
        mins   = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(bytes, bytes));
        d      = few_rows_half(&x.data.data.d);
        min_d  = few_rows_half(&x.data.data.dmin);
    }
};

template <class V> struct few_rows_q4_K : few_rows_k4<block_q4_K> {
    struct sums : few_rows_sums {
        __m256 mins = _mm256_setzero_ps(); // in every other lane

        void store(float * out) const {
            const __m128 of_4 =
                _mm_shuffle_ps(_mm256_castps256_ps128(mins), _mm256_extractf128_ps(mins, 1), _MM_SHUFFLE(2, 0, 2, 0));
            const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
            *out              = few_rows_sum(sum) + _mm_cvtss_f32(_mm_add_ss(of_2, _mm_movehdup_ps(of_2)));
        }
    };

    explicit few_rows_q4_K(const block_q4_K & x) : few_rows_k4(x) {}

    auto values(int k) const { return V::mask(V::twice(x.qs + 32 * k, 4), 0x0f); }

    void add(sums & to, __m256i product, const block_q8_K & y) const {
        const __m256i of_8 = few_rows_offsets(mins, y);
        const __m256i of_4 = _mm256_add_epi32(of_8, _mm256_srli_epi64(of_8, 32));
        to.mins            = _mm256_fnmadd_ps(_mm256_set1_ps(y.d * min_d), _mm256_cvtepi32_ps(of_4), to.mins);
        to.add(product, y.d * d);
    }
};

template <class V> struct few_rows_q5_K : few_rows_k4<block_q5_K> {
    typename V::ints high; // bit 2 * k belongs to values(k)

    struct sums : few_rows_sums {
        float mins = 0.0f;

        void store(float * out) const { *out = few_rows_sum(sum) + mins; }
    };

    explicit few_rows_q5_K(const block_q5_K & x) : few_rows_k4(x), high(V::twice(x.qh, 1)) {}

    auto values(int k) const {
        return V::join(V::mask(V::twice(x.qs + 32 * k, 4), 0x0f), V::mask(V::left(high, 4 - 2 * k), 0x10));
    }

    void add(sums & to, __m256i product, const block_q8_K & y) const {
        const __m256i of_8 = few_rows_offsets(mins, y);
        const __m128i of_4 = _mm_add_epi32(_mm256_castsi256_si128(of_8), _mm256_extracti128_si256(of_8, 1));
        const __m128i of_2 = _mm_add_epi32(of_4, _mm_unpackhi_epi64(of_4, of_4));
        const __m128i of_1 = _mm_add_epi32(of_2, _mm_shuffle_epi32(of_2, 1));
        to.mins            = __builtin_fmaf(-(y.d * min_d), (float) _mm_cvtsi128_si32(of_1), to.mins);
        to.add(product, y.d * d);
    }
};

template <class V> struct few_rows_q6_K : few_rows_of_256<block_q6_K, false> {
    __m256i scales;

    explicit few_rows_q6_K(const block & x) :
        few_rows_of_256(x), scales(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) x.scales))) {}

    auto values(int k) const {
        const auto low  = V::mask(V::left(V::load(x.ql + k / 2 * 64), k % 2 * -4), 0x0f);
        const auto high = V::twice(x.qh + k / 2 * 32, 2);
        return V::join(low, V::mask(V::left(high, k % 2 ? 0 : 4), 0x30));
    }

    // the values are 32 too large
    void add(sums & to, __m256i product, const block_q8_K & y) const {
        to.add(_mm256_sub_epi32(product, _mm256_slli_epi32(few_rows_offsets(scales, y), 5)), y.d * few_rows_half(&x.d));
    }
};

// 2 bits of each value, in the order of Q2_K and Q3_K
template <class V> typename V::ints few_rows_2_bits(const uint8_t * qs, int k) {
    const auto packed = V::twice(qs + k / 2 * 32, 2);
    return V::mask(V::left(packed, k % 2 * -4), 0x03);
}

template <class V> struct few_rows_q2_K : few_rows_of_256<block_q2_K, false> {
    __m256i scales;
    __m256i mins;

    explicit few_rows_q2_K(const block & x) : few_rows_of_256(x) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *) x.scales);
        const __m128i low   = _mm_set1_epi8(0x0f);
        scales              = _mm256_cvtepi8_epi16(_mm_and_si128(bytes, low));
        mins                = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    }

    auto values(int k) const { return few_rows_2_bits<V>(x.qs, k); }

    void add(sums & to, __m256i product, const block_q8_K & y) const {
        to.add(few_rows_offsets(mins, y), -(y.d * few_rows_half(&x.data.data.dmin)));
        to.add(product, y.d * few_rows_half(&x.data.data.d));
    }
};

template <class V> struct few_rows_q3_K : few_rows_of_256<block_q3_K, true> {
    __m256i          scales;
    typename V::ints high; // bit 2 * k belongs to values(k)

    explicit few_rows_q3_K(const block & x) : few_rows_of_256(x), high(V::twice(x.hmask, 1)) {
        const __m128i packed = _mm_loadu_si128((const __m128i *) (x.scales - 4)); // 12 bytes after 4 others
        const __m128i low    = _mm_and_si128(
            _mm_srlv_epi32(_mm_shuffle_epi32(packed, _MM_SHUFFLE(2, 1, 2, 1)), _mm_setr_epi32(0, 0, 4, 4)),
            _mm_set1_epi8(0x0f));
        const __m128i top =
            _mm_srlv_epi32(_mm_shuffle_epi32(packed, _MM_SHUFFLE(3, 3, 3, 3)), _mm_setr_epi32(0, 2, 4, 6));
        const __m128i bytes = _mm_or_si128(low, _mm_slli_epi32(_mm_and_si128(top, _mm_set1_epi8(0x03)), 4));
        scales              = _mm256_cvtepi8_epi16(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
    }

    auto values(int k) const {
        const auto bit = V::mask(V::left(high, 2 - 2 * k), 0x04);
        return V::subtract_bytes(V::join(few_rows_2_bits<V>(x.qs, k), bit), 4);
    }
};

template <class V> struct few_rows_iq4_xs : few_rows_of_256<block_iq4_xs, true> {
    __m256i scales;

    // 4 bits of each of 8 scales, and 2
    explicit few_rows_iq4_xs(const block & x) : few_rows_of_256(x) {
        const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(few_rows_load<int32_t>(x.scales_l)),
                                              _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        const __m256i high =
            _mm256_srlv_epi32(_mm256_set1_epi32(x.scales_h), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        const __m256i both = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
                                             _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(0x03)), 4));
        // a group of 32 is two of 16
        scales = _mm256_sub_epi16(_mm256_or_si256(both, _mm256_slli_epi32(both, 16)), _mm256_set1_epi16(32));
    }

    auto values(int k) const { return V::look_up(FEW_ROWS_IQ4, V::nibbles_of_16_twice(x.qs + 32 * k)); }
};

// --- blocks of 32 ---

struct few_rows_q8_0 {
    using block = block_q8_0;

    static __m256i values(const block & x) { return _mm256_loadu_si256((const __m256i *) x.qs); }
};

struct few_rows_q4_0 {
    using block = block_q4_0;

    static __m256i values(const block & x) {
        return _mm256_sub_epi8(few_rows_nibbles_of_16(x.qs), _mm256_set1_epi8(8));
    }
};

struct few_rows_q5_0 {
    using block = block_q5_0;

    static __m256i values(const block & x) {
        const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i bytes  = _mm256_shuffle_epi8(_mm256_set1_epi32(few_rows_load<int32_t>(x.qh)), places);
        const __m256i bit    = _mm256_set1_epi64x((long long) 0x8040201008040201);
        const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
        // 16 less where the bit is not set
        return _mm256_or_si256(few_rows_nibbles_of_16(x.qs), _mm256_andnot_si256(is_set, _mm256_set1_epi8(-16)));
    }
};

template <class V> few_rows_kernel few_rows_find_in_order(ggml_type type) {
    static constexpr few_rows_entry ENTRIES[] = {
        { GGML_TYPE_Q4_0, FEW_ROWS_PRODUCT(few_rows_in_tiles, V, few_rows_q4_0) },
        { GGML_TYPE_Q5_0, FEW_ROWS_PRODUCT(few_rows_in_tiles, V, few_rows_q5_0) },
        { GGML_TYPE_Q8_0, FEW_ROWS_PRODUCT(few_rows_in_tiles, V, few_rows_q8_0) },
        { GGML_TYPE_Q2_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_q2_K<V>>) },
        { GGML_TYPE_Q3_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_q3_K<V>>) },
        { GGML_TYPE_Q4_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_q4_K<V>>) },
        { GGML_TYPE_Q5_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_q5_K<V>>) },
        { GGML_TYPE_Q6_K, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_q6_K<V>>) },
        { GGML_TYPE_IQ4_XS, FEW_ROWS_PRODUCT(few_rows_blocks, few_rows_in_order<V, few_rows_iq4_xs<V>>) },
    };
    return few_rows_find(ENTRIES, type);
}

} // namespace
