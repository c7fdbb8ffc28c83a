#include "mtp-single-rows.h"

#include "mtp-remote.h"

static_assert((GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT | GGML_TENSOR_FLAG_PARAM | GGML_TENSOR_FLAG_LOSS |
               GGML_TENSOR_FLAG_COMPUTE) < GGML_TENSOR_FLAG_SINGLE_ROWS,
              "llama.cpp uses the bit of GGML_TENSOR_FLAG_SINGLE_ROWS: take another one");

static bool is_for_cpus(ggml_backend_sched_t sched) {
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        if (!mtp_is_cpu(ggml_backend_get_device(ggml_backend_sched_get_backend(sched, i)))) {
            return false;
        }
    }
    return true;
}

void mtp_graph_mark_single_rows(ggml_cgraph * gf, uint32_t n_rows, ggml_backend_sched_t sched) {
    if (n_rows > MTP_SINGLE_ROWS_MAX && !is_for_cpus(sched)) {
        return;
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
}
