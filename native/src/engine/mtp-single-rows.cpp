#include "mtp-single-rows.h"

static_assert((GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT | GGML_TENSOR_FLAG_PARAM | GGML_TENSOR_FLAG_LOSS |
               GGML_TENSOR_FLAG_COMPUTE) < GGML_TENSOR_FLAG_SINGLE_ROWS,
              "llama.cpp uses the bit of GGML_TENSOR_FLAG_SINGLE_ROWS: take another one");

void mtp_graph_mark_single_rows(ggml_cgraph * gf, uint32_t n_rows, ggml_backend_sched_t sched) {
    if (n_rows > MTP_SINGLE_ROWS_MAX && ggml_backend_sched_get_n_backends(sched) > 1) {
        return;
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
}
