#pragma once

// What the heads do inside one graph: stages, each a set of rows that one or more heads run on. A trunk pass that
// feeds the heads has one stage, on the trunk's own rows; a draft has one for each step, and one more in front of
// them for rows that catch up. Plain data: plans are made in mtp-plan.cpp and built in mtp-graph.cpp.

#include "llama-batch.h"
#include "llama-memory.h"

#include <cstdint>
#include <vector>

struct ggml_tensor;

// what a head's run gives besides the K/V that it stores
enum mtp_output {
    MTP_OUTPUT_NONE   = 0, // nothing: neither attention nor feed forward nor the output matrix are computed
    MTP_OUTPUT_HIDDEN = 1, // hidden states: the output matrix is not computed
    MTP_OUTPUT_LOGITS = 2, // hidden states and logits
};

// Hidden states live in planes: plane 0 is the trunk's. Where heads are chained, plane h + 1 is that of head h.
struct mtp_run {
    int32_t    head;
    int32_t    plane_read;
    int32_t    plane_write; // if output is not NONE
    mtp_output output;
};

struct mtp_heads_stage {
    llama_ubatch                   ubatch;
    const llama_memory_context_i * mctx; // where the rows' cells are
    llama_memory_context_ptr       mctx_owned;

    std::vector<mtp_run> runs;

    bool follows = false;            // tokens and hidden states come from the stage before, in the graph
    bool keeps   = false;            // hidden states go to the buffer, for a later graph

    std::vector<int32_t> rows_read;  // [n_tokens] rows of the hidden buffer, unless it follows
    std::vector<int64_t> rows_write; // [n_tokens] rows of the hidden buffer, if it keeps

    // Attention sees what the index has picked for the first draft of the round. Rows whose round began with at most as
    // many positions as it picks see everything. [n_tokens] 0 for these, -INFINITY for the others; empty: each draft
    // picks for itself
    std::vector<float> sees_all;
};

// What an index picks for a round's first draft, if the others take it over.
struct mtp_graph_picked {
    ggml_tensor * taken    = nullptr; // I32 [n_picked, n_tokens] cells; nullptr: to be picked
    ggml_tensor * sees_all = nullptr; // F32 [1, n_tokens] see mtp_heads_stage
    ggml_tensor * made     = nullptr; // I32 [n_picked, n_tokens] what was picked, if anything was
};

// While a head's part of a graph is built: what its inputs are tied to.
struct mtp_graph_part {
    size_t        stage;
    int32_t       head;
    ggml_tensor * tokens; // I32 [n_tokens]
    ggml_tensor * hidden; // F32 [n_embd, n_tokens]
};
