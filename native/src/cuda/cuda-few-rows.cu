#include "cuda-few-rows-launch.cuh"
#include "cuda-few-rows.cuh"
#include "mmvq.cuh"

#include <algorithm>
#include <atomic>

extern const few_rows_type FEW_ROWS_q8_0, FEW_ROWS_q4_0, FEW_ROWS_q5_0, FEW_ROWS_iq4_nl, FEW_ROWS_mxfp4, FEW_ROWS_q3_K,
    FEW_ROWS_q4_K, FEW_ROWS_q5_K, FEW_ROWS_q6_K, FEW_ROWS_iq4_xs;

static const few_rows_type * few_rows_find(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0:
            return &FEW_ROWS_q8_0;
        case GGML_TYPE_Q4_0:
            return &FEW_ROWS_q4_0;
        case GGML_TYPE_Q5_0:
            return &FEW_ROWS_q5_0;
        case GGML_TYPE_IQ4_NL:
            return &FEW_ROWS_iq4_nl;
        case GGML_TYPE_MXFP4:
            return &FEW_ROWS_mxfp4;
        case GGML_TYPE_Q3_K:
            return &FEW_ROWS_q3_K;
        case GGML_TYPE_Q4_K:
            return &FEW_ROWS_q4_K;
        case GGML_TYPE_Q5_K:
            return &FEW_ROWS_q5_K;
        case GGML_TYPE_Q6_K:
            return &FEW_ROWS_q6_K;
        case GGML_TYPE_IQ4_XS:
            return &FEW_ROWS_iq4_xs;
        default:
            return nullptr;
    }
}

static std::atomic<size_t> g_shared_limit{ SIZE_MAX };

void pymtp_cuda_limit_shared_memory(size_t size) {
    g_shared_limit = size;
}

static few_rows_device few_rows_current_device() {
    const auto & device = ggml_cuda_info().devices[ggml_cuda_get_device()];
    return { device.nsm, std::min(device.smpbo, g_shared_limit.load()) };
}

// of a tensor that has values for each row of activations, or the same ones for all
static int64_t few_rows_stride(const ggml_tensor * bias) {
    return bias->ne[1] == 1 ? 0 : bias->nb[1] / sizeof(float);
}

static few_rows_product few_rows_describe(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                                          const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    few_rows_product p = {};
    p.matrix           = (const char *) src0->data;
    p.dst              = (float *) dst->data;
    p.ids              = ids ? (const int32_t *) ids->data : nullptr;
    if (fusion) {
        p.glu_op    = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
    }
    if (fusion && fusion->gate) {
        p.gate = (const char *) fusion->gate->data;
    }
    if (fusion && fusion->x_bias) {
        p.bias        = (const float *) fusion->x_bias->data;
        p.bias_stride = few_rows_stride(fusion->x_bias);
    }
    if (fusion && fusion->gate_bias) {
        p.gate_bias        = (const float *) fusion->gate_bias->data;
        p.gate_bias_stride = few_rows_stride(fusion->gate_bias);
    }

    p.n_parts         = src0->ne[0] / FEW_ROWS_PART;
    p.n_rows          = src0->ne[1];
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
    p.dst_stride          = (ids ? dst->nb[2] : dst->nb[1]) / sizeof(float);
    p.dst_place_stride    = dst->nb[1] / sizeof(float);
    return p;
}

bool mtp_cuda_few_rows_can(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                           const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    const few_rows_type * type = few_rows_find(src0->type);

    const bool is_marked = dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS;
    if (!type || !is_marked || src0->ne[0] % FEW_ROWS_PART != 0 ||
        ggml_backend_buffer_get_usage(src0->buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS ||
        ggml_cuda_info().devices[ggml_cuda_get_device()].cc < GGML_CUDA_CC_TURING) {
        return false;
    }
    const bool is_plain   = src0->ne[2] == 1 && src1->ne[2] == 1 && src0->ne[3] == 1 && src1->ne[3] == 1;
    const bool has_bias   = fusion && (fusion->x_bias || fusion->gate_bias);
    const bool is_aligned = (size_t) src0->data % FEW_ROWS_COPY == 0; // and rows lie one after the other
    return (ids ? !has_bias : is_plain) && is_aligned && ggml_is_contiguous(src0) &&
           type->can(few_rows_describe(src0, src1, ids, fusion, dst), few_rows_current_device());
}

void mtp_cuda_few_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                       const void * quantized, const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                       ggml_tensor * dst) {
    few_rows_product p = few_rows_describe(src0, src1, ids, fusion, dst);
    p.columns          = (const char *) quantized;
    few_rows_find(src0->type)->launch(p, few_rows_current_device(), ctx.stream());
}
