// Marked products as the CPU backend has them: rows are quantized, and the matrices are divided among the threads. Knows
// tensors and threads; what is computed is in cpu-few-rows-kernel.h.

#include "cpu-few-rows.h"

#include "cpu-few-rows-task.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"

#include <algorithm>

// Chunks of a matrix for each thread. Small ones end the processor's streams too soon: with 32 matrix rows a pass of one
// row took 17.8 ms, with 64, 128 and 256 14.6, 13.0 and 11.8 (bench/passes.py, 1b in Q4_K_M, two threads).
static constexpr int64_t N_CHUNKS = 4;

// Matrix rows, a multiple of 8. More rows of activations than are computed together read them again, from a cache then.
static constexpr int64_t N_MATRIX_MIN    = 32;
static constexpr int64_t N_MATRIX_CACHED = 128;

// Rows of a pass that may be computed one by one, where there is no kernel for them. More are a prompt.
static constexpr int64_t N_ROWS_ONE_BY_ONE = 63;

// From here on llama.cpp's own kernels are fast for some types, and on x86 have the same sums.
static constexpr int64_t N_ROWS_MAX_OF_32 = 16;

static bool is_half(const ggml_tensor * weights) {
    return weights->type == GGML_TYPE_F16 || weights->type == GGML_TYPE_BF16;
}

#if defined(__x86_64__)
// A build that stands for an older processor in tests defines less: 2 for AVX2, 0 for neither.
#    ifndef FEW_ROWS_AVX_MAX
#        define FEW_ROWS_AVX_MAX 512
#    endif

static bool has_avx2() {
    // F16C, which older compilers have no name for, comes with AVX2
    static const bool res = FEW_ROWS_AVX_MAX >= 2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return res;
}

static bool has_avx512() {
    static const bool res = FEW_ROWS_AVX_MAX >= 512 && has_avx2() && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    return res;
}
#else
static bool has_avx512() {
    return false;
}
#endif

static bool has_fast_kernel(const ggml_tensor * weights) {
    const bool in_vectors_of_32 = // sgemm has vectors of that many bytes
        weights->type == GGML_TYPE_Q8_0 || weights->type == GGML_TYPE_Q4_0 || weights->type == GGML_TYPE_Q5_0;
    return FEW_ROWS_ARE_PROMPTS && !weights->extra && ((in_vectors_of_32 && !has_avx512()) || is_half(weights));
}

few_rows_kernel few_rows_find_kernel(ggml_type type, bool repacked) {
#if defined(__x86_64__)
    if (has_avx512()) {
        if (few_rows_kernel kernel = few_rows_kernel_avx512(type, repacked)) {
            return kernel;
        }
    }
    return has_avx2() ? few_rows_kernel_avx2(type, repacked) : nullptr;
#else
    return few_rows_kernel_neon(type, repacked); // ggml chooses among its variants
#endif
}

static few_rows_kernel find_kernel(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    if (dst->src[1]->type != GGML_TYPE_F32) {
        return nullptr;
    }
    if (is_half(weights)) { // keys and values of a cache are no weights
        return weights->op == GGML_OP_NONE && !weights->view_src ?
                   few_rows_kernel_halves(weights->type, weights->ne[0], weights->ne[1]) :
                   nullptr;
    }
    return few_rows_find_kernel(weights->type, weights->extra);
}

bool mtp_rows_are_single(const ggml_tensor * dst) {
    if (!(dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS)) {
        return false;
    }
    const ggml_tensor * weights   = dst->src[0];
    const bool          is_router = weights->type == GGML_TYPE_F32 && weights->op == GGML_OP_NONE && !weights->view_src;
    const int64_t       n_rows    = dst->op == GGML_OP_MUL_MAT_ID ? dst->ne[2] : dst->ne[1];
    return n_rows <= N_ROWS_ONE_BY_ONE || is_router || (FEW_ROWS_ARE_PROMPTS && find_kernel(dst));
}

