#pragma once

// What ggml's backend for tensors that are split over devices keeps of graphs: several are alive there at a time, and
// come back as they were. Knows its structures by their members; nothing of models.

#include "ggml-cpp.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

// Slices of tensors of graphs, for one device each.
struct mtp_slices {
    // One of a type and a shape. `old`: that of an earlier tensor at the same address, whose place it takes, or nullptr
    ggml_tensor * make(ggml_tensor * old, ggml_type type, const int64_t * ne) {
        ggml_tensor * slice = old ? old : &all.emplace_back();
        *slice              = {};
        slice->type         = type;
        std::copy_n(ne, GGML_MAX_DIMS, slice->ne);
        return slice;
    }

  private:
    std::deque<ggml_tensor> all;
};

// The nodes of subgraph i of a graph with n_nodes.
template <typename Subgraphs>
int mtp_n_nodes_of(const Subgraphs & subgraphs, size_t i, size_t n_subgraphs, int n_nodes) {
    return (i + 1 < n_subgraphs ? subgraphs[i + 1].offset : n_nodes) - subgraphs[i].offset;
}

template <typename Subgraphs>
size_t mtp_subgraphs_bytes(const Subgraphs & subgraphs, size_t n_subgraphs, int n_nodes, bool grads) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < n_subgraphs; i++) {
        n_bytes += ggml_graph_overhead_custom(mtp_n_nodes_of(subgraphs, i, n_subgraphs, n_nodes), grads);
    }
    return n_bytes;
}

// What was built for graphs other than the current one, which is in the backend's context. Config: its part of a device.
template <typename Config> class mtp_built_graphs {
  public:
    // Makes a graph current. Returns whether it was built before.
    template <typename Context> bool select(Context & context, uint64_t uid) {
        if (uid != 0 && uid == context.uid) {
            return true;
        }
        const bool known = all.count(uid) > 0;
        if (!known && all.size() >= N_MAX) {
            all.clear(); // most will not come back
        }
        exchange(context, all[context.uid]);
        exchange(context, all[uid]);
        all.erase(uid);
        all.erase(0); // has no name to come back by
        context.uid = uid;
        return known;
    }

  private:
    static constexpr size_t N_MAX = 256;

    struct built_graph {
        std::vector<std::pair<decltype(Config::cgraphs), decltype(Config::nodes)>> devices;

        ggml_context_ptr           ctx;
        std::vector<ggml_cgraph *> cgraphs_aux;
        std::vector<ggml_tensor *> nodes_aux;
        size_t                     n_subgraphs   = 0;
        size_t                     max_subgraphs = 0;
        int                        max_nnodes    = 0;
    };

    std::map<uint64_t, built_graph> all;

    template <typename Context> static void exchange(Context & context, built_graph & graph) {
        graph.devices.resize(context.backend_configs.size());
        for (size_t j = 0; j < graph.devices.size(); j++) {
            context.backend_configs[j].cgraphs.swap(graph.devices[j].first);
            context.backend_configs[j].nodes.swap(graph.devices[j].second);
        }
        context.ctx.swap(graph.ctx);
        context.cgraphs_aux.swap(graph.cgraphs_aux);
        context.nodes_aux.swap(graph.nodes_aux);
        std::swap(context.n_subgraphs, graph.n_subgraphs);
        std::swap(context.max_subgraphs, graph.max_subgraphs);
        std::swap(context.max_nnodes, graph.max_nnodes);
    }
};
