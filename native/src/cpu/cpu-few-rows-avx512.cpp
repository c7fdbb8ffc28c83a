// The kernels for few rows with AVX-512 and VNNI.

#include "cpu-few-rows-task.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#    include "cpu-few-rows-repacked.h"
#    include "cpu-few-rows-types.h"

namespace {

struct few_rows_avx512 {
    using ints = __m512i;

    static ints zero() { return _mm512_setzero_si512(); }

    static ints load(const void * from) { return _mm512_loadu_si512(from); }

    // 32 bytes, and after them the same with each 16 bits shifted to the right
    static ints twice(const void * from, int n) {
        return _mm512_srlv_epi16(repeat_32(from), _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(n), 1));
    }

    static ints mask(ints x, int byte) { return _mm512_and_si512(x, _mm512_set1_epi8(byte)); }

    static ints join(ints x, ints y) { return _mm512_or_si512(x, y); }

    // of 16 bits at a time: what crosses bytes is for the caller to mask out
    static ints left(ints x, int n) { return n > 0 ? _mm512_slli_epi16(x, n) : n < 0 ? _mm512_srli_epi16(x, -n) : x; }

    // the low halves of 16 bytes, then the high ones; then those of 16 more
    static ints nibbles_of_16_twice(const void * from) {
        const __m512i bytes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) from));
        const __m512i twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), bytes);
        return mask(_mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), 0x0f);
    }

    static ints look_up(const int8_t * table, ints places) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) table)), places);
    }

    static ints subtract_bytes(ints x, int byte) { return _mm512_sub_epi8(x, _mm512_set1_epi8(byte)); }

    static ints add(ints x, ints y) { return _mm512_add_epi32(x, y); }

    // scales 4 * i to 4 * i + 3 of 16, for 16 bytes each
    static ints spread_scales(__m256i of_16, int i) {
        const __m512i places = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(1), 1)),
            _mm256_inserti128_si256(_mm256_set1_epi16(2), _mm_set1_epi16(3), 1), 1);
        return _mm512_permutexvar_epi16(_mm512_add_epi16(places, _mm512_set1_epi16(4 * i)),
                                        _mm512_castsi256_si512(of_16));
    }

    // products of 64 values, with a scale for each pair
    struct sums {
        ints sum = zero();

        void add(bool is_signed, ints x, ints y, ints scales) {
            if (is_signed) {
                y = _mm512_mask_sub_epi8(y, _mm512_movepi8_mask(x), zero(), y);
                x = _mm512_abs_epi8(x);
            }
            sum = _mm512_dpwssd_epi32(sum, _mm512_maddubs_epi16(x, y), scales);
        }

        __m256i total() const {
            return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        }
    };

    // --- blocks of 32 values, of two matrix rows ---

    static constexpr int N_OF_32 = 2;
    using ints_of_32             = __m512i;
    using floats_of_32           = __m512;

    // of 8 rows of activations, too: the sums that do not fit into the registers cost less than to unpack again
    template <int N> static constexpr int n_vectors() { return 4; }

    // x + 128: the instruction takes its first bytes as unsigned
    template <class T> static ints values_of_32(const typename T::block * const * x, int64_t b) {
        return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(T::values(x[0][b])), T::values(x[1][b]), 1),
                                _mm512_set1_epi8(-128));
    }

    template <class block> static __m512 scales_of_32(const block * const * x, int64_t b) {
        return _mm512_cvtph_ps(_mm256_set_m128i(_mm_set1_epi16(few_rows_load<int16_t>(&x[1][b].d)),
                                                _mm_set1_epi16(few_rows_load<int16_t>(&x[0][b].d))));
    }

    static ints repeat_32(const void * from) {
        return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) from));
    }

    static __m512 repeat_scale(const void * from) {
        return _mm512_cvtph_ps(_mm256_set1_epi16(few_rows_load<int16_t>(from)));
    }

    // what 128 adds is taken off again
    static ints begin_32(ints y) {
        return _mm512_sub_epi32(zero(), _mm512_dpbusd_epi32(zero(), _mm512_set1_epi8(-128), y));
    }

    static ints multiply_32(ints x, ints y, ints begin) { return _mm512_dpbusd_epi32(begin, x, y); }

    static __m512 add_scaled(__m512 sum, __m512 x, __m512 y, ints products) {
        return _mm512_fmadd_ps(_mm512_mul_ps(x, y), _mm512_cvtepi32_ps(products), sum);
    }

    static void store_totals(__m512 sum, float * to) {
        to[0] = few_rows_sum(_mm512_castps512_ps256(sum));
        to[1] = few_rows_sum(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum), 1)));
    }

    // --- 8 matrix rows, 8 bytes of each ---

    // 8 bytes, a scale for each row
    static ints spread_8_scales(__m128i bytes) { return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes)); }

    // 8 * K values of each row
    template <int K> static ints multiply_8_rows(const ints (&x)[K], const int8_t * y, ints scales) {
        ints sum = _mm512_setzero_si512();
        UNROLLED_FOR (int k = 0; k < K; ++k) {
            sum = _mm512_dpbusd_epi32(sum, x[k], _mm512_set1_epi64(few_rows_load<int64_t>(y + 8 * k)));
        }
        return _mm512_mullo_epi32(sum, scales);
    }

    static ints multiply_8_rows_signed(const ints * x, const int8_t * y) {
        ints sum = _mm512_setzero_si512();
        UNROLLED_FOR (int k = 0; k < 4; ++k) {
            const ints with = _mm512_set1_epi64(few_rows_load<int64_t>(y + 8 * k));
            sum             = _mm512_dpbusd_epi32(sum, _mm512_abs_epi8(x[k]),
                                                  _mm512_mask_sub_epi8(with, _mm512_movepi8_mask(x[k]), zero(), with));
        }
        return sum;
    }

    static __m256i add_pairs(__m256i sum, __m256i pairs, const int16_t * with) {
        return _mm256_dpwssd_epi32(sum, pairs, _mm256_set1_epi32(few_rows_load<int32_t>(with)));
    }

    static __m256i add_neighbours(ints x) {
        return _mm512_cvtepi64_epi32(_mm512_add_epi32(x, _mm512_srli_epi64(x, 32)));
    }
};

} // namespace

few_rows_kernel few_rows_kernel_avx512(ggml_type type, bool repacked) {
    return repacked ? few_rows_find_repacked<few_rows_avx512>(type) : few_rows_find_in_order<few_rows_avx512>(type);
}

#else

few_rows_kernel few_rows_kernel_avx512(ggml_type, bool) {
    return nullptr;
}

#endif
