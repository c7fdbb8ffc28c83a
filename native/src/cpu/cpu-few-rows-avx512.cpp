// The kernels for few rows with AVX-512 and VNNI: 16 matrix rows at a time, products of 4 bytes in 32 bits.

#include "cpu-few-rows-task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__) && defined(__AVX512VL__)

#    include "cpu-few-rows-types.h"

#    include <immintrin.h>

namespace {

struct few_rows_avx512 {
    static constexpr int N = 16;

    using ints   = __m512i;
    using floats = __m512;
    using tile   = few_rows_tile<few_rows_avx512>;

    static ints zero() { return _mm512_setzero_si512(); }

    static floats zero_floats() { return _mm512_setzero_ps(); }

    static floats set_float(float x) { return _mm512_set1_ps(x); }

    static floats load_floats(const int32_t * bits) { return _mm512_castsi512_ps(_mm512_loadu_si512(bits)); }

    // dword i of 16 bytes of every row to vector i
    static void transpose(const tile & x, size_t at, ints * to) {
        const auto load = [&](int m) {
            return _mm_loadu_si128((const __m128i *) (x.at[m] + at));
        };
        ints rows[4];
#    pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i low  = _mm256_inserti128_si256(_mm256_castsi128_si256(load(i)), load(4 + i), 1);
            const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load(8 + i)), load(12 + i), 1);
            rows[i]            = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        }
        const ints a = _mm512_unpacklo_epi32(rows[0], rows[1]);
        const ints b = _mm512_unpackhi_epi32(rows[0], rows[1]);
        const ints c = _mm512_unpacklo_epi32(rows[2], rows[3]);
        const ints d = _mm512_unpackhi_epi32(rows[2], rows[3]);
        to[0]        = _mm512_unpacklo_epi64(a, c);
        to[1]        = _mm512_unpackhi_epi64(a, c);
        to[2]        = _mm512_unpacklo_epi64(b, d);
        to[3]        = _mm512_unpackhi_epi64(b, d);
    }

    static floats halves(const tile & x, size_t at) {
        const auto half = [&](int m) {
            return few_rows_load<int16_t>(x.at[m] + at);
        };
        const auto eight = [&](int m) {
            return _mm_setr_epi16(half(m), half(m + 1), half(m + 2), half(m + 3), half(m + 4), half(m + 5), half(m + 6),
                                  half(m + 7));
        };
        return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(eight(0)), eight(8), 1));
    }

    static floats low_halves(ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

    static floats high_halves(ints x) { return low_halves(_mm512_srli_epi32(x, 16)); }

    static ints mask(ints x, int byte) { return _mm512_and_si512(x, _mm512_set1_epi8(byte)); }

    static ints mask_dwords(ints x, int dword) { return _mm512_and_si512(x, _mm512_set1_epi32(dword)); }

    static ints join(ints x, ints y) { return _mm512_or_si512(x, y); }

    static ints right(ints x, int n) { return n ? _mm512_srli_epi32(x, n) : x; }

    static ints shift(ints x, int n) { return n > 0 ? _mm512_slli_epi32(x, n) : right(x, -n); }

    static ints subtract_bytes(ints x, int byte) { return _mm512_sub_epi8(x, _mm512_set1_epi8(byte)); }

    static ints times_int(ints x, int y) { return _mm512_mullo_epi32(x, _mm512_set1_epi32(y)); }

    static ints table(const int8_t * values) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) values));
    }

    static ints look_up(ints table, ints places) { return _mm512_shuffle_epi8(table, places); }

    // the instruction takes its first bytes as unsigned
    static ints wide(ints x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }

    template <int MAX> static constexpr int offset(int other) { return MAX == 255 ? 128 : other; }

    // two of the 4 bytes of each dword, as 16 bits each
    static ints pair(ints bytes, int first, int second) {
        const ints dwords = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00));
        const ints places = _mm512_add_epi8(dwords, _mm512_set1_epi32(second << 24 | first << 8));
        // what is below the byte is shifted out
        return _mm512_srai_epi16(_mm512_shuffle_epi8(bytes, places), 8);
    }

    static ints scale(ints bytes, int i) { return _mm512_srai_epi32(_mm512_slli_epi32(bytes, 24 - 8 * i), 24); }

    static ints values_4(const void * from) { return _mm512_set1_epi32(few_rows_load<int32_t>(from)); }

    static ints add_pairs(ints sum, ints pairs, const int16_t * with) {
        return _mm512_dpwssd_epi32(sum, pairs, values_4(with));
    }

    static ints subtract_times(ints x, ints y, int times) {
        return _mm512_sub_epi32(x, _mm512_mullo_epi32(y, _mm512_set1_epi32(times)));
    }

    template <int N_GROUP> static ints dot(ints sum, const ints * w, const int8_t * y) {
#    pragma GCC                        unroll 8
        for (int i = 0; i < N_GROUP / 4; ++i) {
            sum = _mm512_dpbusd_epi32(sum, w[i], values_4(y + 4 * i));
        }
        return sum;
    }

    template <int MAX, int N_GROUP> static ints add_scaled(ints total, const ints * w, const int8_t * y, ints scale) {
        return _mm512_add_epi32(total, _mm512_mullo_epi32(dot<N_GROUP>(zero(), w, y), scale));
    }

    template <int MAX> static ints dot_32(const ints * w, const int8_t * y, int32_t begin) {
        return dot<32>(_mm512_set1_epi32(begin), w, y);
    }

    static floats to_floats(ints x) { return _mm512_cvtepi32_ps(x); }

    static floats times(floats x, floats y) { return _mm512_mul_ps(x, y); }

    static floats add_product(floats sum, floats x, floats y) { return _mm512_fmadd_ps(x, y, sum); }

    static floats subtract_product(floats sum, floats x, floats y) { return _mm512_fnmadd_ps(x, y, sum); }

    static void store(float * to, floats x, int64_t n) { _mm512_mask_storeu_ps(to, (__mmask16) ((1u << n) - 1), x); }
};

} // namespace

few_rows_kernel few_rows_kernel_avx512(ggml_type type) {
    return few_rows_find_kernel<few_rows_avx512>(type);
}

#else

few_rows_kernel few_rows_kernel_avx512(ggml_type) {
    return nullptr;
}

#endif
