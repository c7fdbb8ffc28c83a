#include "mtp-graph-check.h"

#include "ggml.h"

#include <cstring>
#include <stdexcept>
#include <string>

static float param_f32(const ggml_tensor & node, int32_t i) {
    float res;
    memcpy(&res, (const char *) node.op_params + i * sizeof(float), sizeof(res));
    return res;
}

[[noreturn]] static void refuse(const ggml_tensor & node, const std::string & what) {
    throw std::runtime_error("the model's metadata is damaged: " + what + " (" + ggml_get_name(&node) + ")");
}

// also NAN is none
static void check_norm(const ggml_tensor & node, float eps) {
    if (!(eps >= 0.0f)) {
        refuse(node, "a norm with epsilon " + std::to_string(eps));
    }
}

// as ggml's kernels assert it
static void check_rope(const ggml_tensor & node) {
    const int32_t n_dims   = node.op_params[1];
    const int32_t mode     = node.op_params[2];
    const int32_t sections = node.op_params[11] > 0 || node.op_params[12] > 0 || node.op_params[13] > 0;
    const int32_t offset   = node.op_params[15];

    if (n_dims < 0 || n_dims % 2 != 0 || offset < 0 || offset % 2 != 0 || n_dims > node.ne[0] - offset) {
        refuse(node,
               "a rotation of " + std::to_string(n_dims) + " dimensions in heads of " + std::to_string(node.ne[0]));
    }
    if ((mode & GGML_ROPE_TYPE_MROPE) && !sections) {
        refuse(node, "a rotation in sections without sections");
    }
    if (node.src[2] && node.src[2]->ne[0] < n_dims / 2) {
        refuse(node, "fewer factors of a rotation than it has dimensions");
    }
}

void mtp_check_graph(ggml_cgraph * gf) {
    for (int32_t i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor & node = *ggml_graph_node(gf, i);
        switch (node.op) {
            case GGML_OP_NORM:
            case GGML_OP_RMS_NORM:
            case GGML_OP_L2_NORM:
                check_norm(node, param_f32(node, 0));
                break;
            case GGML_OP_GROUP_NORM:
                check_norm(node, param_f32(node, 1));
                break;
            case GGML_OP_ROPE:
                check_rope(node);
                break;
            default:
                break;
        }
    }
}
