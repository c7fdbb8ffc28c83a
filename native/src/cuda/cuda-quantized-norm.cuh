#pragma once

// An RMS norm whose result is quantized on the way, for the products with quantized weights that it is made for. Which
// saves a kernel: of passes of few rows a good part is the gaps between kernels.

#include "common.cuh"

// Nodes i and i + 1 of the graph: the norm, and the product with its weights. Leaves the quantized result in
// ctx.quantized. Does nothing and returns false if nodes that follow have no use for it.
bool mtp_cuda_quantized_norm(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);
