#include "cpu-solo-nodes.h"

#include "ggml-impl.h"

// values that take one thread about as long as a barrier takes two
static constexpr int64_t N_VALUES_MAX = 1024;

bool mtp_is_solo(const ggml_tensor * node) {
    if (!(node->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) || ggml_nelements(node) > N_VALUES_MAX) {
        return false;
    }
    switch (node->op) {
        // none of these waits for other threads inside, and none looks at more values than it writes
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_UNARY:
        case GGML_OP_GLU:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM:
        case GGML_OP_ROPE:
        case GGML_OP_SOFT_MAX:
        case GGML_OP_ARGSORT:
        case GGML_OP_GET_ROWS:
        case GGML_OP_SET_ROWS:
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_CONCAT:
        case GGML_OP_REPEAT:
            return true;
        case GGML_OP_SUM_ROWS:
        case GGML_OP_TOP_K:
        case GGML_OP_ARGMAX:
            return ggml_nelements(node->src[0]) <= N_VALUES_MAX;
        default:
            return false;
    }
}

bool mtp_next_is_solo(const ggml_cgraph * graph, int node_n) {
    for (int i = node_n + 1; i < graph->n_nodes; ++i) {
        const ggml_tensor * node = graph->nodes[i];
        if (!ggml_op_is_empty(node->op) && (node->flags & GGML_TENSOR_FLAG_COMPUTE)) {
            return mtp_is_solo(node);
        }
    }
    return false;
}

bool mtp_are_solo(const ggml_cgraph * graph, int first, int n) {
    for (int i = first; i < first + n; ++i) {
        if (!mtp_is_solo(graph->nodes[i])) {
            return false;
        }
    }
    return true;
}
