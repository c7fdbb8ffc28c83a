#include "mtp-graph-edit.h"

#include "attention-sequences.h"
#include "mtp-remote.h"
#include "mtp-ubatch.h"

#include <algorithm>
#include <iterator>

std::vector<ggml_tensor *> mtp_graph_nodes(ggml_cgraph * gf) {
    return { ggml_graph_nodes(gf), ggml_graph_nodes(gf) + ggml_graph_n_nodes(gf) };
}

void mtp_graph_leaf_to_view(ggml_tensor * leaf, ggml_tensor * src) {
    GGML_ASSERT(leaf->op == GGML_OP_NONE && leaf->type == src->type && ggml_nelements(leaf) == ggml_nelements(src));
    GGML_ASSERT(ggml_is_contiguous(src));
    leaf->flags &= ~GGML_TENSOR_FLAG_INPUT;
    leaf->op        = GGML_OP_VIEW;
    leaf->src[0]    = src;
    leaf->view_src  = src->view_src ? src->view_src : src;
    leaf->view_offs = src->view_offs;
}

// Begins the graph again with these nodes. Of two ways to make the embeddings one is in the graph without being
// computed: that stays so.
static void mtp_graph_restart(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes) {
    std::vector<ggml_tensor *> idle;
    std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(idle),
                 [](const auto * node) { return !(node->flags & GGML_TENSOR_FLAG_COMPUTE); });
    ggml_graph_clear(gf);
    for (auto * node : nodes) {
        ggml_build_forward_expand(gf, node);
    }
    for (auto * node : idle) {
        node->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    }
}

static bool mtp_graph_is_embedding(const llama_model & model, const ggml_tensor * weight) {
    return weight == model.tok_embd ||
           (weight && std::any_of(model.layers.begin(), model.layers.end(),
                                  [&](const auto & layer) { return weight == layer.nextn.embed_tokens; }));
}

void mtp_graph_share_embedding(ggml_cgraph * gf, size_t n_before, const llama_model & model, ggml_tensor * tokens,
                               ggml_tensor * image) {
    auto       nodes = mtp_graph_nodes(gf);
    const auto trunk = std::make_pair(nodes.begin(), nodes.begin() + n_before);
    for (auto it = trunk.second; it != nodes.end(); ++it) {
        auto * node = *it;
        if (node->op != GGML_OP_GET_ROWS || !mtp_graph_is_embedding(model, node->src[0])) {
            continue;
        }
        const auto twin = std::find_if(trunk.first, trunk.second, [&](const ggml_tensor * other) {
            return other->op == GGML_OP_GET_ROWS && other->src[0] == node->src[0] && other->src[1] == tokens;
        });
        if (image || twin != trunk.second) {
            node->op     = GGML_OP_CONT;
            node->src[0] = image ? image : *twin;
            node->src[1] = nullptr;
        } else {
            std::rotate(nodes.begin(), it, it + 1);
        }
    }
    mtp_graph_restart(gf, nodes);
}

void mtp_graph_cut_down(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes_before, ggml_tensor * hidden) {
    std::vector<ggml_tensor *> stores;
    for (int i = nodes_before.size(); i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS && node->view_src->buffer) { // masks are written alike
            stores.push_back(node);
        }
    }

    mtp_graph_restart(gf, nodes_before);
    for (auto * node : stores) {
        ggml_build_forward_expand(gf, node);
    }
    if (hidden) {
        ggml_build_forward_expand(gf, hidden);
    }
}

static_assert((GGML_TENSOR_FLAG_INPUT | GGML_TENSOR_FLAG_OUTPUT | GGML_TENSOR_FLAG_PARAM | GGML_TENSOR_FLAG_LOSS |
               GGML_TENSOR_FLAG_COMPUTE) < GGML_TENSOR_FLAG_INVARIANT,
              "llama.cpp uses the bit of GGML_TENSOR_FLAG_INVARIANT: take another one");

static bool mtp_only_cpus_compute(ggml_backend_sched_t sched) {
    bool res = true;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        res &= mtp_is_cpu(ggml_backend_get_device(ggml_backend_sched_get_backend(sched, i)));
    }
    return res;
}

bool mtp_graph_is_host_weight(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    return buffer && ggml_backend_buffer_is_host(buffer) && tensor->op == GGML_OP_NONE;
}

static bool mtp_graph_multiplies_on_host(ggml_cgraph * gf) {
    const auto nodes = mtp_graph_nodes(gf);
    return std::any_of(nodes.begin(), nodes.end(), [](const ggml_tensor * node) {
        const bool is_product = node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
        return is_product && mtp_graph_is_host_weight(node->src[0]);
    });
}

void mtp_graph_mark(ggml_cgraph * gf, const llama_ubatch & ubatch, ggml_backend_sched_t sched, bool is_invariant) {
    const bool is_small    = ubatch.n_tokens <= MTP_SINGLE_ROWS_SPLIT || mtp_only_cpus_compute(sched);
    const bool is_for_rows = is_small || (ubatch.n_tokens <= MTP_SINGLE_ROWS_MAX && !mtp_graph_multiplies_on_host(gf));
    const int32_t flags    = GGML_TENSOR_FLAG_SINGLE_ROWS | (is_invariant ? GGML_TENSOR_FLAG_INVARIANT : 0);
    for (auto * node : mtp_graph_nodes(gf)) {
        node->flags |= is_for_rows ? flags : 0;
        if (node->op == GGML_OP_FLASH_ATTN_EXT) {
            node->op_params[MTP_PARAM_SEQUENCES] = (int32_t) ubatch.n_seqs_unq;
        }
    }
}
