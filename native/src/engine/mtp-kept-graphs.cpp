#include "mtp-kept-graphs.h"

#include "mtp-shared-memory.h"

#include <algorithm>

// Each takes some MB of the host's memory, and of a device's what it computes in, where that cannot be shared.
static constexpr size_t MTP_SHARED_GRAPHS_MAX = 64;
static constexpr size_t MTP_OTHER_GRAPHS_MAX  = 16;

void mtp_kept_graphs::evict_oldest() {
    const auto oldest = std::min_element(graphs.begin(), graphs.end(),
                                         [](const auto & a, const auto & b) { return a->t_used < b->t_used; });
    ctx.synchronize();
    if (cur == oldest->get()) {
        select(own);
    }
    graphs.erase(oldest);
}

bool mtp_kept_graphs::share_memory() {
    if (!is_shared) {
        is_shared = mtp_sched_can_share(home_sched());
    }
    return *is_shared;
}

mtp_kept_graph & mtp_kept_graphs::find(std::vector<int64_t> key, std::array<uint32_t, 2> n_kv, size_t max_nodes,
                                       bool has_outputs, bool reads_once) {
    // Of graphs that only differ in how many cells they look at, few are kept. A single text's cache grows; that of
    // several goes back and forth between sizes, as some of them begin again.
    const int32_t    n_alike_max = 1 + std::min<int32_t>(ctx.cparams.n_seq_max, 7);
    mtp_kept_graph * victim      = nullptr;
    int32_t          n_alike     = 0;
    for (auto & graph : graphs) {
        if (graph->key != key) {
            continue;
        }
        if (graph->n_kv == n_kv) {
            return *graph;
        }
        if (n_alike++ == 0 || graph->t_used < victim->t_used) {
            victim = graph.get();
        }
    }
    if (n_alike >= n_alike_max) {
        victim->n_kv = n_kv;
        return *victim;
    }
    if (graphs.size() >= (share_memory() ? MTP_SHARED_GRAPHS_MAX : MTP_OTHER_GRAPHS_MAX)) {
        evict_oldest();
    }

    auto graph = std::make_unique<mtp_kept_graph>();

    graph->key       = std::move(key);
    graph->n_kv      = n_kv;
    graph->max_nodes = max_nodes;
    // llama.cpp takes one of two: all of its graphs have outputs, or none
    graph->results[has_outputs].reset(new llm_graph_result(max_nodes));
    graph->sched.reset(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(), ctx.backend_ptrs.size(),
                                              max_nodes, false, ctx.cparams.op_offload));
    if (share_memory()) {
        mtp_sched_share(graph->sched.get(), home_sched());
    }
    if (reads_once) {
        ggml_backend_sched_set_copy_callback(graph->sched.get(), llama_context::sched_copy_experts, &ctx);
    }

    graphs.push_back(std::move(graph));
    return *graphs.back();
}

void mtp_kept_graphs::drop_moved() {
    const size_t n_bytes = buffer_bytes(home_sched());
    if (is_shared.value_or(false) && n_bytes != n_bytes_shared) {
        clear();
        for (auto & result : ctx.gf_res_prev) {
            if (result) {
                result->reset();
            }
        }
    }
    n_bytes_shared = n_bytes;
}

// the buffers of a scheduler; what is lent has none
size_t mtp_kept_graphs::buffer_bytes(ggml_backend_sched_t sched) const {
    size_t res = 0;
    for (auto * backend : ctx.backend_ptrs) {
        res += sched ? ggml_backend_sched_get_buffer_size(sched, backend) : 0;
    }
    return res;
}

size_t mtp_kept_graphs::compute_bytes() const {
    size_t res = buffer_bytes(home_sched());
    if (!is_shared.value_or(false)) {
        res += is_home() ? 0 : buffer_bytes(ctx.sched.get()); // the graph in use has lent its scheduler
        for (const auto & graph : graphs) {
            res += buffer_bytes(graph->sched.get());
        }
    }
    return res;
}
