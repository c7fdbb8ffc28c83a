#include "cuda-few-rows-launch.cuh"
#include "cuda-few-rows.cuh"
#include "cuda-many-rows-pack.cuh"
#include "cuda-more-rows-quantize.cuh"
#include "few-rows-order.h"
#include "mmvf.cuh"
#include "mmvq.cuh"

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>

extern const few_rows_type FEW_ROWS_q8_0[], FEW_ROWS_q4_0[], FEW_ROWS_q5_0[], FEW_ROWS_iq4_nl[], FEW_ROWS_mxfp4[],
    FEW_ROWS_q3_K[], FEW_ROWS_q4_K[], FEW_ROWS_q5_K[], FEW_ROWS_q6_K[], FEW_ROWS_iq4_xs[];

static constexpr int64_t EXPERT_ROWS_TOKENS = 512; // at a time, as the columns of their experts take memory

static_assert(MANY_ROWS_COLUMNS_MAX == FEW_ROWS_GATHERED_MAX, "an RPC client gathers other products than the device");

static const few_rows_type * few_rows_find(const ggml_tensor * weights) {
    for (const few_rows_type * each : { FEW_ROWS_q8_0, FEW_ROWS_q4_0, FEW_ROWS_q5_0, FEW_ROWS_iq4_nl, FEW_ROWS_mxfp4,
                                        FEW_ROWS_q3_K, FEW_ROWS_q4_K, FEW_ROWS_q5_K, FEW_ROWS_q6_K, FEW_ROWS_iq4_xs }) {
        if (each->type == weights->type) {
            return each + (weights->ne[0] % 256 != 0);
        }
    }
    return nullptr;
}

static std::atomic<size_t> g_shared_limit{ SIZE_MAX };

void pymtp_cuda_limit_shared_memory(size_t size) {
    g_shared_limit = std::max<size_t>(size, MORE_ROWS_SHARED_MAX);
}

static few_rows_device few_rows_current_device() {
    const auto & device = ggml_cuda_info().devices[ggml_cuda_get_device()];
    return { device.nsm, std::min(device.smpbo, g_shared_limit.load()), device.cc == GGML_CUDA_CC_HOPPER };
}

// of a tensor that has values for each row of activations, or the same ones for all
static int64_t few_rows_stride(const ggml_tensor * bias) {
    return bias->ne[1] == 1 ? 0 : bias->nb[1] / sizeof(float);
}

static few_rows_matrix few_rows_matrix_of(const ggml_tensor * src0, const ggml_tensor * dst, bool has_experts,
                                          const ggml_tensor * bias) {
    few_rows_matrix m = {};
    m.data            = (const char *) src0->data;
    m.dst             = (float *) dst->data;
    m.dst_stride      = (has_experts ? dst->nb[2] : dst->nb[1]) / sizeof(float);
    m.n_rows          = src0->ne[1];
    m.bias            = bias ? (const float *) bias->data : nullptr;
    m.bias_stride     = bias ? few_rows_stride(bias) : 0;
    return m;
}

static few_rows_product few_rows_describe(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                                          const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    few_rows_product p = {};
    p.n_matrices       = 1;
    p.matrices[0]      = few_rows_matrix_of(src0, dst, ids, fusion ? fusion->x_bias : nullptr);
    p.ids              = ids ? (const int32_t *) ids->data : nullptr;
    if (fusion) {
        p.glu_op    = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
        for (int i = 0; i < fusion->n_others; ++i) {
            const few_rows_node other(fusion->others[i]);
            p.matrices[p.n_matrices++] = few_rows_matrix_of(other.product->src[0], other.result, false, other.bias);
        }
    }
    if (fusion && fusion->gate) {
        p.gate = (const char *) fusion->gate->data;
    }
    if (fusion && fusion->gate_bias) {
        p.gate_bias        = (const float *) fusion->gate_bias->data;
        p.gate_bias_stride = few_rows_stride(fusion->gate_bias);
    }

    p.n_parts         = src0->ne[0] / FEW_ROWS_PART;
    p.column_size     = GGML_PAD(p.n_parts * 2 * FEW_ROWS_Y_SIZE, FEW_ROWS_COPY); // rows are padded to more
    p.n_tokens        = ids ? dst->ne[2] : dst->ne[1];
    p.n_places        = ids ? dst->ne[1] : 1;
    p.n_column_places = ids ? src1->ne[1] : 1;
    p.ids_stride      = ids ? ids->nb[1] / sizeof(int32_t) : 0;

    const int64_t column_size = GGML_PAD(src1->ne[0], MATRIX_ROW_PADDING) / QK8_1 * sizeof(block_q8_1);

    p.row_stride          = src0->nb[1];
    p.expert_stride       = src0->nb[2];
    p.column_stride       = ids ? src1->ne[1] * column_size : column_size;
    p.column_place_stride = column_size;
    p.dst_place_stride    = dst->nb[1] / sizeof(float);
    return p;
}

