#pragma once

// Edits of a head's part of a graph, around what its architecture builds: leaves and nodes that become others, so that
// what reads them need not know, and nodes that are left out. n_before: nodes that the graph had before the part. Knows
// nodes and models; no rows and no contexts. And the marks of a graph that is built.

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

// Whether a tensor is a weight in host memory. In a graph that is built nothing that is computed has a buffer yet.
bool mtp_graph_is_host_weight(const ggml_tensor * tensor);

// Marks all operations of a graph of rows that must come out as each does in a pass of its own: a verify pass stands for
// single steps. Backends have other kernels for many rows than for one. Graphs of one row are marked too: both
// then take the same kernel where an operation has several rows for each row of the graph. Passes of more rows than
// mtp-ubatch.h says are marked where nothing but CPUs computes, which have fast kernels for them (cpu-few-rows.h).
// is_invariant: GPUs, too, compute each row as they do in any other pass.
// And says how many sequences its rows are of, so that attention on GPUs takes tiles of as many rows as see the same cells
// (attention-sequences.h).
void mtp_graph_mark(ggml_cgraph * gf, const llama_ubatch & ubatch, ggml_backend_sched_t sched, bool is_invariant);
