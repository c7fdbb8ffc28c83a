#pragma once

// The place of the highest value of rows, as drafts look for it among all logits of a vocabulary, and how probable it
// is: by many thread blocks, where llama.cpp has one for a row. Of equal values the first one is found.

#include "common.cuh"

// Does nothing and returns false if rows are short, or if dst is not marked with GGML_TENSOR_FLAG_SINGLE_ROWS.
bool mtp_cuda_argmax(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, ggml_tensor * dst);

// Fuses node i of the graph, an argmax, with the nodes after it that take its probability from the softmax of logits.
// Returns how many nodes these are, without the argmax; 0, and does nothing, if the nodes are others.
int mtp_cuda_argmax_probs(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);
