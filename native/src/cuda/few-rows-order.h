#pragma once

// Nodes that a GPU computes in one kernel, moved together in a graph where others are between them: products of the same
// activations and type of weights, as those that make queries, keys and values (cuda-few-rows.cuh); and the storing of
// rotated keys. Knows graphs and no device, as it is the client of an RPC server that orders what the server's GPU
// computes.

#include "ggml-impl.h"

#include <algorithm>

static constexpr int FEW_ROWS_NODES_TO_LOOK = 64;  // a layer's attention has fewer
static constexpr int FEW_ROWS_GATHERED_MAX  = 512; // rows; products of more are computed by other kernels

static inline bool few_rows_go_together(const ggml_tensor * a, const ggml_tensor * b) {
    return b->op == GGML_OP_MUL_MAT && a->src[1] == b->src[1] && a->src[0]->type == b->src[0]->type;
}

// whether a product may be fused with one of the two nodes that follow it
static inline bool few_rows_is_fused(const ggml_cgraph * cgraph, int i) {
    const ggml_tensor * node = cgraph->nodes[i];
    const int           end  = std::min(cgraph->n_nodes, i + 3);
    return std::any_of(cgraph->nodes + i + 1, cgraph->nodes + end, [&](const ggml_tensor * next) {
        return (next->op == GGML_OP_ADD || next->op == GGML_OP_GLU) && (next->src[0] == node || next->src[1] == node);
    });
}

// stands_alone(i): whether node i is such a product, and not fused with others. Before the graph is allocated.
template <class StandsAlone> void few_rows_gather(ggml_cgraph * cgraph, StandsAlone stands_alone) {
    for (int i = 0; i < cgraph->n_nodes; ++i) {
        if (!stands_alone(i)) {
            continue;
        }
        const ggml_tensor * first = cgraph->nodes[i];
        const int           end   = std::min(cgraph->n_nodes, i + FEW_ROWS_NODES_TO_LOOK);
        for (int j = i + 1; j < end; ++j) {
            if (few_rows_go_together(first, cgraph->nodes[j]) && stands_alone(j)) {
                ++i;
                std::rotate(cgraph->nodes + i, cgraph->nodes + j, cgraph->nodes + j + 1);
            }
        }
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
