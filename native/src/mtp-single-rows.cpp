#include "mtp-single-rows.h"

void mtp_graph_mark_single_rows(ggml_cgraph * gf) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
}
