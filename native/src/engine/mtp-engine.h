#pragma once

// The engine behind a llama_context: graph slots, hidden states on the device, and the passes of the heads.
// llama_context owns it and calls it around each ubatch. Knows rows; knows no sampling.

#include "llama-context.h"
#include "mtp-candidates.h"
#include "mtp-graph.h"
#include "mtp-inputs.h"
#include "mtp-rows.h"
#include "mtp-seen.h"
#include "mtp-stage.h"
#include "mtp-ubatch.h"
#include "pymtp.h"

#include <memory>
#include <vector>

struct mtp_engine {
    struct params {
        int32_t n_heads; // heads that draft; 0: none, the context decodes plainly
        bool    chained; // heads read the hidden states of the head before; else the trunk's

        // A small model beside the trunk that drafts in the place of heads, like a single one; nullptr: none. Its layers
        // have queries alone and read the K/V of the trunk's last ones: it stores nothing and need not see any row
        // before it drafts. It goes on from one position, the newest token's, whatever the step.
        const llama_model * assistant;

        uint32_t n_rows_round;      // the most rows of a trunk pass that comes again and again; larger ones are prompts

        llama_memory_params memory; // for the heads' own cache, where they need one
    };

    // Gives a context its engine. Throws if memory runs out.
    static mtp_engine & attach(llama_context & ctx, const params & params);

    mtp_engine(llama_context & ctx, const params & params);
    ~mtp_engine();

    //
    // called by llama_context
    //

    // before the graph of a ubatch is built: picks its slot, and for the trunk the rows that it writes
    void begin(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx);

    // around the setting of the graph's inputs
    void open_inputs() { cur->inputs.open(); }

    void send_inputs() { cur->inputs.send(); }

    // after a trunk ubatch: true if its logits stay on the device until the session asks for them
    bool hold_logits(const llm_graph_result & res, bool is_whole_batch);

    // the scheduler for work outside of ubatches (reservations, cache shifts) is the context's own
    void select_home();

    // the scheduler is about to be replaced
    void drop_slots();

    //
    // called by the graph hooks
    //

    // counts the build; llama.cpp also builds graphs to see how large its buffers must be: these feed the heads
    void begin_build(const llm_graph_params & params);

    std::vector<ggml_tensor *> planes;     // F32 [n_embd_out, n_rows] hidden states, see mtp_stage
    std::vector<int64_t>       rows_trunk; // [n_tokens] rows of plane 0 that the trunk writes
    std::vector<mtp_stage>     stages;     // what the heads do in the pass at hand

    const mtp_graph_part * part = nullptr; // set while a head's part of a graph is built

    // a graph is built: its inputs get their places, if there is something to gain
    void end_build(ggml_cgraph * gf);

    // adds to the graph of logits what reduce_logits says
    void build_reduced(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits);

    //
    // drafts limited to a part of the vocabulary, see mtp-trim.cpp
    //

    ggml_tensor * trimmed_weight(ggml_context * ctx0, ggml_tensor * weight) const;
    ggml_tensor * trimmed_bias(ggml_context * ctx0) const;                       // [n_draft_vocab()], or nullptr
    ggml_tensor * trimmed_tokens(ggml_context * ctx0, ggml_tensor * rows) const; // I32 [n]: of rows of logits

    bool          picks       = false;   // the draft at hand picks tokens in the graph
    bool          picks_probs = false;   // and gives their probabilities
    ggml_tensor * bias        = nullptr; // F32 [n_vocab] added to the logits before a pick; nullptr: nothing

    // sets an input of a head's part: its masks leave out what the head has not seen
    void set_head_input(int32_t head, llm_graph_input_i & input, const llama_ubatch & ubatch);

    // the parameters of the pass as a stage's inputs see them
    const llm_graph_params & stage_params(size_t stage, const llm_graph_params & pass);

    // the model whose layers from n_layer() on are the heads
    const llama_model & head_model() const { return assistant ? *assistant : ctx.model; }

    // the parameters of the pass as that model's graph needs them
    void set_head_model(llm_graph_params & params) const;

    //
    // called by the session
    //

    // the compute buffers of all graphs that are kept
    size_t compute_bytes() const;

