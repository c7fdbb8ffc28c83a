#include "cuda-quantized-norm.cuh"
#include "mmvq.cuh"

#include <algorithm>

static constexpr int N_THREADS       = 1024;
static constexpr int N_NODES_TO_LOOK = 4;

static __global__ void quantized_norm(const float * x, const float * weights, float * dst, block_q8_1 * quantized,
                                      int64_t stride, int n_values, float eps) {
    extern __shared__ float shared[];

    x += blockIdx.x * stride;
    dst += (int64_t) blockIdx.x * n_values;
    quantized += (int64_t) blockIdx.x * n_values / QK8_1;

    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n_values; i += N_THREADS) {
        sum += x[i] * x[i];
    }
    sum = block_reduce<block_reduce_method::SUM, N_THREADS>(sum, shared);

    const float scale = rsqrtf(sum / n_values + eps);
    for (int i = threadIdx.x; i < n_values; i += N_THREADS) { // a warp has a block at a time
        const float value = scale * x[i] * weights[i];
        dst[i]            = value;

        static_assert(QK8_1 == WARP_SIZE);
        const float d = warp_reduce_max<WARP_SIZE>(fabsf(value)) / 127.0f;

        quantized[i / QK8_1].qs[i % QK8_1] = d == 0.0f ? 0 : roundf(value / d);

        const float block_sum = warp_reduce_sum<WARP_SIZE>(value);
        if (i % QK8_1 == 0) {
            quantized[i / QK8_1].ds = make_half2(d, block_sum);
        }
    }
}

static bool quantized_norm_is_used(const ggml_cgraph * cgraph, int i, const ggml_tensor * result) {
    const int end = std::min(cgraph->n_nodes, i + N_NODES_TO_LOOK);
    return std::any_of(cgraph->nodes + i, cgraph->nodes + end, [&](const ggml_tensor * node) {
        return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) &&
               (node->src[1] == result || node->src[1]->view_src == result) && ggml_is_quantized(node->src[0]->type);
    });
}

bool mtp_cuda_quantized_norm(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i) {
    const ggml_tensor * norm    = cgraph->nodes[i];
    const ggml_tensor * result  = cgraph->nodes[i + 1];
    const ggml_tensor * x       = norm->src[0];
    const ggml_tensor * weights = result->src[result->src[0] == norm ? 1 : 0];

    const int64_t n_values = x->ne[0];
    const int64_t n_rows   = x->ne[1];
    if (!(result->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) || n_values % MATRIX_ROW_PADDING != 0 ||
        n_rows > MMVQ_MAX_BATCH_SIZE || x->ne[2] * x->ne[3] != 1 || ggml_nelements(weights) != n_values ||
        !ggml_is_contiguous(weights) || !ggml_is_contiguous(result) || ctx.curr_stream_no != 0 ||
        n_rows * n_values / QK8_1 * sizeof(block_q8_1) > ctx.QUANTIZED_SIZE ||
        !quantized_norm_is_used(cgraph, i + 2, result)) {
        return false;
    }
    ggml_cuda_kernel_launch(quantized_norm,
                            ggml_cuda_kernel_launch_params(n_rows, N_THREADS, 32 * sizeof(float), ctx.stream()),
                            (const float *) x->data, (const float *) weights->data, (float *) result->data,
                            (block_q8_1 *) ctx.quantized_memory(), (int64_t) (x->nb[1] / sizeof(float)), (int) n_values,
                            ggml_get_op_params_f32(norm, 0));
    ctx.quantized.src = result;
    return true;
}
