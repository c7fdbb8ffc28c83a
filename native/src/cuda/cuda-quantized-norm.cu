#include "common.cuh"
//
#include "cuda-many-rows-pack.cuh"
#include "cuda-more-rows-quantize.cuh"
#include "cuda-quantized-norm.cuh"
#include "mmvq.cuh"

#include <algorithm>

static constexpr int N_THREADS_MAX   = 1024;
static constexpr int N_VALUES        = 4;  // that a thread takes at a time
static constexpr int N_TURNS         = 4;
static constexpr int N_NODES_TO_LOOK = 64; // of a layer: experts are chosen, and added, before a shared one

// Puts 4 values of a row of n times 4 where the kernel for few rows wants them.
static __device__ __forceinline__ void put_block(block_q8_1 * quantized, int row, int place, int n, float4 v) {
    constexpr int n_lanes   = QK8_1 / N_VALUES; // have a block together
    const float   highest   = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    const float   d         = warp_reduce_max<n_lanes>(highest) / 127.0f;
    const float   block_sum = warp_reduce_sum<n_lanes>(v.x + v.y + v.z + v.w);
    const auto    round     = [&](float value) {
        return (signed char) (d == 0.0f ? 0.0f : roundf(value / d));
    };
    if (place < n) {
        block_q8_1 & block = quantized[((int64_t) row * n + place) / n_lanes];

        ((char4 *) block.qs)[place % n_lanes] = make_char4(round(v.x), round(v.y), round(v.z), round(v.w));
        if (place % n_lanes == 0) {
            block.ds = make_half2(d, block_sum);
        }
    }
}

// Puts 4 values where the kernel that takes these rows wants them. n_tiles: of all rows, as tensor cores take them, or of
// a group of 16; or 0: they are few.
static __device__ __forceinline__ void put(char * quantized, int n_tiles, int row, int place, int n, float4 v) {
    if (n_tiles > more_rows_all_tiles(MORE_ROWS_COLUMNS_MAX)) {
        many_rows_put(quantized, n_tiles, row, place, n, v);
    } else if (n_tiles > 0) {
        quantized += row / MORE_ROWS_COLUMNS_MAX * more_rows_size(n * N_VALUES, 8 * n_tiles);
        more_rows_put(quantized, n_tiles, row % MORE_ROWS_COLUMNS_MAX, place, v, place < n);
    } else {
        put_block((block_q8_1 *) quantized, row, place, n, v);
    }
}

// A thread block for each row, whose values are all in its registers.
static __global__ void quantized_norm(const float4 * x, const float4 * weights, float4 * dst, char * quantized,
                                      int64_t stride, int n, float eps, int n_tiles) {
    __shared__ float shared[WARP_SIZE];

    x += blockIdx.x * stride;
    dst += (int64_t) blockIdx.x * n;

    float4 values[N_TURNS];
    float4 factors[N_TURNS];
    ggml_cuda_pdl_lc();
#pragma unroll
    for (int k = 0; k < N_TURNS; ++k) {
        const int i = k * blockDim.x + threadIdx.x;
        factors[k]  = i < n ? weights[i] : float4{};
    }
    ggml_cuda_pdl_sync();

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N_TURNS; ++k) {
        const int i = k * blockDim.x + threadIdx.x;
        values[k]   = i < n ? x[i] : float4{};
        sum += values[k].x * values[k].x + values[k].y * values[k].y + values[k].z * values[k].z +
               values[k].w * values[k].w;
    }
    sum = block_reduce<block_reduce_method::SUM>(sum, shared);

    const float scale = rsqrtf(sum / (n * N_VALUES) + eps);
#pragma unroll
    for (int k = 0; k < N_TURNS && k * blockDim.x < n; ++k) {
        const int    i = k * blockDim.x + threadIdx.x;
        const float4 v = { scale * values[k].x * factors[k].x, scale * values[k].y * factors[k].y,
                           scale * values[k].z * factors[k].z, scale * values[k].w * factors[k].w };

        if (i < n) {
            dst[i] = v;
        }
        put(quantized, n_tiles, blockIdx.x, i, n, v);
    }
}

