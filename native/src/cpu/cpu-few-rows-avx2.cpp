// The kernels for few rows with AVX2: 64 bytes are two vectors.

#include "cpu-few-rows-task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !(defined(MTP_ONE_KERNEL) && defined(__AVX512VNNI__))

#    include "cpu-few-rows-repacked.h"
#    include "cpu-few-rows-types.h"

namespace {

struct few_rows_avx2 {
    struct ints {
        __m256i first;
        __m256i second;
    };

    static ints zero() { return { _mm256_setzero_si256(), _mm256_setzero_si256() }; }

    static __m256i load_32(const void * from) { return _mm256_loadu_si256((const __m256i *) from); }

    static ints load(const void * from) { return { load_32(from), load_32((const char *) from + 32) }; }

    // 32 bytes, and after them the same with each 16 bits shifted to the right
    static ints twice(const void * from, int n) { return { load_32(from), _mm256_srli_epi16(load_32(from), n) }; }

    static __m256i mask(__m256i x, int byte) { return _mm256_and_si256(x, _mm256_set1_epi8(byte)); }

    static ints mask(ints x, int byte) { return { mask(x.first, byte), mask(x.second, byte) }; }

    static ints join(ints x, ints y) {
        return { _mm256_or_si256(x.first, y.first), _mm256_or_si256(x.second, y.second) };
    }

    // of 16 bits at a time: what crosses bytes is for the caller to mask out
    static __m256i left(__m256i x, int n) {
        return n > 0 ? _mm256_slli_epi16(x, n) : n < 0 ? _mm256_srli_epi16(x, -n) : x;
    }

    static ints left(ints x, int n) { return { left(x.first, n), left(x.second, n) }; }

    // the low halves of 16 bytes, then the high ones; then those of 16 more
    static ints nibbles_of_16_twice(const void * from) {
        return { few_rows_nibbles_of_16(from), few_rows_nibbles_of_16((const char *) from + 16) };
    }

    static ints look_up(const int8_t * table, ints places) {
        const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table));
        return { _mm256_shuffle_epi8(values, places.first), _mm256_shuffle_epi8(values, places.second) };
    }

    static ints subtract_bytes(ints x, int byte) {
        return { _mm256_sub_epi8(x.first, _mm256_set1_epi8(byte)), _mm256_sub_epi8(x.second, _mm256_set1_epi8(byte)) };
    }

    static ints add(ints x, ints y) {
        return { _mm256_add_epi32(x.first, y.first), _mm256_add_epi32(x.second, y.second) };
    }

    // scales 4 * i to 4 * i + 3 of 16, for 16 bytes each
    static ints spread_scales(__m256i of_16, int i) {
        const __m256i half =
            i < 2 ? _mm256_permute2x128_si256(of_16, of_16, 0x00) : _mm256_permute2x128_si256(of_16, of_16, 0x11);
        const __m256i places = _mm256_inserti128_si256(_mm256_set1_epi16(0x0100), _mm_set1_epi16(0x0302), 1);
        return { _mm256_shuffle_epi8(half, _mm256_add_epi8(places, _mm256_set1_epi8(8 * (i % 2)))),
                 _mm256_shuffle_epi8(half, _mm256_add_epi8(places, _mm256_set1_epi8(8 * (i % 2) + 4))) };
    }

    // products of 64 values, with a scale for each pair
    struct sums {
        __m256i sum = _mm256_setzero_si256();

        void add(bool is_signed, ints x, ints y, ints scales) {
            add(is_signed, x.first, y.first, scales.first);
            add(is_signed, x.second, y.second, scales.second);
        }

        void add(bool is_signed, __m256i x, __m256i y, __m256i scales) {
            if (is_signed) {
                y = _mm256_sign_epi8(y, x);
                x = _mm256_abs_epi8(x);
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), scales));
        }

        __m256i total() const { return sum; }
    };

    // --- blocks of 32 values, of a matrix row ---

    static constexpr int N_OF_32 = 1;
    using ints_of_32             = __m256i;
    using floats_of_32           = __m256;

    // the sums fit into the registers
    template <int N> static constexpr int n_vectors() { return N <= 4 ? 4 : 2; }

    template <class T> static __m256i values_of_32(const typename T::block * const * x, int64_t b) {
        return T::values(x[0][b]);
    }

    template <class block> static __m256 scales_of_32(const block * const * x, int64_t b) {
        return few_rows_halves(&x[0][b].d);
    }

    static __m256i repeat_32(const void * from) { return _mm256_loadu_si256((const __m256i *) from); }

    static __m256 repeat_scale(const void * from) { return few_rows_halves(from); }

    static __m256i begin_32(__m256i) { return _mm256_setzero_si256(); }

    static __m256i multiply_32(__m256i x, __m256i y, __m256i) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }

    static __m256 add_scaled(__m256 sum, __m256 x, __m256 y, __m256i products) {
        return _mm256_fmadd_ps(_mm256_mul_ps(x, y), _mm256_cvtepi32_ps(products), sum);
    }

    static void store_totals(__m256 sum, float * to) { *to = few_rows_sum(sum); }

    // --- 8 matrix rows, 8 bytes of each ---

    // 8 bytes, a scale for each row
    static ints spread_8_scales(__m128i bytes) {
        const __m128i twice = _mm_unpacklo_epi8(bytes, bytes);
        return { _mm256_cvtepu8_epi16(_mm_unpacklo_epi16(twice, twice)),
                 _mm256_cvtepu8_epi16(_mm_unpackhi_epi16(twice, twice)) };
    }

    // 8 * K values of each row, of at most 4 bits: 4 sums of two products fit into 16 bits
    template <int K> static ints multiply_8_rows(const ints (&x)[K], const int8_t * y, ints scales) {
        static_assert(K <= 4);
        ints sum = zero();
        UNROLLED_FOR (int k = 0; k < K; ++k) {
            const __m256i with = _mm256_set1_epi64x(few_rows_load<int64_t>(y + 8 * k));
            sum.first          = _mm256_add_epi16(sum.first, _mm256_maddubs_epi16(x[k].first, with));
            sum.second         = _mm256_add_epi16(sum.second, _mm256_maddubs_epi16(x[k].second, with));
        }
        return { _mm256_madd_epi16(sum.first, scales.first), _mm256_madd_epi16(sum.second, scales.second) };
    }

    static ints multiply_8_rows_signed(const ints * x, const int8_t * y) {
        ints sum = zero();
        UNROLLED_FOR (int k = 0; k < 4; ++k) {
            const __m256i with = _mm256_set1_epi64x(few_rows_load<int64_t>(y + 8 * k));
            sum = add(sum, { multiply_32(x[k].first, with, with), multiply_32(x[k].second, with, with) });
        }
        return sum;
    }

    static __m256i add_pairs(__m256i sum, __m256i pairs, const int16_t * with) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi32(few_rows_load<int32_t>(with))));
    }

    static __m256i add_neighbours(ints x) {
        const __m256i sums = _mm256_hadd_epi32(x.first, x.second); // rows 0, 1, 4, 5, 2, 3, 6, 7
        return _mm256_permute4x64_epi64(sums, _MM_SHUFFLE(3, 1, 2, 0));
    }
};

} // namespace

few_rows_kernel few_rows_kernel_avx2(ggml_type type, bool repacked) {
    return repacked ? few_rows_find_repacked<few_rows_avx2>(type) : few_rows_find_in_order<few_rows_avx2>(type);
}

#else

few_rows_kernel few_rows_kernel_avx2(ggml_type, bool) {
    return nullptr;
}

#endif
