#include "few-rows-order.h"
#include "rpc-link.h"

// as few_rows_stands_alone of cuda-few-rows.cu, but for what only the server's backend knows
static bool is_product(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL_MAT || !(node->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) ||
        node->src[1]->ne[1] > FEW_ROWS_GATHERED_MAX) {
        return false;
    }
    const ggml_tensor *         weights = node->src[0]->view_src ? node->src[0]->view_src : node->src[0];
    const ggml_backend_buffer_t buffer  = weights->buffer;
    return ggml_is_quantized(weights->type) && buffer &&
           ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

void mtp_rpc_graph_optimize(ggml_backend_t, ggml_cgraph * cgraph, ggml_backend_graph_optimize_params *) {
    few_rows_gather(cgraph, [&](int i) { return is_product(cgraph->nodes[i]) && !few_rows_is_fused(cgraph, i); });
    few_rows_store_next(cgraph);
}
