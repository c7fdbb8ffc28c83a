#pragma once

// Edits of a head's part of a graph, around what its architecture builds: leaves and nodes that become others, so that
// what reads them need not know, and nodes that are left out. n_before: nodes that the graph had before the part. Knows
// nodes and models; no rows and no contexts. And what is done to a graph that is built: it is checked and marked.

#include "llama-model.h"

#include <vector>

std::vector<ggml_tensor *> mtp_graph_nodes(ggml_cgraph * gf);

// The architecture's graph keeps using the leaf, and nothing has been expanded yet: the leaf itself becomes a view of
// src. So no architecture has to know that its inputs come from the device.
void mtp_graph_leaf_to_view(ggml_tensor * leaf, ggml_tensor * src);

// Of the nodes after the first n_before, those that look up embeddings of the trunk's tokens: one that looks up what the
// trunk has becomes a copy of it, others come first. Where embeddings are in host memory, devices would wait for them in
// the middle of a pass, and those that hold other layers could not go on to the next one. Rows of an image have no tokens:
// there all become copies of `image`, the embeddings that the trunk takes, unless it is nullptr.
void mtp_graph_share_embedding(ggml_cgraph * gf, size_t n_before, const llama_model & model, ggml_tensor * tokens,
                               ggml_tensor * image);

// Keeps, of the nodes after nodes_before, those that store K/V, hidden unless it is nullptr, and what these need.
// Inputs of the rest are left without a buffer, and are not set then.
void mtp_graph_cut_down(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes_before, ggml_tensor * hidden);

// Whether there are products with a type: integers and doubles have no kernels for them, nor have the two types that only
// activations are quantized to.
bool mtp_is_factor(ggml_type type);

// What a damaged file can put into a graph, and ggml only finds out while it computes, where it ends the process. Throws
// std::runtime_error that names the operation. Costs little: a graph is checked once, when it was built.
void mtp_check_graph(ggml_cgraph * gf);

// On devices larger passes keep llama.cpp's kernels for many rows.
static constexpr uint32_t MTP_SINGLE_ROWS_MAX = 512;

// The first operation of a graph that none of the backends computes, or not where its result is to be; nullptr: there is
// none.
ggml_tensor * mtp_graph_not_computed(ggml_cgraph * gf, const std::vector<ggml_backend_t> & backends);

// Marks all operations of a graph of n_rows rows, which must come out as each does in a pass of its own: a verify pass
// stands for single steps. Backends have other kernels for many rows than for one. Graphs of one row are marked too: both
// then take the same kernel where an operation has several rows for each row of the graph. Prompts are marked where
// nothing but CPUs computes, which has fast kernels for them (cpu-few-rows.h).
void mtp_graph_mark_single_rows(ggml_cgraph * gf, uint32_t n_rows, ggml_backend_sched_t sched);
