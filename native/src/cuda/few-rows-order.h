#pragma once

// Nodes that a GPU computes in one kernel, or at the same time, moved together in a graph where others are between them:
// products of the same activations, as those that make queries, keys and values, by type of weights (cuda-few-rows.cuh);
// and the storing of rotated keys. Knows graphs and no device, as it is the client of an RPC server that orders what the
// server's GPU computes.

#include "ggml-backend.h"
#include "ggml-impl.h"

#include <algorithm>

static constexpr int FEW_ROWS_NODES_TO_LOOK = 64;   // a layer's attention has fewer
static constexpr int FEW_ROWS_GATHERED_MAX  = 2048; // rows; products of more are computed by other kernels

static inline bool few_rows_share_activations(const ggml_tensor * a, const ggml_tensor * b) {
    return b->op == GGML_OP_MUL_MAT && a->src[1] == b->src[1];
}

static inline bool few_rows_go_together(const ggml_tensor * a, const ggml_tensor * b) {
    return few_rows_share_activations(a, b) && a->src[0]->type == b->src[0]->type;
}

// also before a graph is allocated, when a part of a weight has no buffer yet
static inline bool few_rows_is_weight(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    return buffer && ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// A product, and the bias of its rows if the result is a sum: a kernel computes both.
struct few_rows_node {
    ggml_tensor * result;
    ggml_tensor * product;
    ggml_tensor * bias; // nullptr: none

    explicit few_rows_node(ggml_tensor * result) : result(result), product(result), bias(nullptr) {
        if (result->op == GGML_OP_ADD) {
            product = result->src[0];
            bias    = result->src[1];
        }
    }
};

// whether the node after a product adds a bias to it, which needs no other result
static inline bool few_rows_has_bias(const ggml_cgraph * cgraph, int i) {
    if (i + 1 >= cgraph->n_nodes || cgraph->nodes[i + 1]->op != GGML_OP_ADD) {
        return false;
    }
    const few_rows_node sum(cgraph->nodes[i + 1]);
    return sum.product == cgraph->nodes[i] && few_rows_is_weight(sum.bias) && sum.bias->type == GGML_TYPE_F32 &&
           sum.bias->ne[0] == sum.result->ne[0] && ggml_nelements(sum.bias) == sum.bias->ne[0] &&
           ggml_node_get_use_count(cgraph, i) == 1 && !(sum.product->flags & GGML_TENSOR_FLAG_OUTPUT);
}

// how many nodes a product is, with its bias
static inline int few_rows_n_nodes(const ggml_cgraph * cgraph, int i) {
    return few_rows_has_bias(cgraph, i) ? 2 : 1;
}

// whether a product, with its bias, may be fused with one of the nodes that follow it
static inline bool few_rows_is_fused(const ggml_cgraph * cgraph, int i) {
    const int           last = i + few_rows_n_nodes(cgraph, i) - 1;
    const ggml_tensor * node = cgraph->nodes[last];
    const int           end  = std::min(cgraph->n_nodes, last + (last == i ? 3 : 4)); // a gate has a bias as well
    return std::any_of(cgraph->nodes + last + 1, cgraph->nodes + end, [&](const ggml_tensor * next) {
        return (next->op == GGML_OP_ADD || next->op == GGML_OP_GLU) && (next->src[0] == node || next->src[1] == node);
    });
}

// stands_alone(i): whether node i is such a product, and not fused with others. Before the graph is allocated.
template <class StandsAlone> void few_rows_gather(ggml_cgraph * cgraph, StandsAlone stands_alone) {
    for (int i = 0; i < cgraph->n_nodes; ++i) {
        if (!stands_alone(i)) {
            continue;
        }
        const ggml_tensor * first  = cgraph->nodes[i];
        const int           end    = std::min(cgraph->n_nodes, i + FEW_ROWS_NODES_TO_LOOK);
        const auto          gather = [&](auto goes, int next) {
            for (int j = next; j < end; ++j) {
                if (goes(first, cgraph->nodes[j]) && stands_alone(j)) {
                    const int n = few_rows_n_nodes(cgraph, j);
                    std::rotate(cgraph->nodes + next, cgraph->nodes + j, cgraph->nodes + j + n);
                    next += n;
                    j += n - 1;
                }
            }
            return next;
        };
        const int next = gather(few_rows_go_together, i + few_rows_n_nodes(cgraph, i));
        gather(few_rows_share_activations, next); // and after them those of other types
        i = next - 1;
    }
}

// Stores rotated keys right after their rotation, if all that is between makes values.
static inline void few_rows_store_next(ggml_cgraph * cgraph) {
    for (int i = 0; i + 2 < cgraph->n_nodes; ++i) {
        const ggml_tensor * rope       = cgraph->nodes[i];
        const auto          is_between = [](const ggml_tensor * node) {
            return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_ADD;
        };
        int j = i + 1;
        while (rope->op == GGML_OP_ROPE && j + 2 < cgraph->n_nodes && is_between(cgraph->nodes[j])) {
            ++j;
        }
        const ggml_tensor * view  = cgraph->nodes[j];
        const ggml_tensor * store = j + 1 < cgraph->n_nodes ? cgraph->nodes[j + 1] : view;
        if (j > i + 1 && view->op == GGML_OP_VIEW && view->src[0] == rope && store->op == GGML_OP_SET_ROWS &&
            store->src[0] == view && store->src[1]->op == GGML_OP_NONE) {
            std::rotate(cgraph->nodes + i + 1, cgraph->nodes + j, cgraph->nodes + j + 2);
        }
    }
}
