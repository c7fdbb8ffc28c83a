#pragma once

// Flash attention of few rows with a cache in F16. llama.cpp's kernel takes one head of one row at a time, and keeps its
// sums in memory; this one reads keys and values once for several of them that share these, and keeps sums in registers.
//
// The results are bit for bit what the CPU backend computes row by row.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// Called by all threads. Does nothing and returns false if there is no kernel for the tensors or the machine.
bool mtp_flash_attn_few_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