bool mtp_product_uses_sgemm(const ggml_tensor * dst) {
    if (!mtp_rows_are_single(dst)) {
        return true;
    }
    const ggml_tensor * weights = dst->src[0];
    if (is_half(weights)) {
        return find_kernel(dst); // which has the same sums
    }
#if defined(__x86_64__)
    // sums of integers do not depend on their order; but single rows of IQ4_NL have two sums
    return ggml_is_quantized(weights->type) && weights->type != GGML_TYPE_IQ4_NL;
#else
    return false; // kernels for one row sum floats differently
#endif
}

static size_t row_bytes(const ggml_tensor * weights) {
    return ggml_row_size(ggml_get_type_traits_cpu(weights->type)->vec_dot_type, weights->ne[0]);
}

// Matrix rows [begin, end) with n rows. row(i, in, out): where one is, and where the product goes.
template <class F>
static void compute(few_rows_kernel kernel, const ggml_tensor * weights, const void * matrix, int64_t begin,
                    int64_t end, int64_t n, F && row) {
    const int64_t n_part = n > N_ROWS_TOGETHER ? N_MATRIX_CACHED : end - begin;
    for (int64_t part = begin; part < end; part += n_part) {
        for (int64_t i = 0; i < n; i += N_ROWS_TOGETHER) {
            const void *  in[N_ROWS_TOGETHER];
            float *       out[N_ROWS_TOGETHER];
            const int64_t n_together = std::min(n - i, N_ROWS_TOGETHER);
            for (int64_t k = 0; k < n_together; ++k) {
                row(i + k, in[k], out[k]);
            }
            kernel({ (const char *) matrix, weights->nb[1], part, std::min(part + n_part, end), weights->ne[0],
                     n_together, in, out });
        }
    }
}

bool mtp_mul_mat_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights  = dst->src[0];
    const int64_t       n_matrix = weights->ne[1];
    const int64_t       n_rows   = dst->ne[1];

    const few_rows_kernel kernel = find_kernel(dst);
    if (!kernel || !mtp_rows_are_single(dst) || (has_fast_kernel(weights) && n_rows > N_ROWS_MAX_OF_32)) {
        return false;
    }
    const int64_t n_chunk  = std::max(n_matrix / (N_CHUNKS * params->nth) / 8 * 8, N_MATRIX_MIN);
    const int64_t n_chunks = (n_matrix + n_chunk - 1) / n_chunk;
    for (int64_t at = params->ith; at < n_chunks * dst->ne[2] * dst->ne[3];
         at         = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t begin  = at % n_chunks * n_chunk;
        const int64_t i2     = at / n_chunks % dst->ne[2];
        const int64_t i3     = at / n_chunks / dst->ne[2];
        const char *  matrix = (const char *) weights->data + i2 / (dst->ne[2] / weights->ne[2]) * weights->nb[2] +
                               i3 / (dst->ne[3] / weights->ne[3]) * weights->nb[3];
        compute(kernel, weights, matrix, begin, std::min(begin + n_chunk, n_matrix), n_rows,
                [&](int64_t i, const void *& in, float *& out) {
                    in  = (const char *) params->wdata + ((i3 * dst->ne[2] + i2) * n_rows + i) * row_bytes(weights);
                    out = (float *) ((char *) dst->data + i * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
                });
    }
    return true;
}

bool mtp_mul_mat_id_few_rows(ggml_tensor * dst, const void * matrix, int64_t begin, int64_t end, const int32_t * routed,
                             int64_t n, const void * quantized) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * src1    = dst->src[1];

    const few_rows_kernel kernel = find_kernel(dst);
    if (!kernel) {
        return false;
    }
    compute(kernel, weights, matrix, begin, end, n, [&](int64_t i, const void *& in, float *& out) {
        const int64_t place = routed[2 * i];
        const int64_t row   = routed[2 * i + 1];

        in  = (const char *) quantized + (place % src1->ne[1] + row * src1->ne[1]) * row_bytes(weights);
        out = (float *) ((char *) dst->data + place * dst->nb[1] + row * dst->nb[2]);
    });
    return true;
}
