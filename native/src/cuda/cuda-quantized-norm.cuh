#pragma once

// An RMS norm, and a gate, whose results are quantized on the way, for the products with quantized weights that they are made
// for. Which saves kernels: of passes of few rows a good part is the gaps between kernels.

#include "common.cuh"

// Nodes i and i + 1 of the graph: the norm, and the product with its weights. Leaves the quantized result in
// ctx.quantized. Does nothing and returns false if nodes that follow have no use for it.
bool mtp_cuda_quantized_norm(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);

// Nodes from i on: the sigmoid of a gate, and values times that. Returns how many nodes after i it has computed; 0: none,
// and not this one either.
int mtp_cuda_quantized_gate(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);
