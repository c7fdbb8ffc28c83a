#pragma once

// What the indexes of heads have in common: queries, scores and masks. A kind says what it keeps of each position and how
// it picks by that.

#include "head-index.h"
#include "head-part.h"

#include <memory>

class head_index {
  public:
    head_index(const llm_graph_context & graph, llm_graph_input_attn_k_dsa * inp, const llama_layer & layer,
               const head_index_rows & rows, int il);

    virtual ~head_index() = default;

    virtual void store_keys() const = 0;

    // The positions' cells: I32 [n_picked, n_tokens of a stream, 1, n_stream]
    virtual ggml_tensor * build_picked() const = 0;

    // For rows that see the cells that have been picked before, or all.
    ggml_tensor * build_mask(const head_picked & picked) const;

  protected:
    const llm_graph_context &    graph;
    ggml_context *               ctx0;
    llm_graph_input_attn_k_dsa * inp;
    const llama_layer &          layer;
    const head_index_rows &      rows;
    const int                    il;
    const int64_t                n_head;
    const int64_t                n_key;

    ggml_tensor * build_key() const;     // [n_key, n_tokens] after the norm
    ggml_tensor * build_queries() const; // [n_key, n_head, n_tokens]

    // q: [n_key, n_head, n_tokens]; k: [n_key, 1, n, n_stream]; mask: [n, n_tokens of a stream, 1, n_stream], F16 if
    // the scores come from one operation. Returns as the mask, in F32
    ggml_tensor * build_scores(ggml_tensor * q, ggml_tensor * k, ggml_tensor * mask) const;
};

// One that pools keys, as GLM-5.3-Flash has it.
std::unique_ptr<head_index> head_index_of_pools(const llm_graph_context & graph, llm_graph_input_attn_k_dsa * inp,
                                                const llama_layer & layer, const head_index_rows & rows, int il);