static bool few_rows_is_invariant(const ggml_tensor * dst) {
    return dst->flags & GGML_TENSOR_FLAG_INVARIANT;
}

// the kernels for a product, if it has any; nullptr: none
static const few_rows_type * few_rows_type_of(const ggml_tensor * src0, const ggml_tensor * src1,
                                              const ggml_tensor * dst) {
    const bool is_marked  = dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS;
    const bool is_aligned = (size_t) src0->data % FEW_ROWS_COPY == 0; // and rows follow each other without gaps
    if (!is_marked || src1->type != GGML_TYPE_F32 || dst->type != GGML_TYPE_F32 || src0->ne[0] % FEW_ROWS_PART != 0 ||
        !few_rows_is_weight(src0) || !is_aligned || !ggml_is_contiguous(src0) ||
        ggml_cuda_info().devices[ggml_cuda_get_device()].cc < GGML_CUDA_CC_TURING) {
        return nullptr;
    }
    return few_rows_find(src0);
}

static bool more_rows_is_aligned(const ggml_tensor * src1) {
    return ggml_is_contiguous_rows(src1) && ((size_t) src1->data | src1->nb[1] | src1->nb[2]) % sizeof(float4) == 0;
}

// and not the kernel for more rows, in groups
static bool many_rows_takes(int64_t n_rows, const ggml_tensor * dst) {
    return n_rows > MORE_ROWS_COLUMNS_MAX && !few_rows_is_invariant(dst);
}

// whether the kernels for more rows take these: what they do not, the kernel for few rows does, up to FEW_ROWS_COLUMNS_MAX
static bool more_rows_takes(const ggml_tensor * src0, const ggml_tensor * src1) {
    const int64_t n_rows   = src1->ne[1];
    const bool    is_whole = src0->ne[0] % 256 == 0;
    return n_rows >= MORE_ROWS_COLUMNS_MIN && n_rows <= MANY_ROWS_COLUMNS_MAX &&
           (is_whole || n_rows > FEW_ROWS_COLUMNS_MAX) && more_rows_is_aligned(src1);
}

bool mtp_cuda_few_rows_can(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                           const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    const few_rows_type * type     = few_rows_type_of(src0, src1, dst);
    const int64_t         n_rows   = ids ? src1->ne[2] : src1->ne[1];
    const bool            is_plain = src0->ne[2] == 1 && src1->ne[2] == 1 && src0->ne[3] == 1 && src1->ne[3] == 1;
    const bool            has_bias = fusion && (fusion->x_bias || fusion->gate_bias);
    if (!type || (ids ? has_bias : !is_plain)) {
        return false;
    }
    if (n_rows > FEW_ROWS_COLUMNS_MAX) {
        return !ids && more_rows_takes(src0, src1);
    }
    return type->can(few_rows_describe(src0, src1, ids, fusion, dst), few_rows_current_device());
}

void mtp_cuda_few_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                       const void * quantized, const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                       ggml_tensor * dst) {
    few_rows_product p = few_rows_describe(src0, src1, ids, fusion, dst);
    p.columns          = (const char *) quantized;
    few_rows_find(src0)->launch(p, few_rows_current_device(), ctx.stream());
}

