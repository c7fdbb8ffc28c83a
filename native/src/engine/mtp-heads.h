#pragma once

// What the heads of a context know: the hidden states that they continue from, which positions of each sequence each of
// them has seen, and the cache that holds their K/V. Owns all of that. Knows rows and positions; no graphs, and
// nothing of when the heads run.

#include "llama-context.h"
#include "mtp-device-memory.h"
#include "mtp-image-rows.h"
#include "mtp-rows.h"
#include "mtp-seen.h"
#include "mtp-ubatch.h"

#include <memory>
#include <string_view>
#include <vector>

// pymtp_draft_obstacle, of a model that has heads or an assistant, and pymtp_heads_obstacle
const char * mtp_obstacle(const llama_model & model, const llama_model * assistant);
const char * mtp_obstacle_metadata(std::string_view name, int32_t n_heads, bool has_lora_q, bool has_mla);

class mtp_heads {
  public:
    struct params {
        int32_t n_heads; // heads that draft; 0: none, the context decodes plainly
        bool    chained; // heads read the hidden states of the head before; else the trunk's

        // Drafts in the place of heads, like a single one; nullptr: none. It stores nothing and need not see any row
        // before it drafts. It continues from one position, the newest token's, whatever the step.
        const llama_model * assistant;

        llama_memory_params memory; // for a cache of their own, where they need one
    };

    // Throws if memory runs out.
    mtp_heads(llama_context & ctx, const params & params);

    const int32_t n_heads;
    const bool    chained;
    const int32_t n_storing; // heads that store K/V, which have to see what the trunk decodes: all or none

    bool has_assistant() const { return assistant != nullptr; }

    // the model whose layers from n_layer() on are the heads
    const llama_model & model() const { return assistant ? *assistant : ctx.get_model(); }

    // F32 [n_embd_out, n_rows] hidden states, see mtp_heads_stage; empty if there are no heads
    const std::vector<ggml_tensor *> & planes() const { return plane_tensors; }

    // F32 [n_picked, n_rows] what an index has picked, in rows as those of the planes, for the drafts that take it over;
    // nullptr: none does
    ggml_tensor * picked() const { return picked_mem.get(); }

    // what holds their K/V: their own cache (nullptr: they have none), or the trunk's
    llama_memory_i * memory() const { return own ? own.get() : view ? view.get() : &trunk_memory(); }

    llama_memory_i * own_memory() const { return own.get(); }

    uint32_t n_stream() const { return ctx.get_cparams().kv_unified ? 1 : ctx.get_cparams().n_seq_max; }

    // --- hidden states

    // of a position; -1: that before the first
    bool has_hidden(llama_seq_id seq, llama_pos pos) const { return rows.find(seq, pos) >= 0; }

    // [n, n_embd_out] the trunk's of positions that are known, once they are computed
    void copy_hidden(llama_seq_id seq, llama_pos pos, int32_t n, float * hidden) const;

    // [n_tokens] rows of plane 0 that the trunk writes for an ubatch. n_fed: by row of the batch, see mtp_planner::trunk
    std::vector<int64_t> place_trunk(const llama_ubatch & ubatch, const std::vector<int32_t> & n_fed);

    // The same for an ubatch of n_tokens rows of an image, which continues in the next ubatch. rows_read: [n_tokens]
    // rows that hold what heads read at them, the hidden states of the rows before.
    std::vector<int64_t> place_image(mtp_image_rows & image, uint32_t n_tokens, std::vector<int32_t> & rows_read);

    // the row that a head writes for a position
    int64_t place_draft(llama_seq_id seq, llama_pos pos) { return rows.put_head(seq, pos); }

    // [n] rows that hold the hidden states which heads read at these rows: those of the positions before
    std::vector<int32_t> find_read(const std::vector<mtp_row> & of) const;

    // [n] rows that hold those of the rows themselves, as far as there are some
    std::vector<int64_t> find_kept(const std::vector<mtp_row> & of) const;

    // --- what they have seen

    // The position after the last, of those before end, that the first n of the heads have seen; or that they cannot see
    // any more, as its hidden state before is gone: heads that know it would lose it if they ran there once more.
    llama_pos seen_end(llama_seq_id seq, llama_pos end, int32_t n) const;

    // the first n heads run on a row in the trunk's pass, or on all positions of an image
    void take(const mtp_row & row, int32_t n);
    void take_image(const mtp_image_rows & image);

    // The first n heads are about to draft. rows: each sequence's rows that catch up, and the one that predicts.
    void start_draft(const std::vector<mtp_row> & rows, int32_t n);

    // gives back what a draft has taken that failed. rows: those of the draft
    void forget_draft(const std::vector<mtp_row> & rows);

    // whether one of the first n heads has not seen all of the sequences of these rows
    bool hide_any(const std::vector<mtp_row> & of, int32_t n) const;

    // sets an input of a head's part of a graph: its masks leave out what the head has not seen
    void set_input(int32_t head, llm_graph_input_i & input, const llama_ubatch & ubatch) const;

    // --- changes of sequences, after llama.cpp's memory or before it

    void truncate(llama_seq_id seq, llama_pos pos);

    // drops what heads have written ahead of the trunk; comes before what follows
    void release_drafts();

    void copy(llama_seq_id from, llama_seq_id to); // to one that is empty
    void discard(llama_seq_id seq, llama_pos pos, int32_t n);

    // What is known of a sequence, without its K/V. Reading throws if the bytes do not fit.
    void write(llama_io_write_i & io, llama_seq_id seq) const;
    void read(llama_io_read_i & io, llama_seq_id seq);

  private:
    llama_context &           ctx;
    const llama_model * const assistant;

    std::unique_ptr<llama_memory_i>    own;
    std::unique_ptr<llama_memory_i>    view; // the trunk's by the layers of the assistant
    std::vector<mtp_device_tensor>     plane_mem;
    std::vector<ggml_tensor *>         plane_tensors;
    mtp_device_tensor                  picked_mem;
    mtp_rows                           rows;
    std::vector<std::vector<mtp_seen>> seen; // [n_storing][n_seq_max]

    llama_memory_i & trunk_memory() const { return *ctx.get_memory(); }
};
