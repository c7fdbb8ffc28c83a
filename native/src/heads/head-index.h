#pragma once

// Latent attention of a head to the positions that its index picks, as DeepSeek-V3.2's and GLM-5's are published: the
// index scores all positions, or pools of them, and attention sees the best. The same as in the graphs of their trunks.
// Knows models, the caches of keys, and what a round's first draft has picked for the others (head-part.h).

#include "llama-graph.h"
#include "llama-model.h"

// What an index reads of the rows of a pass, [..., n_tokens] each.
struct head_index_rows {
    ggml_tensor * input;   // [n_embd, n_tokens] of attention, after its norm
    ggml_tensor * queries; // [n_lora_q, n_tokens] of low rank, after their norm
    ggml_tensor * pos;     // I32 [n_tokens]; nullptr: nothing rotates
};

// Whether the heads of the model have an index: files may come without.
bool head_has_index(const llama_model & model);

// Whether the drafts of a round share what the index picks for the first of them, as in GLM-5.2, whose trunk's layers
// share it too, and GLM-5.3-Flash: files do not say more.
bool head_index_is_shared(const llama_model & model);

// positions that an index picks for a row
uint32_t head_index_n_picked(const llama_hparams & hparams);

// The scores of keys for rows, as the mask, in F32: of each head what is positive, by its weight. q: [n_key, n_head,
// n_tokens]; k: [n_key, 1, n, n_stream]; weights: [n_head, n_tokens]; mask: [n, n_tokens of a stream, 1, n_stream], F16 if
// the scores come from one operation (fused_lid).
ggml_tensor * head_index_scores(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k,
                                ggml_tensor * weights, ggml_tensor * mask, int il);

// The mask of rows that see the cells that were picked, I32 [n_picked, n_tokens]; of the others what `hidden` says, F32 [1,
// n_tokens]: 0 or -INFINITY. mask: [n_kv, n_tokens of a stream, 1, n_stream]
ggml_tensor * head_index_mask(ggml_context * ctx0, ggml_tensor * hidden, ggml_tensor * picked, ggml_tensor * mask);

// What attention adds: [n_embd, n_tokens]. Stores keys (and those of the index); attends to everything where the head
// has no index, or the cache is not larger than what it picks. rope_type: of the index; q, k, v: as attention to a cache
// of K alone takes them.
ggml_tensor * head_index_attention(const llm_graph_context & graph, const llama_layer & layer,
                                   const head_index_rows & rows, llama_rope_type rope_type, ggml_tensor * q,
                                   ggml_tensor * k, ggml_tensor * v, float kq_scale, int il);