static void more_rows_quantize_all(const few_rows_input & in, char * columns, int n_groups, cudaStream_t stream) {
    const dim3 grid(GGML_PAD(in.n_values, 256) / 128, n_groups * in.n_tiles);
    ggml_cuda_kernel_launch(more_rows_quantize,
                            ggml_cuda_kernel_launch_params(grid, MORE_ROWS_QUANTIZE_THREADS, (size_t) 0, stream), in,
                            columns);
}

static void many_rows_pack_all(const few_rows_input & in, char * columns, int n_rows, cudaStream_t stream) {
    ggml_cuda_kernel_launch(
        many_rows_pack, ggml_cuda_kernel_launch_params(n_rows, many_rows_pack_threads(in.n_values), (size_t) 0, stream),
        in, columns);
}

static void many_rows_run(ggml_backend_cuda_context & ctx, few_rows_product p, const few_rows_device & device,
                          const few_rows_type & type) {
    ggml_cuda_pool_alloc<unsigned> counters(ctx.pool());
    if (ctx.curr_stream_no == 0) {
        p.counters = (unsigned *) (ctx.quantized_memory() + ctx.QUANTIZED_SIZE);
    } else {
        p.counters = counters.alloc(MANY_ROWS_COUNTERS);
        CUDA_CHECK(cudaMemsetAsync(p.counters, 0, MANY_ROWS_COUNTERS * sizeof(unsigned), ctx.stream()));
    }
    type.launch_many(p, device, ctx.pool(), ctx.stream());
}

// Whether experts of these are taken by groups of tokens. Marked with GGML_TENSOR_FLAG_INVARIANT, fewer tokens are as well:
// what is fused must not depend on how many they are.
static bool expert_rows_can(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * dst) {
    const int64_t n_tokens = src1->ne[2];
    return (n_tokens >= MORE_ROWS_COLUMNS_MIN || few_rows_is_invariant(dst)) && n_tokens <= MANY_ROWS_COLUMNS_MAX &&
           src0->ne[2] <= MORE_ROWS_EXPERTS_MAX && few_rows_type_of(src0, src1, dst) && more_rows_is_aligned(src1);
}

// How many columns that have the same expert the kernel for many rows takes at a time: more than most experts have, as
// weights are unpacked for each group (H200, bench/passes.py). 0: they are too few for it.
static int many_rows_group_width(few_rows_product p, int n_experts, const few_rows_type & type,
                                 const few_rows_device & device) {
    const int n_columns = p.n_tokens * p.n_places;
    const int n         = n_columns / n_experts; // on average
    if (n < 5) {
        return 0;
    }
    p.n_columns       = n <= 20 ? 32 : 8 * MANY_ROWS_TILES;
    p.n_groups        = more_rows_groups_max(n_columns, n_experts, p.n_columns);
    const int n_tiles = type.many_tiles(p, device);
    return n_tiles >= 4 ? std::min(p.n_columns, 8 * n_tiles) : 0;
}

// n tokens from `begin` on, or as many as are left, of a tensor whose dimension `i` they are
static ggml_tensor expert_rows_part(const ggml_tensor * tensor, int i, int64_t begin, int64_t n) {
    ggml_tensor part = *tensor;
    part.data        = (char *) part.data + begin * part.nb[i];
    part.ne[i]       = std::min(part.ne[i] - begin, n);
    return part;
}

