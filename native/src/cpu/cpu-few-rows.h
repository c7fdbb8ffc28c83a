#pragma once

// Products of quantized weights with rows of activations, as verify passes, drafts and plain steps have them. The weights
// are read and unpacked once for many rows, in the order in which they lie in memory.
//
// A row's results do not depend on how many rows there are, nor on the machine's instruction set.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// Bytes of work memory that a marked product needs; 0: it is not one, or there is no kernel for its weights or the
// machine.
size_t mtp_few_rows_work_size(const struct ggml_tensor * dst);

// MUL_MAT or MUL_MAT_ID, called by all threads. Does nothing and returns false where mtp_few_rows_work_size is 0.
bool mtp_few_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
