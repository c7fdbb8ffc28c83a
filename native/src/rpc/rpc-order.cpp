#include "few-rows-order.h"
#include "rpc-link.h"

// as few_rows_stands_alone of cuda-few-rows.cu, but for what only the server's backend knows
static bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT && (node->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) &&
           node->src[1]->ne[1] <= FEW_ROWS_GATHERED_MAX && ggml_is_quantized(node->src[0]->type) &&
           few_rows_is_weight(node->src[0]);
}

void mtp_rpc_graph_optimize(ggml_backend_t, ggml_cgraph * cgraph, ggml_backend_graph_optimize_params *) {
    few_rows_gather(cgraph, [&](int i) { return is_product(cgraph->nodes[i]) && !few_rows_is_fused(cgraph, i); });
    few_rows_store_next(cgraph);
}
