#include "cpu-few-rows.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu-impl.h"

#include <algorithm>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#    include <immintrin.h>

// more are work for kernels that keep many rows in registers
static constexpr int64_t N_ROWS_MAX = 16;

// matrix rows that a thread takes at a time
static constexpr int64_t N_CHUNK = 32;

// products of the bytes of 8 groups of 4, summed up by group
static inline __m256i few_rows_dot(__m256i x, __m256i y, [[maybe_unused]] __m256i minus_128_y) {
#    if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(minus_128_y, _mm256_xor_si256(x, _mm256_set1_epi8(-128)), y);
#    else
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(x, x), _mm256_sign_epi8(y, x));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#    endif
}

// The instruction takes its first bytes as unsigned. x + 128 is; what that adds is taken off again.
static inline __m256i few_rows_minus_128(__m256i y) {
#    if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    const __m256i zero = _mm256_setzero_si256();
    return _mm256_sub_epi32(zero, _mm256_dpbusd_epi32(zero, _mm256_set1_epi8(-128), y));
#    else
    return y;
#    endif
}

static inline __m256 few_rows_scale(ggml_half d) {
    return _mm256_cvtph_ps(_mm_set1_epi16(d));
}

// in the order in which the CPU backend adds
static inline float few_rows_sum(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum        = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// n rows of activations, and where the products with them go
struct few_rows {
    int64_t            n = 0;
    const block_q8_0 * in[N_ROWS_MAX];
    float *            out[N_ROWS_MAX];

    void add(const void * row, float * to) {
        in[n]    = (const block_q8_0 *) row;
        out[n++] = to;
    }
};

// matrix rows i to i + M with rows j to j + N
template <int M, int N>
static void few_rows_tile(const few_rows & rows, int64_t j, int64_t n_blocks, const block_q8_0 * matrix, int64_t stride,
                          int64_t i) {
    const block_q8_0 * x = matrix + i * stride;

    __m256 sums[M][N] = {};

    for (int64_t b = 0; b < n_blocks; ++b) {
        // the next tile, from front to back: M short streams are more than the processor foresees
        const char * next = (const char *) (x + M * stride) + b * M * sizeof(block_q8_0);
#    pragma GCC unroll 8
        for (size_t k = 0; k < M * sizeof(block_q8_0); k += 64) {
            _mm_prefetch(next + k, _MM_HINT_T0);
        }

        __m256i xs[M];
        __m256  x_scales[M];
#    pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            xs[m]       = _mm256_loadu_si256((const __m256i *) x[m * stride + b].qs);
            x_scales[m] = few_rows_scale(x[m * stride + b].d);
        }
#    pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const block_q8_0 & y = rows.in[j + n][b];

            const __m256i ys          = _mm256_loadu_si256((const __m256i *) y.qs);
            const __m256i minus_128_y = few_rows_minus_128(ys);
            const __m256  y_scale     = few_rows_scale(y.d);
#    pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const __m256 dot = _mm256_cvtepi32_ps(few_rows_dot(xs[m], ys, minus_128_y));
                sums[m][n]       = _mm256_fmadd_ps(_mm256_mul_ps(x_scales[m], y_scale), dot, sums[m][n]);
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        for (int m = 0; m < M; ++m) {
            rows.out[j + n][i + m] = few_rows_sum(sums[m][n]);
        }
    }
}

template <int N>
static void few_rows_product(const few_rows & rows, int64_t j, int64_t n_blocks, const block_q8_0 * matrix,
                             int64_t stride, int64_t begin, int64_t end) {
    constexpr int M = N <= 4 ? 4 : 2; // the sums fit into the registers

    int64_t i = begin;
    for (; i + M <= end; i += M) {
        few_rows_tile<M, N>(rows, j, n_blocks, matrix, stride, i);
    }
    for (; i < end; ++i) {
        few_rows_tile<1, N>(rows, j, n_blocks, matrix, stride, i);
    }
}

// matrix rows [begin, end)
static void few_rows_product(const few_rows & rows, const ggml_tensor * weights, const void * matrix, int64_t begin,
                             int64_t end) {
    static constexpr decltype(&few_rows_product<1>) KERNELS[] = {
        few_rows_product<1>, few_rows_product<2>, few_rows_product<3>, few_rows_product<4>,
        few_rows_product<5>, few_rows_product<6>, few_rows_product<7>, few_rows_product<8>,
    };
    for (int64_t j = 0; j < rows.n; j += 8) {
        KERNELS[std::min<int64_t>(rows.n - j, 8) - 1](rows, j, weights->ne[0] / QK8_0, (const block_q8_0 *) matrix,
                                                      weights->nb[1] / sizeof(block_q8_0), begin, end);
    }
}

static bool few_rows_can(const ggml_tensor * dst, int64_t n) {
    return dst->src[0]->type == GGML_TYPE_Q8_0 && dst->src[1]->type == GGML_TYPE_F32 && n <= N_ROWS_MAX;
}

bool mtp_mul_mat_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights  = dst->src[0];
    const int64_t       n_matrix = weights->ne[1];

    if (!few_rows_can(dst, dst->ne[1]) || dst->ne[2] * dst->ne[3] > 1 || weights->ne[2] * weights->ne[3] > 1) {
        return false;
    }
    few_rows rows;
    for (int64_t j = 0; j < dst->ne[1]; ++j) {
        rows.add((const char *) params->wdata + j * ggml_row_size(GGML_TYPE_Q8_0, weights->ne[0]),
                 (float *) ((char *) dst->data + j * dst->nb[1]));
    }
    for (int64_t chunk = params->ith; chunk * N_CHUNK < n_matrix;
         chunk         = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        few_rows_product(rows, weights, weights->data, chunk * N_CHUNK, std::min((chunk + 1) * N_CHUNK, n_matrix));
    }
    return true;
}

bool mtp_mul_mat_id_few_rows(ggml_tensor * dst, const void * matrix, int64_t begin, int64_t end, const int32_t * routed,
                             int64_t n, const void * quantized) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * src1    = dst->src[1];

    if (!few_rows_can(dst, n)) {
        return false;
    }
    few_rows rows;
    for (int64_t j = 0; j < n; ++j) {
        const int64_t place = routed[2 * j];
        const int64_t row   = routed[2 * j + 1];
        rows.add((const char *) quantized +
                     (place % src1->ne[1] + row * src1->ne[1]) * ggml_row_size(GGML_TYPE_Q8_0, weights->ne[0]),
                 (float *) ((char *) dst->data + place * dst->nb[1] + row * dst->nb[2]));
    }
    few_rows_product(rows, weights, matrix, begin, end);
    return true;
}

#else

bool mtp_mul_mat_few_rows(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

bool mtp_mul_mat_id_few_rows(ggml_tensor *, const void *, int64_t, int64_t, const int32_t *, int64_t, const void *) {
    return false;
}

#endif