bool mtp_cuda_expert_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                          const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion, ggml_tensor * dst) {
    if (!expert_rows_can(src0, src1, dst)) {
        return false;
    }
    const int64_t n_parts = (src1->ne[2] + EXPERT_ROWS_TOKENS - 1) / EXPERT_ROWS_TOKENS;
    const int64_t n       = (src1->ne[2] + n_parts - 1) / n_parts;
    if (n_parts > 1) {
        for (int64_t begin = 0; begin < src1->ne[2]; begin += n) {
            const ggml_tensor rows   = expert_rows_part(src1, 2, begin, n);
            const ggml_tensor chosen = expert_rows_part(ids, 1, begin, n);
            ggml_tensor       part   = expert_rows_part(dst, 2, begin, n);
            mtp_cuda_expert_rows(ctx, src0, &rows, &chosen, fusion, &part);
        }
        return true;
    }
    if (src1->ne[2] < MORE_ROWS_COLUMNS_MIN) { // the same bits
        ggml_cuda_mul_mat_vec_q(ctx, src0, src1, ids, dst, fusion);
        return true;
    }
    few_rows_product p         = few_rows_describe(src0, src1, ids, fusion, dst);
    const auto *     type      = few_rows_find(src0);
    const auto       device    = few_rows_current_device();
    const int        n_experts = (int) src0->ne[2];
    const int        n_columns = p.n_tokens * p.n_places;
    const int        n_many = many_rows_takes(p.n_tokens, dst) ? many_rows_group_width(p, n_experts, *type, device) : 0;

    p.n_columns     = n_many > 0 ? n_many : more_rows_group_width(n_columns, n_experts);
    p.n_groups      = more_rows_groups_max(n_columns, n_experts, p.n_columns);
    p.group_stride  = n_many > 0 ? many_rows_size(src0->ne[0], n_many) : more_rows_size(src0->ne[0], p.n_columns);
    p.column_stride = n_many / 8 * MANY_ROWS_TILE_SIZE;

    ggml_cuda_pool_alloc<few_rows_group> groups(ctx.pool(), p.n_groups);
    ggml_cuda_pool_alloc<int>            n_groups_used(ctx.pool(), 1);
    ggml_cuda_pool_alloc<int>            group_columns(ctx.pool(), p.n_groups * p.n_columns);
    ggml_cuda_pool_alloc<int>            places(ctx.pool(), n_columns);
    ggml_cuda_pool_alloc<char>           columns(ctx.pool(), p.n_groups * p.group_stride);
    p.groups        = groups.get();
    p.n_groups_used = n_groups_used.get();
    p.group_columns = group_columns.get();
    p.columns       = columns.get();
    ggml_cuda_kernel_launch(more_rows_route, ggml_cuda_kernel_launch_params(1, 1024, (size_t) 0, ctx.stream()), p.ids,
                            p.ids_stride, p.n_places, n_columns, n_experts, p.n_columns, p.n_groups, groups.get(),
                            group_columns.get(), places.get(), n_groups_used.get());
    few_rows_input in  = {};
    in.rows            = (const float *) src1->data;
    in.groups          = p.groups;
    in.group_columns   = p.group_columns;
    in.places          = places.get();
    in.n_values        = (int) src0->ne[0];
    in.n_tiles         = p.n_columns / 8;
    in.n_places        = p.n_places;
    in.n_column_places = p.n_column_places;
    in.stride          = src1->nb[2] / sizeof(float);
    in.place_stride    = src1->nb[1] / sizeof(float);
    in.group_size      = p.group_stride;
    if (n_many > 0) {
        many_rows_pack_all(in, columns.get(), n_columns, ctx.stream());
        many_rows_run(ctx, p, device, *type);
    } else {
        more_rows_quantize_all(in, columns.get(), p.n_groups, ctx.stream());
        type->launch_more(p, device, ctx.stream());
    }
    return true;
}

// divides rows into groups that the kernel for more rows takes
static void more_rows_set_groups(few_rows_product & p, const ggml_tensor * src1) {
    p.n_columns    = src1->ne[1] > 8 ? MORE_ROWS_COLUMNS_MAX : 8;
    p.n_groups     = (int) (src1->ne[1] + p.n_columns - 1) / p.n_columns;
    p.group_stride = more_rows_size(src1->ne[0], p.n_columns);
}

