#pragma once

// The MTP side of a llama_context: hidden rows on the device, graph slots, and the passes of the heads on the
// trunk's cache. llama_context owns it and calls it around each ubatch. Knows rows; knows no sampling.

#include "llama-context.h"
#include "mtp-rows.h"
#include "mtp-ubatch.h"
#include "pymtp.h"

#include <memory>
#include <tuple>
#include <vector>

struct mtp_engine {
    // nullptr unless the context is of type MTP_SHARED and its memory can host the heads
    static std::shared_ptr<mtp_engine> create(llama_context & ctx);

    static mtp_engine * of(llama_context & ctx) { return ctx.mtp.get(); }

    explicit mtp_engine(llama_context & ctx);
    ~mtp_engine();

    //
    // called by llama_context
    //

    // before the graph of a ubatch is built: picks its slot, and for the trunk the rows that it writes
    void begin(const llama_ubatch & ubatch, llm_graph_type gtype);

    // after a trunk ubatch: runs its prompt rows through the heads. false if that failed
    bool catch_up(const llama_ubatch & ubatch);

    // the scheduler for work outside of ubatches (reservations, cache shifts) is the context's own
    void select_home();

    // the scheduler is about to be replaced
    void drop_slots();

    //
    // called by the graph hooks
    //

    void count_build(bool is_head);

    ggml_tensor *        hidden = nullptr; // F32 [n_embd_out, rows.size()]
    std::vector<int32_t> rows_read;        // [n_tokens of the ubatch] rows that a head's pass gathers
    std::vector<int32_t> rows_write;       // [n_tokens of the ubatch] rows that the pass writes

    // one step of a fused draft
    struct draft_step {
        llama_ubatch             ubatch;
        llama_memory_context_ptr mctx;
        llm_graph_params         params     = {};
        bool                     has_params = false;
    };

    std::vector<draft_step> steps; // of the draft that is being built or run; empty: not fused

    // while a fused draft is built: the step at hand, and what the step before gives it
    size_t        step_built  = 0;
    ggml_tensor * step_token  = nullptr;
    ggml_tensor * step_hidden = nullptr;

    // the parameters of the pass as one step sees them
    const llm_graph_params & step_params(size_t step, const llm_graph_params & params);

    ggml_tensor * bias = nullptr; // F32 [n_vocab]: added to the logits of fused drafts; nullptr: nothing

    //
    // called by the session
    //

    // Runs one head over rows of (token, position, sequence). The caller has checked them, has_hidden included.
    pymtp_status draft(int32_t head, const std::vector<mtp_row> & rows);

    // Drafts n_steps tokens in one graph, each the most likely one. rows: of one sequence, the last with output.
    // tokens: [*n_steps], which shrinks if the cache has no room for all.
    pymtp_status draft_greedy(int32_t head, const std::vector<mtp_row> & rows, int32_t * n_steps, int32_t * tokens);

    // fused drafts never propose these tokens
    void bar(const std::vector<llama_token> & tokens);

    // float32 [n_draft_rows, n_vocab] of the last draft
    const std::vector<float> & draft_logits();

    bool has_hidden(llama_seq_id seq, llama_pos pos) const { return hidden_rows.find(seq, pos) >= 0; }

    // whether a prompt can go on behind pos: the heads need that hidden state
    bool can_continue(llama_seq_id seq, llama_pos pos) const { return hidden_rows.is_kept(seq, pos); }

    // several sequences in one pass of a head: only where they share one stream of the cache
    bool is_unified() const { return n_stream() == 1; }

    void truncate(llama_seq_id seq, llama_pos pos);

    int32_t              n_heads = 0;      // heads that prompts run through
    std::vector<uint8_t> row_flags;        // pymtp_row_flag of the batch that is being decoded
    int32_t              n_draft_rows = 0; // rows of draft_logits
    pymtp_counters       counters     = {};

  private:
    // Graphs that alternate (verify, first draft pass, draft step) each keep their own result and scheduler, so
    // that none has to be rebuilt because another ran in between.
    struct graph_slot {
        // what tells graphs apart: graph type, rows, outputs, sequences, head, steps, bias
        using key_t = std::tuple<llm_graph_type, uint32_t, uint32_t, uint32_t, int32_t, size_t, ggml_tensor *>;

        key_t    key;
        uint64_t t_used;

        ggml_backend_sched_ptr              sched;
        std::array<llm_graph_result_ptr, 2> results;
        llm_graph_result *                  active = nullptr;
    };

    // a tensor that outlives the graphs, F32, zeros at first
    struct device_tensor {
        ggml_context_ptr        ctx;
        ggml_backend_buffer_ptr buf;

        ggml_tensor * alloc(const char * name, int64_t ne0, int64_t ne1, ggml_backend_dev_t dev);
    };

    llama_context & ctx;

    device_tensor hidden_mem;
    mtp_rows      hidden_rows;
    device_tensor bias_mem;

    std::vector<std::unique_ptr<graph_slot>> slots;
    graph_slot                               home    = {};
    graph_slot *                             cur     = &home; // whose scheduler the context holds now
    uint64_t                                 t       = 0;
    bool                                     in_pass = false; // else llama.cpp reserves, or shifts the cache

    std::vector<float> logits;                                // [n_draft_rows, n_vocab]

    graph_slot * find_slot(const llama_ubatch & ubatch, llm_graph_type gtype);
    void         select(graph_slot * slot);
    void         swap_with(graph_slot & slot);

    uint32_t n_stream() const;
    void     write_trunk_rows(const llama_ubatch & ubatch);
    void     read_rows(const std::vector<mtp_row> & rows);

    void fetch(ggml_tensor * tensor, void * data);

    // one graph run of a head on its placed rows. nullptr if it failed
    llm_graph_result * run_head(int32_t head, const llama_ubatch & ubatch, llama_memory_context_i & mctx);
};