    // Runs one draft step over rows of (token, position, sequence), which the caller has checked.
    pymtp_status draft(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows);

    // Drafts in one graph, each token the most likely one. drafts: [n_sequences, *n_steps], which shrinks if the cache
    // has no room for all; probs likewise, or nullptr.
    pymtp_status draft_greedy(const std::vector<mtp_row> & rows, int32_t * n_steps, int32_t * drafts, float * probs);

    // gives back what a failed draft has taken. rows: those of the draft
    void forget_drafts(const std::vector<mtp_row> & rows);

    // Limits drafts to the first n tokens of the vocabulary; n_vocab: to none.
    void trim(int32_t n);

    // Limits drafts to these tokens. rows[h]: the rows of head h's output matrix, in its type; one after another.
    void trim(const std::vector<llama_token> & tokens, const std::vector<const void *> & rows);

    // the output matrix of a head: its own, or the trunk's
    ggml_tensor * output_matrix(int32_t head) const;

    int32_t n_draft_vocab() const { return n_trimmed; } // logits of a row of a draft

    // drafts that are picked in the graph are never these tokens
    void bar(const std::vector<llama_token> & tokens);

    // float32 [n_rows, n_vocab] of the last decode, in the order of its rows
    const float * logits();

    // float32 [n_draft_rows, n_vocab] of the last draft step
    const float * draft_logits();

    // whether logits are computed on a device
    bool computes_apart() const;

    // Where logits lie on a device, graphs leave what it takes to find the n_max highest of a row without fetching all
    // of them. 0: they do not.
    void reduce_logits(int32_t n_max, bool also_on_host);

    // tokens that a row of logits can stand for: without the padding of a vocabulary
    int32_t n_logits(bool of_draft) const;

    // one row of them, and the token of its i-th logit
    const float * logits_row(bool of_draft, int32_t row);

    llama_token token_of(bool of_draft, int32_t i) const {
        return of_draft && !trim_tokens.empty() ? trim_tokens[i] : i;
    }

    // the n highest logits of a row of the last decode or draft step. ids, values: [n], highest first
    void candidates(bool of_draft, int32_t row, int32_t n, int32_t * ids, float * values);

    // the hidden state of a position; -1: that before the first
    bool has_hidden(llama_seq_id seq, llama_pos pos) const { return hidden_rows.find(seq, pos) >= 0; }

    // the position behind the last that the first n of the heads have seen
    llama_pos seen_end(llama_seq_id seq, int32_t n) const;

    // after llama.cpp's memory
    void truncate(llama_seq_id seq, llama_pos pos);

    // All that the context remembers, as bytes; drops what heads have written ahead of the trunk.
    std::vector<uint8_t> save_state();

    // Throws if the bytes do not fit; the context is then in no state to go on, and needs one that fits.
    void restore_state(const uint8_t * data, size_t size);

    // The sequence `to`, which is empty, becomes what `from` is.
    void copy(llama_seq_id from, llama_seq_id to);

    // Drops n positions from pos on; those behind move up.
    void discard(llama_seq_id seq, llama_pos pos, int32_t n);

    // the heads have a cache of their own
    bool has_own_memory() const { return own_memory != nullptr; }

    std::vector<uint8_t> row_flags;        // flags of the rows of the batch that is being decoded
    int32_t              n_draft_rows = 0; // rows of draft_logits
    pymtp_counters       counters     = {};

  private:
    // Graphs that alternate (verify, draft) each keep their own result and scheduler, so that none has to be rebuilt
    // because another ran in between.
    struct graph_slot {
        std::vector<int64_t>    key;  // what tells graphs apart
        std::array<uint32_t, 2> n_kv; // cells that its graph looks at; grows with the text
        uint64_t                t_used;

        ggml_backend_sched_ptr              sched;
        std::array<llm_graph_result_ptr, 2> results;
        llm_graph_result *                  active = nullptr;
        mtp_candidates                      reduced;
        mtp_inputs                          inputs;
    };

    // logits that a pass has left on the device
    struct held_logits {
        ggml_tensor *  logits  = nullptr; // nullptr: none, or fetched
        mtp_candidates reduced = {};
        ggml_backend_t backend = nullptr;
    };