bool mtp_cuda_tensor_core_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                               const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                               ggml_tensor * dst) {
    const few_rows_type * type    = few_rows_find(src0);
    const auto            device  = few_rows_current_device();
    const int             n_rows  = (int) src1->ne[1];
    const bool            is_many = many_rows_takes(n_rows, dst);
    if (ids || !more_rows_takes(src0, src1)) {
        return false;
    }
    few_rows_product p = few_rows_describe(src0, src1, nullptr, fusion, dst);
    if (!is_many) {
        more_rows_set_groups(p, src1);
    }
    const int    n_values = (int) src1->ne[0];
    const int    n_tiles  = is_many ? many_rows_all_tiles(n_rows) : more_rows_all_tiles(p.n_columns);
    const size_t size     = is_many ? many_rows_size(n_values, n_rows) : p.n_groups * p.group_stride;
    const bool   is_kept  = size <= ctx.QUANTIZED_SIZE && ctx.curr_stream_no == 0;

    few_rows_input in = {};
    in.rows           = (const float *) src1->data;
    in.n_values       = n_values;
    in.n_rows         = n_rows;
    in.n_tiles        = n_tiles;
    in.group_size     = p.group_stride;
    in.stride         = src1->nb[1] / sizeof(float);

    ggml_cuda_pool_alloc<char> pool(ctx.pool());
    char *                     columns = is_kept ? ctx.quantized_memory() : pool.alloc(size);
    p.columns                          = columns;
    const bool is_there                = is_kept && ctx.is_quantized(src1, true);
    if (is_many && !is_there) {
        many_rows_pack_all(in, columns, 8 * n_tiles, ctx.stream());
    } else if (!is_there) {
        more_rows_quantize_all(in, columns, p.n_groups, ctx.stream());
    }
    if (is_kept) {
        ctx.quantized.src      = src1;
        ctx.quantized.in_tiles = true;
    }
    if (!is_many) {
        type->launch_more(p, device, ctx.stream());
        return true;
    }
    p.column_stride = (int64_t) n_tiles * MANY_ROWS_TILE_SIZE;
    many_rows_run(ctx, p, device, *type);
    return true;
}

bool mtp_cuda_router(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                     ggml_tensor * dst) {
    const auto & device    = ggml_cuda_info().devices[ctx.device];
    const bool   is_marked = dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS;
    const bool   is_few    = src1->ne[1] <= MORE_ROWS_COLUMNS_MAX || few_rows_is_invariant(dst);
    const bool   is_small  = ggml_nelements(src0) <= 4 << 20; // reading it again is nothing
    if (!is_marked || !is_few || !is_small || src0->type != GGML_TYPE_F32 || !few_rows_is_weight(src0) ||
        src1->type != GGML_TYPE_F32 || src1->ne[1] == 1 || src1->ne[2] != 1 || src1->ne[3] != 1 ||
        !ggml_cuda_should_use_mmvf(src0->type, device.cc, device.warp_size, src0->ne, src0->nb, 1)) {
        return false;
    }
    ggml_tensor rows = *src1;
    ggml_tensor part = *dst;
    for (auto * each : { &rows, &part }) {
        std::swap(each->ne[1], each->ne[2]);
        each->nb[2] = each->nb[1];
    }
    ggml_cuda_mul_mat_vec_f(ctx, src0, &rows, nullptr, &part);
    return true;
}

int mtp_cuda_rows_at_a_time(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * ids  = dst->op == GGML_OP_MUL_MAT_ID ? dst->src[2] : nullptr;
    if (!few_rows_is_invariant(dst) || (ids ? expert_rows_can(src0, dst->src[1], dst) :
                                              mtp_cuda_few_rows_can(src0, dst->src[1], nullptr, nullptr, dst))) {
        return INT_MAX;
    }
    // a kernel for floating point numbers adds in the same order for each of its columns
    return ids || ggml_is_quantized(src0->type) ? 1 : MMVF_MAX_BATCH_SIZE;
}

