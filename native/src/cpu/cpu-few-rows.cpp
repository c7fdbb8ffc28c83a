// Marked products as the CPU backend has them: rows are quantized by all threads, and the matrices divided among these.
// Knows tensors and threads; what is computed is in cpu-few-rows-kernel.h.

#include "cpu-few-rows.h"

#define GGML_COMMON_DECL_CPP
#include "cpu-few-rows-task.h"
#include "ggml-common.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// matrix rows that a thread takes at a time
static constexpr int64_t N_CHUNK = 32;

static few_rows_kernel find_kernel(ggml_type type) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        if (few_rows_kernel kernel = few_rows_kernel_avx512(type)) {
            return kernel;
        }
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        return few_rows_kernel_avx2(type);
    }
#endif
    GGML_UNUSED(type);
    return nullptr;
}

// Rows of blocks of 256 values are in Q8_K, others in blocks of 32.
static bool is_of_256(const ggml_tensor * weights) {
    return ggml_blck_size(weights->type) == QK_K;
}

static size_t row_bytes(const ggml_tensor * weights) {
    return is_of_256(weights) ? ggml_row_size(GGML_TYPE_Q8_K, weights->ne[0]) :
                                weights->ne[0] / 32 * sizeof(few_rows_block);
}

// as ggml's quantize_row_q8_K, in loops that compilers vectorize
static void quantize_256(const float * x, block_q8_K * to) {
    int32_t max = 0;
    for (int i = 0; i < QK_K; ++i) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        max = std::max(max, bits & 0x7fffffff);
    }
    memset(to, 0, sizeof(*to));
    if (!max) {
        return;
    }
    float largest;
    memcpy(&largest, &max, sizeof(max));
    largest = *std::find_if(x, x + QK_K - 1, [&](float value) { return std::fabs(value) == largest; });

    const float scale = -127.0f / largest;
    int32_t     rounded[QK_K];
    for (int i = 0; i < QK_K; ++i) {
        const float shifted = scale * x[i] + 12582912.0f; // 1.5 * 2^23: what remains of the fraction is rounded
        int32_t     bits;
        memcpy(&bits, &shifted, sizeof(bits));
        rounded[i] = std::min((bits & 0x007fffff) - 0x00400000, 127);
    }
    for (int i = 0; i < QK_K / 16; ++i) {
        int sum = 0;
        for (int k = 0; k < 16; ++k) {
            to->qs[16 * i + k] = rounded[16 * i + k];
            sum += rounded[16 * i + k];
        }
        to->bsums[i] = sum;
    }
    to->d = 1.0f / scale;
}

static void quantize_32(const float * x, few_rows_block * to) {
    block_q8_0 block;
    ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(x, &block, 32);
    to->d   = ggml_fp16_to_fp32(block.d);
    to->sum = 0;
    for (int i = 0; i < 32; ++i) {
        to->values[i] = block.qs[i];
        to->sum += block.qs[i];
    }
}

// A thread takes its part of each row.
static void quantize(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    const bool          of_256  = is_of_256(weights);

    const int64_t n_blocks = weights->ne[0] / (of_256 ? QK_K : 32);
    const int64_t begin    = n_blocks * params->ith / params->nth;
    const int64_t end      = n_blocks * (params->ith + 1) / params->nth;
    for (int64_t i = 0; i < ggml_nrows(rows); ++i) {
        const int64_t i1 = i % rows->ne[1];
        const int64_t i2 = i / rows->ne[1] % rows->ne[2];
        const int64_t i3 = i / rows->ne[1] / rows->ne[2];

        const auto * x =
            (const float *) ((const char *) rows->data + i1 * rows->nb[1] + i2 * rows->nb[2] + i3 * rows->nb[3]);
        char * to = (char *) params->wdata + i * row_bytes(weights);
        for (int64_t b = begin; b < end; ++b) {
            if (of_256) {
                quantize_256(x + QK_K * b, (block_q8_K *) to + b);
            } else {
                quantize_32(x + 32 * b, (few_rows_block *) to + b);
            }
        }
    }
}

// Matrices are divided into chunks, and those that follow one another go to the threads as these become free.
struct matrix_chunks {
    const ggml_compute_params * params;
    const ggml_tensor *         dst;
    few_rows_kernel             kernel;
    int64_t                     chunk;     // the next one of this thread
    int64_t                     first = 0; // chunk of the matrix that comes next

    matrix_chunks(const ggml_compute_params * params, const ggml_tensor * dst) :
        params(params), dst(dst), kernel(find_kernel(dst->src[0]->type)), chunk(params->ith) {}

