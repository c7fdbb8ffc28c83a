// Products of F16 and BF16 weights with few rows. Each thread reads a long stretch of the matrix in order, where
// llama.cpp's sgemm, which computes more rows, takes 16 matrix rows at a time. The sums are sgemm's, in its order
// (ggml-cpu/llamafile/sgemm.cpp), so that a row does not depend on how many there are. Compiled with the CPU backend's
// own options, as sgemm is.

#include "cpu-few-rows-task.h"

#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__) && defined(GGML_USE_LLAMAFILE)

#    include "cpu-few-rows-kernel.h"
#    include "cpu-vectors.h"

namespace {

float total(lanes x) {
#    if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x.x);
#    else
    return few_rows_sum(x.x);
#    endif
}

struct few_rows_f16 {
    using values                      = lanes;
    static constexpr int64_t N_VALUES = lanes::N;

    static values load(const uint16_t * from) { return lanes::load((const ggml_fp16_t *) from); }

    static lanes add(values x, values y, lanes sum) { return sum.add_product(x, y); }
};

#    if defined(__AVX512BF16__)
struct few_rows_bf16 {
    using values                      = __m512bh;
    static constexpr int64_t N_VALUES = 32;

    static values load(const uint16_t * from) { return (values) _mm512_loadu_ps(from); }

    static lanes add(values x, values y, lanes sum) { return { _mm512_dpbf16_ps(sum.x, x, y) }; }
};
#    else
struct few_rows_bf16 : few_rows_f16 {
    static values load(const uint16_t * from) {
#        if defined(__AVX512F__)
        const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) from));
        return { _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)) };
#        else
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) from));
        return { _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)) };
#        endif
    }
};
#    endif

// Matrix rows i to i + M
template <class T, int M, int N> void few_rows_tile(const few_rows_task & task, int64_t i) {
    const char * x = task.matrix + i * task.stride;

    lanes sums[M][N] = {};
    for (int64_t k = 0; k < task.n_values; k += T::N_VALUES) {
        // the next tile, from front to back: M short streams are more than the processor foresees
        const char * next = x + M * (task.stride + k * sizeof(uint16_t));
        UNROLLED_FOR (size_t at = 0; M > 1 && at < M * T::N_VALUES * sizeof(uint16_t); at += 64) {
            _mm_prefetch(next + at, _MM_HINT_T0);
        }

        typename T::values values[M];
        UNROLLED_FOR (int m = 0; m < M; ++m) {
            values[m] = T::load((const uint16_t *) (x + m * task.stride) + k);
        }
        UNROLLED_FOR (int n = 0; n < N; ++n) {
            const auto with = T::load((const uint16_t *) task.in[n] + k);
            UNROLLED_FOR (int m = 0; m < M; ++m) {
                sums[m][n] = T::add(values[m], with, sums[m][n]);
            }
        }
    }
    for (int m = 0; m < M; ++m) {
        for (int n = 0; n < N; ++n) {
            task.out[n][i + m] = total(sums[m][n]);
        }
    }
}

template <class T, int N> void few_rows_of_halves(const few_rows_task & task) {
    // One row waits for memory alone, which is read fastest in order; else the sums fit into the registers.
    constexpr int M = N == 1 ? 1 : N == 2 ? 4 : 2;

    int64_t i = task.begin;
    for (; i + M <= task.end; i += M) {
        few_rows_tile<T, M, N>(task, i);
    }
    for (; i < task.end; ++i) {
        few_rows_tile<T, 1, N>(task, i);
    }
}

template <class T> few_rows_kernel few_rows_if_sgemm_takes(int64_t n_values, int64_t n_matrix) {
    return n_values % T::N_VALUES == 0 && n_matrix % 4 == 0 ? FEW_ROWS_PRODUCT(few_rows_of_halves, T) :
                                                              (few_rows_kernel) nullptr;
}

} // namespace

few_rows_kernel few_rows_kernel_halves(ggml_type type, int64_t n_values, int64_t n_matrix) {
    return type == GGML_TYPE_F16  ? few_rows_if_sgemm_takes<few_rows_f16>(n_values, n_matrix) :
           type == GGML_TYPE_BF16 ? few_rows_if_sgemm_takes<few_rows_bf16>(n_values, n_matrix) :
                                    nullptr;
}

#else

few_rows_kernel few_rows_kernel_halves(ggml_type, int64_t, int64_t) {
    return nullptr;
}

#endif
