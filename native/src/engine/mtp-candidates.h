#pragma once

// The highest logits of a row, without the rest of it. On the host a row is scanned once. Where logits lie in the
// memory of a device, the graph finds the blocks of the vocabulary with the highest maxima, and only these come to the
// host: the n highest logits cannot lie outside of the n blocks with the highest maxima.

#include "llama-graph.h"
#include "mtp-host-memory.h"

#include <cstdint>

// the n highest of n_logits, highest first, the lower id first where they are equal. ids, values: [n], n <= n_logits
void mtp_candidates_select(const float * logits, int64_t n_logits, int32_t n, int32_t * ids, float * values);

// what a graph leaves for the host to choose from
struct mtp_candidates {
    static constexpr int64_t BLOCK = 256; // logits

    ggml_tensor * blocks    = nullptr;    // F32 [BLOCK, n, n_rows]; nullptr: the graph leaves all logits only
    ggml_tensor * block_ids = nullptr;    // I32 [n, n_rows]
    ggml_tensor * rest      = nullptr;    // F32 [n_logits % BLOCK, n_rows] the logits after the last whole block
    int64_t       n_blocks  = 0;          // of the vocabulary

    // Adds them to a graph, for the first n_logits of each row. Does nothing if there are no more than n blocks.
    static mtp_candidates build(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits, int64_t n_logits,
                                int32_t n);

    // Copies them to the host. Waits for the device. Returns the bytes copied.
    size_t fetch(ggml_backend_t backend, mtp_host_memory & memory);

    bool is_fetched() const { return host_blocks != nullptr; }

    // The n highest of a row that was fetched, highest first. ids, values: [n]
    void select(int32_t row, int32_t n, int32_t * ids, float * values) const;

  private:
    // in the memory that they were fetched to
    const float *   host_blocks = nullptr; // [n_rows][n * BLOCK]
    const int32_t * host_ids    = nullptr; // [n_rows][n]
    const float *   host_rest   = nullptr; // [n_rows][n_logits % BLOCK]
};
