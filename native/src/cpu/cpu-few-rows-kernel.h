#pragma once

// Products of a quantized matrix with few rows, written once for all instruction sets and types. A block of weights is
// unpacked once for all rows of activations. Knows vectors of 64 bytes (V, cpu-few-rows-<set>.cpp) and types of weights
// (T, cpu-few-rows-types.h and cpu-few-rows-repacked.h), never tensors or threads.
//
// The results are bit for bit those of the CPU backend's products with one row (its vec_dot for AVX2, and gemv for
// repacked weights): within a block it sums integers, whose order does not matter; the sums of floats over blocks are in
// its order here too, lane by lane.

#include "cpu-few-rows-task.h"

#include <immintrin.h>

#include <algorithm>

namespace {

inline float few_rows_half(const void * from) {
    return _cvtsh_ss(few_rows_load<ggml_half>(from));
}

// 16 bytes: their low halves, then the high ones
inline __m256i few_rows_nibbles_of_16(const void * from) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *) from);
    return _mm256_and_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1),
                            _mm256_set1_epi8(0x0f));
}

// 8 scales, then 8 minima, which Q4_K and Q5_K have in 12 bytes, 6 bits of each
inline __m128i few_rows_k4_bytes(const void * from) {
    const __m128i packed = _mm_loadu_si128((const __m128i *) from);
    const __m128i low =
        _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(packed, _MM_SHUFFLE(2, 1, 2, 0)), _mm_setr_epi32(0, 0, 0, 4)),
                      _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i high = _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(packed, _MM_SHUFFLE(1, 1, 0, 0)), 2),
                                       _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    return _mm_or_si128(low, high);
}

// in all lanes
inline __m256 few_rows_halves(const void * from) {
    return _mm256_cvtph_ps(_mm_set1_epi16(few_rows_load<int16_t>(from)));
}

// in the order in which the CPU backend adds
inline float few_rows_sum(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum        = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Asks for what comes some blocks later: the processor does not look that far while it unpacks.
template <class T> void few_rows_prefetch(const T & block) {
    constexpr size_t N_AHEAD = 2048;
    UNROLLED_FOR (size_t k = 0; k < sizeof(T); k += 64) {
        _mm_prefetch((const char *) &block + N_AHEAD + k, _MM_HINT_T0);
    }
}

// Blocks of matrix rows that follow each other, 64 bytes of values at a time. A description T unpacks one.
template <class V, class T> struct few_rows_in_order {
    using block                       = typename T::block;
    using block_y                     = block_q8_K;
    using sums                        = typename T::sums;
    static constexpr int64_t N_VALUES = QK_K;
    static constexpr int64_t N_ROWS   = 1;

    template <int N> static void add(sums * to, const block & x, const few_rows_inputs<block_q8_K, N> & y, int64_t b) {
        few_rows_prefetch(x);
        const T weights(x);

        typename V::sums products[N];
        UNROLLED_FOR (int k = 0; k < QK_K / 64; ++k) {
            const auto values = weights.values(k);
            const auto scales = V::spread_scales(weights.scales, k);
            UNROLLED_FOR (int n = 0; n < N; ++n) {
                products[n].add(T::IS_SIGNED, values, V::load(y[n][b].qs + 64 * k), scales);
            }
        }
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            weights.add(to[n], products[n].total(), y[n][b]);
        }
    }
};

// M vectors of matrix rows, from row i on, of types whose blocks of 32 values have a scale each. After the last row of
// the task it stands in for those that are not there.
template <class V, class T, int M, int N>
void few_rows_tile(const few_rows_task & task, const few_rows_inputs<block_q8_0, N> & y, int64_t i) {
    using block = typename T::block;

    constexpr int64_t N_TILE = M * V::N_OF_32;

    const block * x[N_TILE];
    for (int64_t m = 0; m < N_TILE; ++m) {
        x[m] = (const block *) (task.matrix + std::min(i + m, task.end - 1) * task.stride);
    }
    typename V::floats_of_32 sums[M][N] = {};
    for (int64_t b = 0; b < task.n_values / 32; ++b) {
        // the next tile, from front to back: short streams are more than the processor foresees
        const char * next = (const char *) (x[0] + b * N_TILE) + N_TILE * task.stride;
        UNROLLED_FOR (size_t k = 0; k < N_TILE * sizeof(block); k += 64) {
            _mm_prefetch(next + k, _MM_HINT_T0);
        }

        typename V::ints_of_32   values[M];
        typename V::floats_of_32 scales[M];
        UNROLLED_FOR (int m = 0; m < M; ++m) {
            values[m] = V::template values_of_32<T>(x + m * V::N_OF_32, b);
            scales[m] = V::scales_of_32(x + m * V::N_OF_32, b);
        }
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            const auto with  = V::repeat_32(y[n][b].qs);
            const auto begin = V::begin_32(with);
            const auto scale = V::repeat_scale(&y[n][b].d);
            UNROLLED_FOR (int m = 0; m < M; ++m) {
                sums[m][n] = V::add_scaled(sums[m][n], scales[m], scale, V::multiply_32(values[m], with, begin));
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        float totals[N_TILE];
        for (int m = 0; m < M; ++m) {
            V::store_totals(sums[m][n], totals + m * V::N_OF_32);
        }
        std::copy_n(totals, std::min(N_TILE, task.end - i), task.out[n] + i);
    }
}

template <class V, class T, int N> void few_rows_in_tiles(const few_rows_task & task) {
    constexpr int M = V::template n_vectors<N>();

    const few_rows_inputs<block_q8_0, N> y(task);
    for (int64_t i = task.begin; i < task.end; i += M * V::N_OF_32) {
        few_rows_tile<V, T, M, N>(task, y, i);
    }
}

} // namespace
