#pragma once

// Products of quantized weights with few rows of activations on a GPU, as plain decoding, verify passes and drafts have
// them: up to 8, and on tensor cores up to 2048. llama.cpp's kernel unpacks weights once for each row, and reads some types
// two bytes at a time. Here weights arrive in shared memory as they are, many at once, before the activations are known,
// and each is unpacked once.
// On GPUs from Turing on; how much shared memory they have decides how many rows a thread block takes.
//
// Kernels and files have three names: few rows, 1 to 8; more rows, 5 to 16, of bytes on tensor cores; many rows, 17 to 2048,
// of halves there. With experts, these two take tokens in groups that have the same one. Where two are possible, see
// more_rows_takes, expert_rows_can and many_rows_group_width.
//
// Up to 16 rows: a row's results do not depend, bit for bit, on the rows next to it. More are multiplied as halves
// (cuda-many-rows-kernel.cuh), and give other last bits. Marked with GGML_TENSOR_FLAG_INVARIANT, they are taken 16 at a
// time: the same bits for 1 to 512 rows.

#include "common.cuh"

// Whether there is a kernel for a product: dst is marked with GGML_TENSOR_FLAG_SINGLE_ROWS, and may be the product or
// what is fused with it. ids: of a product with experts, or nullptr.
bool mtp_cuda_few_rows_can(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                           const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst);

// quantized: the activations src1 as block_q8_1, rows padded to MATRIX_ROW_PADDING values.
void mtp_cuda_few_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                       const void * quantized, const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                       ggml_tensor * dst);

// The same for more rows, which come in another form, that tensor cores take, and are quantized here unless the
// norm before has done it. false: they are fewer.
bool mtp_cuda_tensor_core_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                               const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                               ggml_tensor * dst);

// A product with experts of up to 512 tokens, in groups of those that have the same expert, on tensor cores. false: there is
// no kernel, or another one takes less time.
bool mtp_cuda_expert_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                          const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion, ggml_tensor * dst);

// A product of up to 16 rows with small F32 weights, as routers have them, by llama.cpp's kernel for one row, with thread
// blocks for each: the same bits. Of more rows, if it is marked with GGML_TENSOR_FLAG_INVARIANT. false: it is another one.
bool mtp_cuda_router(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                     ggml_tensor * dst);

// How many rows (tokens, of a product with experts) of a product that is marked with GGML_TENSOR_FLAG_INVARIANT may be
// computed at a time, so that a row's sums are added in the same order however many there are. INT_MAX: all, as of others.
int mtp_cuda_rows_at_a_time(const ggml_tensor * dst);

// Whether a kernel of our own takes a product, which then reads a copy of its rows (src1): results may be where these are.
bool mtp_cuda_copies_rows(const ggml_tensor * product);

// Moves products of the same activations and type of weights together, with their biases, where the graph has other nodes
// between them, as those that make queries, keys and values have; and the storing of keys to their rotation, with which
// llama.cpp fuses it.
void mtp_cuda_few_rows_gather(ggml_cgraph * cgraph);

// Computes such products, from node i on, in one kernel. Returns how many nodes these are, without node i.
int mtp_cuda_few_rows_together(ggml_backend_cuda_context & ctx, ggml_cgraph * cgraph, int i);

// Products take no more shared memory than this for a thread block, as on a GPU that has less: 64 KiB at least, which all
// have from Turing on. For measurements.
extern "C" __attribute__((visibility("default"))) void pymtp_cuda_limit_shared_memory(size_t size);
