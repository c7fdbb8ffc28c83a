#pragma once

// Products of quantized weights, F16 and BF16 with rows of activations: few, as verify passes and drafts have them, or a
// prompt's. llama.cpp unpacks weights again for each of few rows, and its kernels for several rows of Q8_0 wait for the
// weights of several matrix rows at once; these read the weights in order, and unpack them once for 8 rows.
//
// The results are bit for bit what the CPU backend computes row by row, or for F16 and BF16 what it computes many at once.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// Whether the rows of a product must be computed as each would be alone, by kernels that llama.cpp has for one row or by
// those here: it is marked, and there is one here for it, or they are few, or the matrix is of F32, as a router's.
bool mtp_rows_are_single(const struct ggml_tensor * dst);

// Whether llama.cpp's sgemm, which begins with two rows, may compute a product: it has the sums of the kernels for few rows.
bool mtp_product_uses_sgemm(const struct ggml_tensor * dst);

// Called by all threads when the rows are quantized (params->wdata), and the counter of chunks stands at the number of
// threads. Weights may be repacked. Does nothing and returns false if there is no kernel for the weights, the machine or
// as many rows.
bool mtp_mul_mat_few_rows(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// The matrix rows [begin, end) of one expert, whose matrix is given, with the n rows that are routed to it. routed:
// place among the row's experts, and row, [n][2]. quantized: all rows. Bit for bit what each row gives alone.
bool mtp_mul_mat_id_few_rows(struct ggml_tensor * dst, const void * matrix, int64_t begin, int64_t end,
                             const int32_t * routed, int64_t n, const void * quantized);

#ifdef __cplusplus
}
#endif
