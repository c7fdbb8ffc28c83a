#pragma once

// Which tokens drafts may be: a part of the vocabulary, whose rows of the output matrices are all that a head
// multiplies, and tokens that are banned. Owns the matrices of such a part. Verification knows nothing of it: what is
// drafted stays lossless.

#include "llama.h"
#include "mtp-device-memory.h"

#include <vector>

class mtp_draft_vocab {
  public:
    // head_model: the one whose layers from n_layer() on are the heads. Throws if memory runs out
    mtp_draft_vocab(const llama_model & trunk, const llama_model & head_model, int32_t n_heads);

    // Limits drafts to n tokens: these, or the first ones (all of them: to none). rows[h]: those of these tokens in head
    // h's output matrix, one after another, which drafts multiply with; in its type (-1), or in another one. Throws if
    // memory runs out; the limit is then as it was.
    void limit(int32_t n, const std::vector<llama_token> & tokens, int32_t type,
               const std::vector<const void *> & rows);

    // Puts tokens in the place of those at some rows of the list. rows[h]: theirs of head h's output matrix, in its type.
    void replace(const std::vector<int32_t> & at, const std::vector<llama_token> & tokens,
                 const std::vector<const void *> & rows);

    void ban(const std::vector<llama_token> & tokens);

    // logits of a row of a draft
    int32_t size() const { return n; }

    // tokens of the whole vocabulary before its padding
    int32_t n_usable() const { return n_tokens_usable; }

    // logits of a draft's row that stand for tokens
    int32_t n_draftable() const { return is_listed() ? n : n < n_tokens_usable ? n : n_tokens_usable; }

    bool is_listed() const { return !listed.empty(); }

    // whether rows of drafts are of the types of the heads' matrices
    bool has_own_types() const { return own_types; }

    // the tokens of a row's logits; nullptr: the first ones
    const llama_token * listed_tokens() const { return is_listed() ? listed.data() : nullptr; }

    // the output matrix of a head: its own, or the trunk's
    ggml_tensor * output_matrix(int32_t head) const;

    // --- for graphs

    // What graphs of drafts depend on: the same numbers, the same nodes. Those of a list that is gone never come again.
    std::vector<int64_t> key() const { return { bias != nullptr, n, matrices.empty() ? 0 : n_limits }; }

    // what a head multiplies with in the place of a weight: the rows that drafts are limited to, else the weight
    ggml_tensor * weight(ggml_context * ctx0, int32_t head, ggml_tensor * weight) const;

    // F32 [size()], to be added to logits before a pick; nullptr: nothing
    ggml_tensor * logit_bias(ggml_context * ctx0) const { return bias ? ggml_view_1d(ctx0, bias, n, 0) : nullptr; }

    // I32 [n]: the tokens of rows of logits, I32 [n]
    ggml_tensor * tokens(ggml_context * ctx0, ggml_tensor * rows) const;

  private:
    const llama_model & trunk;
    const llama_model & head_model;
    const int32_t       n_tokens_usable;

    int32_t                  n;
    std::vector<llama_token> listed;
    bool                     own_types = true;
    int64_t                  n_limits  = 0; // that were set so far
    mtp_device_tensor        listed_mem;    // I32 [1, n]
    std::vector<mtp_device_tensor>
        matrices; // [n_heads] of the n tokens, none: the first head's; empty: the first n rows of the model's
    std::vector<llama_token> banned;
    mtp_device_tensor        bias_mem;
    ggml_tensor *            bias = nullptr; // F32 [n_vocab] by row of the output matrix; nullptr: nothing

    void fill_bias();
};

// Whether numbers can be written as rows of a type without calibration data, and a matrix of it can be multiplied.
bool mtp_can_convert_to(ggml_type type);

// Converts rows between types that can be converted, whose blocks fit a row. Returns the first row with a number that is
// not finite, where it stops; n_rows if there is none.
int64_t mtp_convert_rows(ggml_type from, ggml_type to, int64_t n_rows, int64_t n_per_row, const void * rows,
                         void * converted);