bool mtp_cuda_copies_rows(const ggml_tensor * product) {
    const ggml_tensor * src0 = product->src[0];
    const ggml_tensor * src1 = product->src[1];
    if (product->op == GGML_OP_MUL_MAT) {
        return mtp_cuda_few_rows_can(src0, src1, nullptr, nullptr, product);
    }
    if (product->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    return expert_rows_can(src0, src1, product) ||
           (!few_rows_is_invariant(product) && mtp_cuda_few_rows_can(src0, src1, product->src[2], nullptr, product));
}

// --- products of the same activations ---

// whether a node is a product with a kernel for few rows that is not fused with what follows it
static bool few_rows_stands_alone(const ggml_cgraph * cgraph, int i) {
    const ggml_tensor * node = cgraph->nodes[i];
    return node->op == GGML_OP_MUL_MAT && ggml_is_contiguous(node->src[1]) &&
           mtp_cuda_few_rows_can(node->src[0], node->src[1], nullptr, nullptr, node) && !few_rows_is_fused(cgraph, i);
}

void mtp_cuda_few_rows_gather(ggml_cgraph * cgraph) {
    few_rows_gather(cgraph, [&](int i) { return few_rows_stands_alone(cgraph, i); });
    few_rows_store_next(cgraph);
}

// Takes products of one type of weights from node `end` on, as many as a kernel does, and moves `end` after them.
static int few_rows_take(const ggml_cgraph * cgraph, int & end, ggml_tensor * (&results)[FEW_ROWS_TOGETHER]) {
    const ggml_tensor * first = cgraph->nodes[end];
    int                 n     = 0;
    while (end < cgraph->n_nodes && n < FEW_ROWS_TOGETHER && few_rows_go_together(first, cgraph->nodes[end]) &&
           few_rows_stands_alone(cgraph, end)) {
        end += few_rows_n_nodes(cgraph, end);
        results[n++] = cgraph->nodes[end - 1];
    }
    return n;
}

// Runs products while those before them, whose kernel has the same activations, still run.
static void few_rows_run_concurrently(ggml_backend_cuda_context & ctx, const ggml_cuda_mm_fusion_args_host & fusion,
                                      ggml_tensor * result) {
    const ggml_tensor *   product = few_rows_node(result).product;
    const few_rows_type * type    = few_rows_find(product->src[0]);
    few_rows_product      p       = few_rows_describe(product->src[0], product->src[1], nullptr, &fusion, result);
    GGML_ASSERT(ctx.is_quantized(product->src[1], ctx.quantized.in_tiles));
    p.columns       = ctx.quantized_memory();
    p.is_concurrent = true;
    if (ctx.quantized.in_tiles) {
        more_rows_set_groups(p, product->src[1]);
    }
    (ctx.quantized.in_tiles ? type->launch_more : type->launch)(p, few_rows_current_device(), ctx.stream());
}

int mtp_cuda_few_rows_together(ggml_backend_cuda_context & ctx, ggml_cgraph * cgraph, int i) {
    if (ctx.curr_stream_no != 0 || !few_rows_stands_alone(cgraph, i)) {
        return 0;
    }
    const ggml_tensor * node     = cgraph->nodes[i];
    const ggml_tensor * rows     = node->src[1];
    // a kernel for many rows has memory that the next one takes, too
    const bool          is_kept  = rows->ne[1] <= MORE_ROWS_COLUMNS_MAX &&
                                   more_rows_size(rows->ne[0], MORE_ROWS_COLUMNS_MAX) <= ctx.QUANTIZED_SIZE;
    int                 end      = i;
    const auto          has_next = [&]() {
        return is_kept && end < cgraph->n_nodes && few_rows_share_activations(node, cgraph->nodes[end]) &&
               few_rows_stands_alone(cgraph, end);
    };
    do {
        const bool    is_first = end == i;
        ggml_tensor * results[FEW_ROWS_TOGETHER];
        const int     n = few_rows_take(cgraph, end, results);
        if (is_first && n == 1 && !has_next()) {
            return 0;
        }
        ggml_cuda_mm_fusion_args_host fusion{};
        fusion.x_bias   = few_rows_node(results[0]).bias;
        fusion.others   = results + 1;
        fusion.n_others = n - 1;
        is_first ? ggml_cuda_mul_mat_vec_q(ctx, node->src[0], rows, nullptr, results[0], &fusion) :
                   few_rows_run_concurrently(ctx, fusion, results[0]);
    } while (has_next());
    return end - i - 1;
}
