#pragma once

// The plan of one pass: which rows the trunk writes, which head runs on which rows, what it reads, and what is kept of
// it. What the heads do inside one graph are stages, each a set of rows that one or more heads run on: a trunk pass
// that feeds the heads has one, on the trunk's own rows; a draft has one for each step, and one more in front of them
// for rows that catch up. A plan is made before the pass and does not change after that; the graph of the pass is built
// by it, and its inputs are set by it. The planner knows the heads; it knows no graphs.

#include "mtp-heads.h"

#include <memory>
#include <vector>

// what a head's run gives in addition to the K/V that it stores
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

    bool follows  = false;          // tokens and hidden states come from the stage before, in the graph
    bool keeps    = false;          // hidden states go to the buffer, for a later graph
    bool as_trunk = false;          // rows, cells and what they see are the trunk's, and so are the inputs of attention

    std::vector<int32_t> rows_read; // [n_tokens] rows of the hidden buffer, unless it follows
    std::vector<int64_t> rows_write; // [n_tokens] rows of the hidden buffer, if it keeps

    // Attention sees what the index has picked for the first draft of the round. Rows whose round began with at most as
    // many positions as it picks see everything. [n_tokens] 0 for these, -INFINITY for the others; empty: each draft
    // picks for itself
    std::vector<float> sees_all;
};

struct mtp_plan {
    std::vector<int64_t>         rows_trunk; // [n_tokens] rows of plane 0 that the trunk writes; none in a draft
    std::vector<mtp_heads_stage> stages;     // what the heads do

    size_t n_drafting  = 0;     // rows of each step of a draft that count; the others are there for the shape
    bool   picks       = false; // a draft that picks its tokens in the graph
    bool   picks_probs = false; // and gives their probabilities

    // The first stage that predicts stands for a draft's pass: rows that catch up come before it.
    size_t first_step() const;

    size_t n_steps() const { return stages.size() - first_step(); } // of a draft

    size_t n_runs() const;

    // What its graph depends on, in addition to what any graph does: the same numbers, the same nodes. has_streams:
    // also which sequences it has.
    std::vector<int64_t> key(bool has_streams) const;
};

using mtp_plan_ptr = std::unique_ptr<const mtp_plan>;

class mtp_planner {
  public:
    explicit mtp_planner(llama_context & ctx, mtp_heads & heads) : ctx(ctx), heads(heads) {}

    // The plan of a trunk pass; marks what the heads see in it. n_fed: [n_tokens] of the batch that the ubatch is part
    // of, how many heads see a row; negative for a row that was added for the shape, of which nothing is kept. Throws
    // if the heads' own cache is full.
    mtp_plan_ptr trunk(const llama_ubatch & ubatch, const llama_memory_context_i * mctx,
                       const std::vector<int32_t> & n_fed);

    // The plan of a trunk pass over rows of an image.
    mtp_plan_ptr image(const llama_ubatch & ubatch, const llama_memory_context_i * mctx, mtp_image_rows & image);

    // The plan of the largest trunk pass, for llama.cpp to see how large its buffers must be: it feeds the heads.
    mtp_plan_ptr largest(const llama_ubatch & ubatch, const llama_memory_context_i * mctx);

    // The plan of one step of a draft of n_steps. rows: each sequence's rows that catch up, and the one that predicts.
    // nullptr if the cache is full.
    mtp_plan_ptr step(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows);

    // The plan of the first n_steps of a draft of n_asked that picks its tokens; of fewer if the cache has no room,
    // nullptr if it has none for one.
    mtp_plan_ptr greedy(int32_t n_steps, int32_t n_asked, const std::vector<mtp_row> & rows, bool with_probs);

    // drafts from now on have one of few numbers of rows
    void pad() { pads = true; }

    bool is_padding() const { return pads; }

    // The rows of sequences that can share a pass: those with streams of their own if their streams are side by side.
    std::vector<std::vector<mtp_row>> split(const std::vector<mtp_row> & rows) const;

  private:
    llama_context & ctx;
    mtp_heads &     heads;
    bool            pads = false;

    std::vector<mtp_run> step_runs(int32_t step, int32_t n_steps) const;

    // Adds the rows of a draft that catch up. Returns those that predict, of one of few numbers; none if the cache is full.
    std::vector<mtp_row> begin(mtp_plan & plan, int32_t n_steps, const std::vector<mtp_row> & rows);

    bool              add_catch_up(mtp_plan & plan, const std::vector<mtp_row> & rows, int32_t n);
    bool              add_step(mtp_plan & plan, int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows);
    bool              place(mtp_heads_stage & stage, const std::vector<mtp_row> & rows) const;
    mtp_heads_stage & add_stage(mtp_plan & plan, int32_t n) const;
    void add_feed(mtp_plan & plan, const llama_ubatch & ubatch, const llama_memory_context_i * mctx, int32_t n,
                  std::vector<int32_t> rows_read);
};

// the rows that predict (output), or those that catch up
std::vector<mtp_row> mtp_rows_with_output(const std::vector<mtp_row> & rows, bool output);