    // row(i): the activations, [of all rows], and their results
    template <class F> void compute(const char * matrix, int64_t n_rows, F && row) {
        const ggml_tensor * weights = dst->src[0];
        const int64_t       n       = (weights->ne[1] + N_CHUNK - 1) / N_CHUNK;
        for (; chunk < first + n; chunk = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t begin = (chunk - first) * N_CHUNK;
            for (int64_t i = 0; i < n_rows; i += N_ROWS_TOGETHER) {
                const void *  in[N_ROWS_TOGETHER];
                float *       out[N_ROWS_TOGETHER];
                const int64_t n_together = std::min(n_rows - i, N_ROWS_TOGETHER);
                for (int64_t k = 0; k < n_together; ++k) {
                    int64_t place;
                    row(i + k, place, out[k]);
                    in[k] = (const char *) params->wdata + place * row_bytes(weights);
                }
                kernel({ matrix, weights->nb[1], begin, std::min(begin + N_CHUNK, weights->ne[1]), weights->ne[0],
                         n_together, in, out });
            }
        }
        first += n;
    }
};

static void mul_mat(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    ggml_barrier(params->threadpool);

    matrix_chunks chunks(params, dst);
    for (int64_t i3 = 0; i3 < dst->ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < dst->ne[2]; ++i2) {
            const char * matrix = (const char *) weights->data + i2 / (dst->ne[2] / weights->ne[2]) * weights->nb[2] +
                                  i3 / (dst->ne[3] / weights->ne[3]) * weights->nb[3];
            chunks.compute(matrix, dst->ne[1], [&](int64_t i, int64_t & place, float *& out) {
                place = i + (i2 + i3 * dst->ne[2]) * dst->ne[1];
                out   = (float *) ((char *) dst->data + i * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
            });
        }
    }
}

// Rows by expert, after the quantized rows in the work memory: where each expert's begin, [n_experts + 1], and for each
// its row * n_used + its place among the row's experts.
struct routes {
    int32_t * begin;
    int32_t * routed;

    routes(const ggml_compute_params * params, const ggml_tensor * dst) {
        const ggml_tensor * weights = dst->src[0];

        begin  = (int32_t *) ((char *) params->wdata + ggml_nrows(dst->src[1]) * row_bytes(weights));
        routed = begin + weights->ne[2] + 1;
    }

    static size_t n_bytes(const ggml_tensor * dst) {
        return (dst->src[0]->ne[2] + 1 + ggml_nelements(dst->src[2])) * sizeof(int32_t);
    }

    void set(const ggml_tensor * weights, const ggml_tensor * ids) {
        const auto expert = [&](int64_t row, int64_t place) {
            return *(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + place * ids->nb[0]);
        };
        const int64_t n_experts = weights->ne[2];
        std::fill(begin, begin + n_experts + 1, 0);
        for (int64_t row = 0; row < ids->ne[1]; ++row) {
            for (int64_t place = 0; place < ids->ne[0]; ++place) {
                GGML_ASSERT(expert(row, place) >= 0 && expert(row, place) < n_experts);
                ++begin[expert(row, place)];
            }
        }
        // counts become ends, and these, from the last one down, the places where an expert's rows begin
        for (int64_t i = 1; i <= n_experts; ++i) {
            begin[i] += begin[i - 1];
        }
        for (int64_t row = ids->ne[1] - 1; row >= 0; --row) {
            for (int64_t place = ids->ne[0] - 1; place >= 0; --place) {
                routed[--begin[expert(row, place)]] = row * ids->ne[0] + place;
            }
        }
    }
};

static void mul_mat_id(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    const ggml_tensor * ids     = dst->src[2];

    routes by_expert(params, dst);
    if (params->ith == 0) {
        by_expert.set(weights, ids);
    }
    ggml_barrier(params->threadpool);

    matrix_chunks chunks(params, dst);
    for (int64_t i = 0; i < weights->ne[2]; ++i) {
        const int32_t * routed = by_expert.routed + by_expert.begin[i];
        const int64_t   n      = by_expert.begin[i + 1] - by_expert.begin[i];
        if (n == 0) {
            continue;
        }
        chunks.compute((const char *) weights->data + i * weights->nb[2], n,
                       [&](int64_t k, int64_t & place, float *& out) {
                           const int64_t used = routed[k] % ids->ne[0];
                           const int64_t row  = routed[k] / ids->ne[0];

                           place = used % rows->ne[1] + row * rows->ne[1];
                           out   = (float *) ((char *) dst->data + used * dst->nb[1] + row * dst->nb[2]);
                       });
    }
}

size_t mtp_few_rows_work_size(const ggml_tensor * dst) {
    constexpr int MARKS = GGML_TENSOR_FLAG_SINGLE_ROWS | GGML_TENSOR_FLAG_ALIKE_ROWS;
    if (!(dst->flags & MARKS) || (dst->op != GGML_OP_MUL_MAT && dst->op != GGML_OP_MUL_MAT_ID)) {
        return 0;
    }
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    if (rows->type != GGML_TYPE_F32 || rows->nb[0] != sizeof(float) || !find_kernel(weights->type) ||
        weights->nb[0] != ggml_type_size(weights->type)) {
        return 0;
    }
    return ggml_nrows(rows) * row_bytes(weights) + (dst->op == GGML_OP_MUL_MAT_ID ? routes::n_bytes(dst) : 0);
}

bool mtp_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!mtp_few_rows_work_size(dst)) {
        return false;
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    quantize(params, dst);
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        mul_mat_id(params, dst);
    } else {
        mul_mat(params, dst);
    }
    return true;
}
