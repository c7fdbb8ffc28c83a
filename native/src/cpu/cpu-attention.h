#pragma once

// Flash attention of marked graphs. llama.cpp's kernel takes one head of one row at a time and goes through the whole
// cache; this one reads and unpacks keys and values once for several heads and rows that share them, and takes the
// cells of a row's sequence in the order of their positions. So a row is bit for bit what it is alone, wherever its
// cells are, whatever is between them and whichever rows are next to it.
//
// It is not llama.cpp's attention bit for bit, which sums the values of an F16 cache in F16.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// For each row of a mask, the cells that its sequence has in the cache, in the order of their positions; the mask says
// which of these the row sees. Rows that share a list follow one another. A mask's `extra` points to its own; it may be
// null: then cells come in the order of the cache.
struct mtp_mask_cells {
    const int32_t * const * cells;   // [n_rows of a stream * n_streams]
    const int64_t *         n_cells; // [n_rows of a stream * n_streams]
};

// Called by all threads. Does nothing and returns false if there is no kernel for the tensors.
bool mtp_flash_attn_few_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
