#pragma once

// The logits that the last pass of a kind (trunk, draft) has left where it computed them, until somebody asks: for all
// of them, or for the highest of a row. On the host a row is scanned once. Where logits are in the memory of a device,
// the graph finds the blocks of the vocabulary with the highest maxima, and only these come to the host: the n highest
// logits cannot be outside of the n blocks with the highest maxima. Knows rows in the order of the graph; no tokens and
// no sequences.

#include "llama-graph.h"
#include "mtp-device-memory.h"

#include <cstdint>

struct llama_context;

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
};

class mtp_outputs {
  public:
    // Counts the bytes that it fetches, and in t_us the time that it waits for the pass.
    mtp_outputs(llama_context & ctx, int64_t & n_bytes, int64_t & t_us) : ctx(ctx), n_bytes(n_bytes), t_us(t_us) {}

    // The first n_rows of logits, F32 [n_logits, n_rows or more], in the memory of a backend; reduced: what the graph
    // leaves of them
    void hold(ggml_tensor * logits, size_t n_rows, const mtp_candidates & reduced, ggml_backend_t backend) {
        held = { logits, n_rows, reduced, backend };
    }

    void forget() { held = {}; }

    // All of them, to data, unless they have been fetched there already.
    void fetch(float * data);

    // The n highest of a row, highest first, by what the graph has left for that. ids, values: [n]. False if the graph
    // has left nothing, or not enough.
    bool find_highest(int32_t row, int32_t n, int32_t * ids, float * values);

  private:
    struct {
        ggml_tensor *  logits  = nullptr; // nullptr: none, or fetched
        size_t         n_rows  = 0;
        mtp_candidates reduced = {};
        ggml_backend_t backend = nullptr;
        bool           is_here = false; // what is reduced is in `candidates`
    } held;

    llama_context & ctx;
    int64_t &       n_bytes;
    int64_t &       t_us;
    mtp_host_memory candidates; // [n_rows][n * BLOCK], [n_rows][n], [n_rows][n_logits % BLOCK]

    void wait();
    void fetch_reduced();
};
