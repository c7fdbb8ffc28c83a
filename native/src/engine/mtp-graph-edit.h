#pragma once

// Edits of a head's part of a graph, around what its architecture builds: leaves and nodes that become others, so that
// what reads them need not know, and nodes that are left out. n_before: nodes that the graph had before the part. Knows
// nodes and models; no rows and no contexts.

#include "llama-model.h"

#include <functional>
#include <vector>

std::vector<ggml_tensor *> mtp_graph_nodes(ggml_cgraph * gf);

// The architecture's graph keeps using the leaf, and nothing has been expanded yet: the leaf itself becomes a view of
// src. So no architecture has to know that its inputs come from the device.
void mtp_graph_leaf_to_view(ggml_tensor * leaf, ggml_tensor * src);

// The heads' graphs look tokens up by themselves, past the adapters of the token embedding: the node that does becomes
// the sum with what `build` makes, F32 [n_embd, n_tokens].
void mtp_graph_adapt_embedding(ggml_context * ctx0, ggml_cgraph * gf, size_t n_before, const llama_model & model,
                               const std::function<ggml_tensor *()> & build);

// Rows of an image have no tokens. Some of the heads' graphs know that; in others the node that looks tokens up becomes
// a copy of embd, the embeddings that the trunk takes.
void mtp_graph_replace_embedding(ggml_cgraph * gf, size_t n_before, const llama_model & model, ggml_tensor * embd);

// Keeps, of the nodes after nodes_before, those that store K/V, hidden unless it is nullptr, and what these need.
// Inputs of the rest are left without a buffer, and are not set then.
void mtp_graph_cut_down(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes_before, ggml_tensor * hidden);
