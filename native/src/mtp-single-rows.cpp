#include "mtp-single-rows.h"

void mtp_graph_mark_single_rows(ggml_cgraph * gf) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID || node->op == GGML_OP_FLASH_ATTN_EXT) {
            node->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        }
    }
}
