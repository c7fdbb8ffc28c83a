#pragma once

// The vectors that attention on CPUs is written with: `lanes` along the values of a key, `four` across queries. Products
// and sums are fused by name: compilers may fuse others, and not everywhere alike.
//
// MTP_ATTENTION_VECTORS: the instructions are there.

#include "ggml.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define MTP_ATTENTION_VECTORS
#    include <immintrin.h>

namespace {

#    if defined(__AVX512F__)
struct lanes {
    static constexpr int64_t N = 16;

    __m512 x;

    static lanes zero() { return { _mm512_setzero_ps() }; }

    static lanes of(float value) { return { _mm512_set1_ps(value) }; }

    static lanes load(const float * from) { return { _mm512_loadu_ps(from) }; }

    static lanes load(const ggml_fp16_t * from) {
        return { _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)) };
    }

    static lanes load(const int8_t * from) {
        return { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) from))) };
    }

    void store(float * to) const { _mm512_storeu_ps(to, x); }

    lanes add_product(lanes a, lanes b) const { return { _mm512_fmadd_ps(a.x, b.x, x) }; }

    lanes operator+(lanes other) const { return { _mm512_add_ps(x, other.x) }; }

    lanes operator*(lanes other) const { return { _mm512_mul_ps(x, other.x) }; }

    __m256 half() const {
        return _mm256_add_ps(_mm512_castps512_ps256(x),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
    }
};
#    else
struct lanes {
    static constexpr int64_t N = 8;

    __m256 x;

    static lanes zero() { return { _mm256_setzero_ps() }; }

    static lanes of(float value) { return { _mm256_set1_ps(value) }; }

    static lanes load(const float * from) { return { _mm256_loadu_ps(from) }; }

    static lanes load(const ggml_fp16_t * from) { return { _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)) }; }

    static lanes load(const int8_t * from) {
        return { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) from))) };
    }

    void store(float * to) const { _mm256_storeu_ps(to, x); }

    lanes add_product(lanes a, lanes b) const { return { _mm256_fmadd_ps(a.x, b.x, x) }; }

    lanes operator+(lanes other) const { return { _mm256_add_ps(x, other.x) }; }

    lanes operator*(lanes other) const { return { _mm256_mul_ps(x, other.x) }; }

    __m256 half() const { return x; }
};
#    endif

struct four {
    __m128 x;

    static four of(float value) { return { _mm_set1_ps(value) }; }

    static four load(const float * from) { return { _mm_loadu_ps(from) }; }

    void store(float * to) const { _mm_storeu_ps(to, x); }

    // of each
    static four sums(const lanes * of) {
        const __m256 ab   = _mm256_hadd_ps(of[0].half(), of[1].half());
        const __m256 cd   = _mm256_hadd_ps(of[2].half(), of[3].half());
        const __m256 abcd = _mm256_hadd_ps(ab, cd);
        return { _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)) };
    }

    four add_product(four a, four b) const { return { _mm_fmadd_ps(a.x, b.x, x) }; }

    four operator+(four other) const { return { _mm_add_ps(x, other.x) }; }

    four operator-(four other) const { return { _mm_sub_ps(x, other.x) }; }

    four operator*(four other) const { return { _mm_mul_ps(x, other.x) }; }

    // of the two; what is no number stays so
    four max(four other) const { return { _mm_max_ps(other.x, x) }; }

    bool any_above(four other) const { return _mm_movemask_ps(_mm_cmpgt_ps(x, other.x)); }

    // 0 where `by` is below the limit
    four zero_below(four by, float limit) const {
        return { _mm_and_ps(x, _mm_cmp_ps(by.x, _mm_set1_ps(limit), _CMP_NLT_UQ)) };
    }

    four round() const { return { _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) }; }

    // 2^x of whole numbers
    four power_of_2() const {
        return { _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(x), _mm_set1_epi32(127)), 23)) };
    }
};

} // namespace

#elif defined(__aarch64__) && defined(__ARM_NEON)
#    define MTP_ATTENTION_VECTORS
#    include <arm_neon.h>

namespace {

struct lanes {
    static constexpr int64_t N = 4;

    float32x4_t x;

    static lanes zero() { return { vdupq_n_f32(0.0f) }; }

    static lanes of(float value) { return { vdupq_n_f32(value) }; }

    static lanes load(const float * from) { return { vld1q_f32(from) }; }

    static lanes load(const ggml_fp16_t * from) { return { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) }; }

    static lanes load(const int8_t * from) {
        int32_t four_bytes;
        __builtin_memcpy(&four_bytes, from, sizeof(four_bytes));
        return { vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four_bytes)))))) };
    }

    void store(float * to) const { vst1q_f32(to, x); }

    lanes add_product(lanes a, lanes b) const { return { vfmaq_f32(x, a.x, b.x) }; }

    lanes operator+(lanes other) const { return { vaddq_f32(x, other.x) }; }

    lanes operator*(lanes other) const { return { vmulq_f32(x, other.x) }; }
};

struct four {
    float32x4_t x;

    static four of(float value) { return { vdupq_n_f32(value) }; }

    static four load(const float * from) { return { vld1q_f32(from) }; }

    void store(float * to) const { vst1q_f32(to, x); }

    // of each
    static four sums(const lanes * of) {
        return { vpaddq_f32(vpaddq_f32(of[0].x, of[1].x), vpaddq_f32(of[2].x, of[3].x)) };
    }

    four add_product(four a, four b) const { return { vfmaq_f32(x, a.x, b.x) }; }

    four operator+(four other) const { return { vaddq_f32(x, other.x) }; }

    four operator-(four other) const { return { vsubq_f32(x, other.x) }; }

    four operator*(four other) const { return { vmulq_f32(x, other.x) }; }

    // of the two; what is no number stays so
    four max(four other) const { return { vmaxq_f32(x, other.x) }; }

    bool any_above(four other) const { return vmaxvq_u32(vcgtq_f32(x, other.x)) != 0; }

    // 0 where `by` is below the limit
    four zero_below(four by, float limit) const {
        return { vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(by.x, vdupq_n_f32(limit)))) };
    }

    four round() const { return { vrndnq_f32(x) }; }

    // 2^x of whole numbers
    four power_of_2() const {
        return { vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(x), vdupq_n_s32(127)), 23)) };
    }
};

} // namespace

#endif

#if defined(MTP_ATTENTION_VECTORS)

namespace {

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
