#pragma once

// The place of the highest value of long rows, as drafts look for it among all logits of a large vocabulary: by many
// thread blocks, where llama.cpp has one for a row. Of equal values the first one is found.

#include "common.cuh"

// Does nothing and returns false if rows are short, or if dst is not marked with GGML_TENSOR_FLAG_SINGLE_ROWS.
bool mtp_cuda_argmax(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, ggml_tensor * dst);