    // a tensor that outlives the graphs, zeros at first
    struct device_tensor {
        ggml_context_ptr        ctx;
        ggml_backend_buffer_ptr buf;

        ggml_tensor * alloc(const char * name, ggml_type type, int64_t ne0, int64_t ne1,
                            ggml_backend_buffer_type_t buft);
    };

    llama_context & ctx;

    const int32_t n_heads;
    const bool    chained;
    const int32_t n_usable; // tokens of the vocabulary before its padding

    const llama_model * const assistant;
    const int32_t             n_storing; // heads that store K/V, which have to see what the trunk decodes: all or none

    const uint32_t n_rows_round;

    const ggml_backend_t device; // the only one that computes graphs, if there is such a device; else nullptr

    std::unique_ptr<llama_memory_i>    own_memory;       // nullptr: the heads live in the trunk's
    std::unique_ptr<llama_memory_i>    assistant_memory; // the trunk's by the layers of the assistant
    std::vector<device_tensor>         planes_mem;
    mtp_rows                           hidden_rows;
    std::vector<std::vector<mtp_seen>> seen; // [n_storing][n_seq_max]
    device_tensor                      bias_mem;
    std::vector<llama_token>           barred;

    // output matrices limited to trim_tokens; empty: to the first n_trimmed rows of what they are
    struct trimmed_matrix {
        const ggml_tensor * of;
        ggml_tensor *       matrix;
        device_tensor       mem;
    };

    int32_t                     n_trimmed; // n_vocab: nothing is
    std::vector<trimmed_matrix> trimmed;
    std::vector<llama_token>    trim_tokens;
    device_tensor               trim_tokens_mem; // I32 [1, n_trimmed]

    std::unique_ptr<llm_graph_params> part_params;

    std::vector<std::unique_ptr<graph_slot>> slots;
    graph_slot                               home    = {};
    graph_slot *                             cur     = &home; // whose scheduler the context holds now
    uint64_t                                 t       = 0;
    bool                                     in_pass = false; // else llama.cpp reserves, or shifts the cache

    int32_t         n_reduced = 0;                            // see reduce_logits
    held_logits     held_trunk;
    held_logits     held_draft;
    mtp_host_memory trunk_candidates; // those of held_trunk
    mtp_host_memory draft_candidates;
    mtp_host_memory draft_logits_mem; // float32 [n_draft_rows, n_trimmed]
    mtp_host_memory picked_mem;       // drafts that the graph has picked, and their probabilities

    graph_slot * find_slot(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx);
    void         select(graph_slot * slot);
    void         swap_with(graph_slot & slot);

    uint32_t n_stream() const;

    llama_memory_i * head_memory() const {
        return own_memory ? own_memory.get() : assistant_memory ? assistant_memory.get() : ctx.memory.get();
    }

    void fill_bias();
    void update_own_memory();
    void release_drafts();

    void plan_trunk_rows(const llama_ubatch & ubatch);
    void plan_feed(const llama_ubatch & ubatch, const llama_memory_context_i * mctx);
    bool plan_catch_up(const std::vector<mtp_row> & rows, int32_t n);
    bool plan_step(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows);

    std::vector<mtp_run> feed_runs(int32_t n) const;
    std::vector<mtp_run> step_runs(int32_t step, int32_t n_steps) const;
    std::vector<int32_t> find_rows(const std::vector<mtp_row> & rows) const;
    void                 start_draft(const std::vector<mtp_row> & rows, int32_t n);
    void                 mark_seen(const mtp_row & row, int32_t n);

    // the rows of sequences that can share a pass
    std::vector<std::vector<mtp_row>> split(const std::vector<mtp_row> & rows) const;

    // runs the plan in one graph. nullptr if it failed
    llm_graph_result * run_plan();

    void fetch(ggml_tensor * tensor, void * data);

    held_logits hold(ggml_tensor * logits) const;
    void        wait(const held_logits & held); // for the pass that has left them: the time is that pass's
    void        fetch(held_logits & held, float * data);
    float *     draft_logits_data(size_t n_rows);
    int32_t     trunk_row(int32_t row) const;
};