// of all rows, as tensor cores take them, or of a group; 0: they are few
static int quantized_tiles(int64_t n_rows, const ggml_tensor * result) {
    if (result->flags & GGML_TENSOR_FLAG_INVARIANT) {
        n_rows = std::min<int64_t>(n_rows, MORE_ROWS_COLUMNS_MAX);
    }
    return n_rows > MORE_ROWS_COLUMNS_MAX  ? many_rows_all_tiles((int) n_rows) :
           n_rows >= MORE_ROWS_COLUMNS_MIN ? more_rows_all_tiles((int) n_rows) :
                                             0;
}

// Whether there is room for all rows, quantized, in the form that takes most. With GGML_TENSOR_FLAG_INVARIANT the most rows
// decide: whether a norm is computed here must not depend on their number, as llama.cpp's adds in another order.
static bool quantized_fits(const ggml_backend_cuda_context & ctx, int64_t n_values, int64_t n_rows,
                           const ggml_tensor * result) {
    const int64_t n    = result->flags & GGML_TENSOR_FLAG_INVARIANT ? MANY_ROWS_INVARIANT : n_rows;
    const size_t  size = n > MORE_ROWS_COLUMNS_MAX ? many_rows_size(n_values, n) : more_rows_size(n_values, (int) n);
    return n_rows <= n && n <= MANY_ROWS_COLUMNS_MAX && size <= ctx.QUANTIZED_SIZE;
}

// the next product that takes these rows quantized, or nullptr
static const ggml_tensor * quantized_norm_user(const ggml_cgraph * cgraph, int i, const ggml_tensor * result) {
    const auto end  = cgraph->nodes + std::min(cgraph->n_nodes, i + N_NODES_TO_LOOK);
    const auto user = std::find_if(cgraph->nodes + i, end, [&](const ggml_tensor * node) {
        // from 5 tokens on they are put into groups, and quantized there: but a row's norm is the same for up to 16
        const bool has_few = node->ne[2] <= MORE_ROWS_COLUMNS_MAX || (node->flags & GGML_TENSOR_FLAG_INVARIANT);
        return (node->op == GGML_OP_MUL_MAT || (node->op == GGML_OP_MUL_MAT_ID && has_few)) &&
               (node->src[1] == result || node->src[1]->view_src == result) && ggml_is_quantized(node->src[0]->type);
    });
    return user < end ? *user : nullptr;
}

bool mtp_cuda_quantized_norm(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i) {
    const ggml_tensor * norm    = cgraph->nodes[i];
    const ggml_tensor * result  = cgraph->nodes[i + 1];
    const ggml_tensor * x       = norm->src[0];
    const ggml_tensor * weights = result->src[result->src[0] == norm ? 1 : 0];

    const int64_t n_values   = x->ne[0];
    const int64_t n_rows     = x->ne[1];
    const auto *  user       = quantized_norm_user(cgraph, i + 2, result);
    const bool    is_aligned = ((size_t) x->data | x->nb[1] | (size_t) weights->data | (size_t) result->data) % 16 == 0;
    // the kernel reads the weights before what was started ahead of it has ended
    if (!is_aligned || weights->op != GGML_OP_NONE || n_values > N_THREADS_MAX * N_TURNS * N_VALUES ||
        !(result->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) || n_values % MATRIX_ROW_PADDING != 0 ||
        x->ne[2] * x->ne[3] != 1 || ggml_nelements(weights) != n_values || !ggml_is_contiguous(weights) ||
        !ggml_is_contiguous(result) || ctx.curr_stream_no != 0 || !quantized_fits(ctx, n_values, n_rows, result) ||
        !user) {
        return false;
    }
    const int n_tiles   = quantized_tiles(n_rows, result);
    const int n         = n_values / N_VALUES;
    const int n_threads = std::min(n, N_THREADS_MAX); // whole warps, as rows are padded
    ggml_cuda_kernel_launch(quantized_norm, ggml_cuda_kernel_launch_params(n_rows, n_threads, (size_t) 0, ctx.stream()),
                            (const float4 *) x->data, (const float4 *) weights->data, (float4 *) result->data,
                            ctx.quantized_memory(), (int64_t) (x->nb[1] / sizeof(float4)), n,
                            ggml_get_op_params_f32(norm, 0), n_tiles);
    ctx.quantized.src      = result;
    ctx.quantized.in_tiles = n_tiles > 0;
    return true;
}

