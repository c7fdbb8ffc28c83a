#pragma once

// Heads of queries and keys: their norm, rotation and storing in one kernel, with the storing of values. These are three to
// five kernels of llama.cpp's, none of which has enough to do to take longer than its start.

#include "common.cuh"

// Computes the nodes from i on, if they are such heads, marked with GGML_TENSOR_FLAG_SINGLE_ROWS. Returns how many these
// are, without node i; 0: none.
int mtp_cuda_rotated_heads(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);
