#pragma once

// Graphs that are kept. Graphs that alternate (verify, draft) each have their own result and scheduler, so that none has
// to be built again because another ran in between. The context computes with what it holds itself: the graph in use
// has exchanged its scheduler and its results with the context's. All compute in the memory that the context has reserved
// for its own. Owns the graphs; does not know what a key says.

#include "llama-context.h"
#include "mtp-inputs.h"
#include "mtp-outputs.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

struct mtp_kept_graph {
    std::vector<int64_t>    key;  // what distinguishes graphs
    std::array<uint32_t, 2> n_kv; // cells that its graph looks at; grows with the text
    size_t                  max_nodes;
    uint64_t                t_used;

    ggml_backend_sched_ptr              sched;
    std::array<llm_graph_result_ptr, 2> results;
    llm_graph_result *                  active = nullptr;

    mtp_candidates reduced; // what its graph leaves of its logits
    mtp_inputs     inputs;
};

class mtp_kept_graphs {
  public:
    explicit mtp_kept_graphs(llama_context & ctx) : ctx(ctx) {}

    // The graph for a key: one that there is, else a new one with room for max_nodes, for which those that were used
    // longest ago may have to go. has_outputs: whether the graph gives logits or the like. reads_once: whether no weight
    // is read twice in it, so that of experts on the host a device only needs those that are chosen there.
    mtp_kept_graph & find(std::vector<int64_t> key, std::array<uint32_t, 2> n_kv, size_t max_nodes, bool has_outputs,
                          bool reads_once);

    // the context's own scheduler and results: for reservations, cache shifts, and prompts of any shape
    mtp_kept_graph & home() { return own; }

    bool is_home() const { return cur == &own; }

    // whether all compute in the memory of the context's own
    bool share_memory();

    mtp_kept_graph & current() { return *cur; }

    void select(mtp_kept_graph & graph) {
        graph.t_used = ++t;
        if (&graph == cur) {
            return;
        }
        exchange(*cur);
        exchange(graph);
        cur = &graph;
    }

    // To be called before a pass: if one graph needed more memory than there was, it is another one now, and those that
    // were allocated before are built again.
    void drop_moved();

    // all but the context's own
    void clear() {
        select(own);
        graphs.clear();
    }

    // the compute buffers of all
    size_t compute_bytes() const;

  private:
    llama_context & ctx;

    std::vector<std::unique_ptr<mtp_kept_graph>> graphs;
    mtp_kept_graph                               own = {};
    mtp_kept_graph *                             cur = &own;
    uint64_t                                     t   = 0;
    std::optional<bool>                          is_shared; // whether they can share memory; not known at first
    size_t                                       n_bytes_shared = 0;

    ggml_backend_sched_t home_sched() const { return (is_home() ? ctx.sched : own.sched).get(); }

    void exchange(mtp_kept_graph & graph) {
        std::swap(ctx.sched, graph.sched);
        std::swap(ctx.gf_res_prev, graph.results);
        std::swap(ctx.gf_res_prev_active, graph.active);
    }

    void   evict_oldest();
    size_t buffer_bytes(ggml_backend_sched_t sched) const;
};
