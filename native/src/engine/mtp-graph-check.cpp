#include "mtp-graph-check.h"

#include "mtp-graph-edit.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

// key: of the metadata, without the architecture
[[noreturn]] static void refuse(const ggml_tensor & node, const char * key, const std::string & what) {
    throw std::runtime_error("the model's metadata is damaged: " + what + " (" + key + ", in " + ggml_get_name(&node) +
                             "); convert or download it again");
}

// refuses NAN, too
static void check_norm(const ggml_tensor & node, int32_t param) {
    float eps;
    memcpy(&eps, node.op_params + param, sizeof(eps));
    if (!(eps >= 0.0f)) {
        refuse(node, "attention.layer_norm_rms_epsilon", "a norm with epsilon " + std::to_string(eps));
    }
}

// As ggml's kernels assert it. Without dimensions their loop over the others never ends.
static void check_rope(const ggml_tensor & node) {
    const int32_t n_dims = node.op_params[1];
    const int32_t mode   = node.op_params[2];
    const int32_t offset = node.op_params[15];

    if (n_dims <= 0 || n_dims % 2 != 0 || offset < 0 || offset % 2 != 0 || n_dims > node.ne[0] - offset) {
        refuse(node, "rope.dimension_count",
               "a rotation of " + std::to_string(n_dims) + " dimensions in heads of " + std::to_string(node.ne[0]));
    }
    if (mode & GGML_ROPE_TYPE_MROPE) {
        int64_t sum = 0;
        bool    odd = false;
        for (int32_t i = 11; i < 15; ++i) {
            sum += node.op_params[i];
            odd |= node.op_params[i] < 0;
        }
        if (odd || sum - node.op_params[14] <= 0 || sum > node.ne[0]) {
            refuse(node, "rope.dimension_sections",
                   "a rotation in sections of " + std::to_string(sum) + " dimensions in heads of " +
                       std::to_string(node.ne[0]));
        }
    }
    if (node.src[2] && node.src[2]->ne[0] < n_dims / 2) {
        refuse(node, "rope.dimension_count", "fewer factors of a rotation than it has dimensions");
    }
}

bool mtp_is_factor(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K);
}

// Whether a source of a node is of a type that the node cannot be computed with.
static bool is_odd(const ggml_tensor & node, int32_t i) {
    const ggml_tensor & src     = *node.src[i];
    // other devices take types that the CPU does not
    const bool          is_kept = mtp_graph_is_host_weight(&src) && src.type != GGML_TYPE_F32;
    switch (node.op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return i == 0 && !mtp_is_factor(src.type);
        case GGML_OP_GET_ROWS:
            return i == 0 && src.type != GGML_TYPE_I32 && !mtp_is_factor(src.type);
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
            return i == 1 && is_kept && (node.src[0]->type != src.type || node.type != src.type);
        case GGML_OP_ADD_ID:
        case GGML_OP_SSM_CONV:
            return i == 1 && is_kept;
        case GGML_OP_ROPE:
            return i == 2 && is_kept;
        case GGML_OP_SSM_SCAN:
            return i == 3 && is_kept;
        default:
            return false;
    }
}

void mtp_check_graph(ggml_cgraph * gf) {
    for (int32_t i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor & node = *ggml_graph_node(gf, i);
        if (node.op == GGML_OP_NORM || node.op == GGML_OP_RMS_NORM || node.op == GGML_OP_L2_NORM) {
            check_norm(node, 0);
        } else if (node.op == GGML_OP_GROUP_NORM) {
            check_norm(node, 1);
        } else if (node.op == GGML_OP_ROPE) {
            check_rope(node);
        }
        for (int32_t k = 0; k < GGML_MAX_SRC; ++k) {
            if (node.src[k] && is_odd(node, k)) {
                throw std::runtime_error(std::string("the model is damaged: ") + ggml_get_name(node.src[k]) +
                                         " is of type " + ggml_type_name(node.src[k]->type) + ", with which " +
                                         ggml_op_desc(&node) + " cannot be computed; convert or download it again");
            }
        }
    }
}

ggml_tensor * mtp_graph_not_computed(ggml_cgraph * gf, const std::vector<ggml_backend_t> & backends) {
    for (int32_t i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor *               node   = ggml_graph_node(gf, i);
        const ggml_backend_buffer_t buffer = node->view_src ? node->view_src->buffer : node->buffer;
        if (std::none_of(backends.begin(), backends.end(), [&](ggml_backend_t backend) {
                return ggml_backend_supports_op(backend, node) &&
                       (!buffer || ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(buffer)));
            })) {
            return node;
        }
    }
    return nullptr;
}