// Values times the sigmoid of a gate, of which each has n_values_of_gate, or 0: each value one. blockIdx.y: a row
static __global__ void quantized_gate(const float4 * x, const float * gates, float4 * dst, char * quantized, int n,
                                      int n_values_of_gate, int n_tiles) {
    const int     i       = blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t at      = (int64_t) blockIdx.y * n + i;
    const auto    sigmoid = [](float gate) {
        return 1.0f / (1.0f + expf(-gate));
    };
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    float4 v = {};
    if (i < n) {
        v = x[at];
        if (n_values_of_gate > 0) {
            const float gate = sigmoid(gates[at * N_VALUES / n_values_of_gate]);
            v                = { v.x * gate, v.y * gate, v.z * gate, v.w * gate };
        } else {
            const float4 gate = ((const float4 *) gates)[at];
            v = { v.x * sigmoid(gate.x), v.y * sigmoid(gate.y), v.z * sigmoid(gate.z), v.w * sigmoid(gate.w) };
        }
        dst[at] = v;
    }
    put(quantized, n_tiles, blockIdx.y, i, n, v);
}

int mtp_cuda_quantized_gate(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i) {
    const ggml_tensor * sigmoid = cgraph->nodes[i];
    int                 end     = i + 1;
    while (end < cgraph->n_nodes && cgraph->nodes[end]->op == GGML_OP_RESHAPE) {
        ++end;
    }
    const ggml_tensor * result = end < cgraph->n_nodes ? cgraph->nodes[end] : nullptr;
    if (sigmoid->op != GGML_OP_UNARY || ggml_get_unary_op(sigmoid) != GGML_UNARY_OP_SIGMOID || !result ||
        result->op != GGML_OP_MUL || !(result->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) ||
        (sigmoid->flags & GGML_TENSOR_FLAG_OUTPUT) || ggml_node_get_use_count(cgraph, i) != 1) {
        return 0;
    }
    const ggml_tensor * x    = result->src[0];
    const ggml_tensor * gate = result->src[1];
    const ggml_tensor * rows = end + 1 < cgraph->n_nodes ? cgraph->nodes[end + 1] : result; // as products have them
    if (rows->op != GGML_OP_RESHAPE || rows->src[0] != result) {
        rows = result;
    }
    const bool    is_for_head = gate->ne[0] == 1 && x->ne[0] > 1;
    const bool    is_gated    = gate == sigmoid || (gate->op == GGML_OP_RESHAPE && gate->src[0] == sigmoid);
    const int64_t n_values    = rows->ne[0];
    const int64_t n_rows      = rows->ne[1];
    const auto *  user        = quantized_norm_user(cgraph, end + 1, rows);
    const auto *  gates       = sigmoid->src[0];
    const bool    is_aligned  = ((size_t) x->data | (size_t) gates->data | (size_t) result->data) % 16 == 0;
    if (!is_gated || !is_aligned || ggml_nelements(gates) * (is_for_head ? x->ne[0] : 1) != ggml_nelements(x) ||
        n_rows * n_values != ggml_nelements(x) || x->ne[0] % N_VALUES != 0 || n_values % MATRIX_ROW_PADDING != 0 ||
        x->type != GGML_TYPE_F32 || gates->type != GGML_TYPE_F32 || !ggml_is_contiguous(x) ||
        !ggml_is_contiguous(gates) || !ggml_is_contiguous(result) || ctx.curr_stream_no != 0 ||
        !quantized_fits(ctx, n_values, n_rows, result) || !user) {
        return 0;
    }
    const int  n_tiles = quantized_tiles(n_rows, result);
    const int  n       = (int) (n_values / N_VALUES);
    const dim3 grid((n + 255) / 256, n_rows);
    ggml_cuda_kernel_launch(quantized_gate, ggml_cuda_kernel_launch_params(grid, 256, (size_t) 0, ctx.stream()),
                            (const float4 *) x->data, (const float *) gates->data, (float4 *) result->data,
                            ctx.quantized_memory(), n, is_for_head ? (int) x->ne[0] : 0, n_tiles);
    ctx.quantized.src      = rows;
    ctx.quantized.in_tiles = n_tiles > 0;
    return end - i;
}
