#pragma once

// Vectors of floats, as attention on CPUs and products of half-precision weights are written with them: `lanes` along
// values, as many as an instruction takes, and `four`. Products and sums are fused by name: compilers may fuse others,
// and not everywhere alike.
//
// MTP_VECTORS: the instructions are there.

#include "ggml.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define MTP_VECTORS
#    include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#    define MTP_VECTORS
#    include <arm_neon.h>
#endif

#if defined(MTP_VECTORS)

// All of it is compiled once for each kind of CPU: the linker may not take a function of one for another's.
namespace {

typedef float   floats_4 __attribute__((vector_size(16)));
typedef int32_t ints_4 __attribute__((vector_size(16)));

template <class floats, class ints> struct vector_of {
    static constexpr int64_t N = sizeof(floats) / sizeof(float);

    floats x;

    static vector_of of(float value) { return { value - floats{} }; }

    static vector_of load(const float * from) {
        vector_of res;
        __builtin_memcpy(&res, from, sizeof(res));
        return res;
    }

    static vector_of load(const ggml_fp16_t * from);

    void store(float * to) const { __builtin_memcpy(to, &x, sizeof(x)); }

    vector_of add_product(vector_of a, vector_of b) const;

    vector_of operator+(vector_of other) const { return { x + other.x }; }

    vector_of operator-(vector_of other) const { return { x - other.x }; }

    vector_of operator*(vector_of other) const { return { x * other.x }; }

    // of the two; what is no number stays so
    vector_of max(vector_of other) const { return { other.x > x ? other.x : x }; }

    bool any_above(vector_of other) const {
        const ints above = x > other.x;
        int32_t    any   = 0;
        for (int64_t i = 0; i < N; ++i) {
            any |= above[i];
        }
        return any != 0;
    }

    // 0 where `by` is below the limit
    vector_of zero_below(vector_of by, float limit) const { return { by.x < of(limit).x ? floats{} : x }; }

    // of less than 2^22: what is added leaves no room for a fraction
    vector_of round() const { return { x + 0x1.8p23f - 0x1.8p23f }; }

    // 2^x of whole numbers
    vector_of power_of_2() const { return { (floats) ((__builtin_convertvector(x, ints) + 127) << 23) }; }
};

using four = vector_of<floats_4, ints_4>;

#    if defined(__aarch64__)

using lanes = four;

template <> inline four four::load(const ggml_fp16_t * from) {
    return { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) };
}

template <> inline four four::add_product(four a, four b) const {
    return { vfmaq_f32(x, a.x, b.x) };
}

// of each
inline four sums_of(const lanes * of) {
    return { vpaddq_f32(vpaddq_f32(of[0].x, of[1].x), vpaddq_f32(of[2].x, of[3].x)) };
}

#    else

template <> inline four four::add_product(four a, four b) const {
    return { _mm_fmadd_ps(a.x, b.x, x) };
}

#        if defined(__AVX512F__)
typedef float   floats_16 __attribute__((vector_size(64)));
typedef int32_t ints_16 __attribute__((vector_size(64)));
using lanes = vector_of<floats_16, ints_16>;

template <> inline lanes lanes::load(const ggml_fp16_t * from) {
    return { _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)) };
}

template <> inline lanes lanes::add_product(lanes a, lanes b) const {
    return { _mm512_fmadd_ps(a.x, b.x, x) };
}

inline __m256 half_of(lanes of) {
    return _mm256_add_ps(_mm512_castps512_ps256(of.x),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(of.x), 1)));
}
#        else
typedef float   floats_8 __attribute__((vector_size(32)));
typedef int32_t ints_8 __attribute__((vector_size(32)));
using lanes = vector_of<floats_8, ints_8>;

template <> inline lanes lanes::load(const ggml_fp16_t * from) {
    return { _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)) };
}

template <> inline lanes lanes::add_product(lanes a, lanes b) const {
    return { _mm256_fmadd_ps(a.x, b.x, x) };
}

inline __m256 half_of(lanes of) {
    return of.x;
}
#        endif

// of each
inline four sums_of(const lanes * of) {
    const __m256 ab   = _mm256_hadd_ps(half_of(of[0]), half_of(of[1]));
    const __m256 cd   = _mm256_hadd_ps(half_of(of[2]), half_of(of[3]));
    const __m256 abcd = _mm256_hadd_ps(ab, cd);
    return { _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)) };
}

#    endif

// e^x for x up to 80, within two units in the last place; 0 below -87
inline four exp_of(four x) {
    constexpr float LOWEST = -87.0f;

    const four n = (x.max(four::of(LOWEST)) * four::of(1.44269504f)).round();
    four       r = x.max(four::of(LOWEST)).add_product(n, four::of(-0.693359375f)); // ln 2 in two parts
    r            = r.add_product(n, four::of(2.12194440e-4f));

    constexpr float FACTORS[] = { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f };
    four            sum       = four::of(1.0f / 5040);
#    pragma GCC     unroll 7
    for (int i = 0; i < 7; ++i) {
        sum = four::of(FACTORS[i]).add_product(sum, r);
    }
    return (sum * n.power_of_2()).zero_below(x, LOWEST);
}

} // namespace

#endif
