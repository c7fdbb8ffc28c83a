// The kernels for few rows with AVX2: 8 matrix rows at a time, products of bytes in pairs of 16 bits.

#include "cpu-few-rows-task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#    include "cpu-few-rows-types.h"

#    include <immintrin.h>

namespace {

struct few_rows_avx2 {
    static constexpr int N = 8;

    using ints   = __m256i;
    using floats = __m256;
    using tile   = few_rows_tile<few_rows_avx2>;

    static ints zero() { return _mm256_setzero_si256(); }

    static floats zero_floats() { return _mm256_setzero_ps(); }

    static floats set_float(float x) { return _mm256_set1_ps(x); }

    static floats load_floats(const int32_t * bits) {
        return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *) bits));
    }

    // dword i of 16 bytes of every row to vector i
    static void transpose(const tile & x, size_t at, ints * to) {
        ints rows[4];
#    pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) (x.at[i] + at))),
                                              _mm_loadu_si128((const __m128i *) (x.at[4 + i] + at)), 1);
        }
        const ints a = _mm256_unpacklo_epi32(rows[0], rows[1]);
        const ints b = _mm256_unpackhi_epi32(rows[0], rows[1]);
        const ints c = _mm256_unpacklo_epi32(rows[2], rows[3]);
        const ints d = _mm256_unpackhi_epi32(rows[2], rows[3]);
        to[0]        = _mm256_unpacklo_epi64(a, c);
        to[1]        = _mm256_unpackhi_epi64(a, c);
        to[2]        = _mm256_unpacklo_epi64(b, d);
        to[3]        = _mm256_unpackhi_epi64(b, d);
    }

    static floats halves(const tile & x, size_t at) {
        const auto half = [&](int m) {
            return few_rows_load<int16_t>(x.at[m] + at);
        };
        return _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
    }

    static floats low_halves(ints x) { return high_halves(_mm256_slli_epi32(x, 16)); }

    static floats high_halves(ints x) {
        const ints halves = _mm256_srli_epi32(x, 16);
        const ints packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
        return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    }

    static ints mask(ints x, int byte) { return _mm256_and_si256(x, _mm256_set1_epi8(byte)); }

    static ints mask_dwords(ints x, int dword) { return _mm256_and_si256(x, _mm256_set1_epi32(dword)); }

    static ints join(ints x, ints y) { return _mm256_or_si256(x, y); }

    static ints right(ints x, int n) { return n ? _mm256_srli_epi32(x, n) : x; }

    static ints shift(ints x, int n) { return n > 0 ? _mm256_slli_epi32(x, n) : right(x, -n); }

    static ints subtract_bytes(ints x, int byte) { return _mm256_sub_epi8(x, _mm256_set1_epi8(byte)); }

    static ints times_int(ints x, int y) { return _mm256_mullo_epi32(x, _mm256_set1_epi32(y)); }

    static ints table(const int8_t * values) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) values));
    }

    static ints look_up(ints table, ints places) { return _mm256_shuffle_epi8(table, places); }

    // bytes as large as can be stay signed: twice 255 * 127 would not fit into 16 bits
    static ints wide(ints x) { return x; }

    template <int MAX> static constexpr int offset(int other) { return MAX == 255 ? 0 : other; }

    // two of the 4 bytes of each dword, as 16 bits each
    static ints pair(ints bytes, int first, int second) {
        const ints dwords =
            _mm256_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00, 0, 0x04000400, 0x08000800, 0x0c000c00);
        const ints places = _mm256_add_epi8(dwords, _mm256_set1_epi32(second << 24 | first << 8));
        // what is below the byte is shifted out
        return _mm256_srai_epi16(_mm256_shuffle_epi8(bytes, places), 8);
    }

    static ints scale(ints bytes, int i) { return pair(bytes, i, i); }

    static ints values_4(const void * from) { return _mm256_set1_epi32(few_rows_load<int32_t>(from)); }

    static ints add_pairs(ints sum, ints pairs, const int16_t * with) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, values_4(with)));
    }

    static ints subtract_times(ints x, ints y, int times) {
        return _mm256_sub_epi32(x, _mm256_mullo_epi32(y, _mm256_set1_epi32(times)));
    }

    template <int MAX, int N_GROUP> static ints add_scaled(ints total, const ints * w, const int8_t * y, ints scale) {
        // as many sums of two products as 16 bits hold
        constexpr int N_SUMMED  = MAX == 255                   ? 1 :
                                  32767 / (2 * 127 * MAX) >= 8 ? 8 :
                                  32767 / (2 * 127 * MAX) >= 4 ? 4 :
                                                                 2;
        constexpr int N_VECTORS = N_GROUP / 4;
#    pragma GCC                                 unroll 8
        for (int i = 0; i < N_VECTORS; i += N_SUMMED) {
            ints pairs = products<MAX>(w[i], values_4(y + 4 * i));
#    pragma GCC unroll 8
            for (int k = 1; k < (N_SUMMED < N_VECTORS ? N_SUMMED : N_VECTORS); ++k) {
                pairs = _mm256_add_epi16(pairs, products<MAX>(w[i + k], values_4(y + 4 * (i + k))));
            }
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, scale));
        }
        return total;
    }

    template <int MAX> static ints products(ints w, ints y) {
        if constexpr (MAX == 255) {
            return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(y, w));
        } else {
            return _mm256_maddubs_epi16(w, y);
        }
    }

    template <int MAX> static ints dot_32(const ints * w, const int8_t * y, int32_t begin) {
        return add_scaled<MAX, 32>(_mm256_set1_epi32(begin), w, y, _mm256_set1_epi16(1));
    }

    static floats to_floats(ints x) { return _mm256_cvtepi32_ps(x); }

    static floats times(floats x, floats y) { return _mm256_mul_ps(x, y); }

    static floats add_product(floats sum, floats x, floats y) { return _mm256_fmadd_ps(x, y, sum); }

    static floats subtract_product(floats sum, floats x, floats y) { return _mm256_fnmadd_ps(x, y, sum); }

    static void store(float * to, floats x, int64_t n) {
        if (n == N) {
            _mm256_storeu_ps(to, x);
            return;
        }
        float values[N];
        _mm256_storeu_ps(values, x);
        for (int64_t i = 0; i < n; ++i) {
            to[i] = values[i];
        }
    }
};

} // namespace

few_rows_kernel few_rows_kernel_avx2(ggml_type type) {
    return few_rows_find_kernel<few_rows_avx2>(type);
}

#else

few_rows_kernel few_rows_kernel_avx2(ggml_type) {
    return nullptr;
}

#endif
