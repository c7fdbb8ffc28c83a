#pragma once

// The logits that the last pass of a kind (trunk, draft) has left where it computed them, until somebody asks: for all
// of them, or for the highest of a row. Knows rows in the order of the graph; no tokens and no sequences.

#include "llama-context.h"
#include "mtp-candidates.h"
#include "mtp-host-memory.h"
#include "pymtp.h"

class mtp_outputs {
  public:
    // Counts the bytes that it fetches, and in t_us the time that it waits for the pass.
    mtp_outputs(llama_context & ctx, int64_t & n_bytes, int64_t & t_us) : ctx(ctx), n_bytes(n_bytes), t_us(t_us) {}

    // The first n_rows of logits, F32 [n_logits, n_rows or more], in the memory of a backend; reduced: what the graph
    // leaves of them
    void hold(ggml_tensor * logits, size_t n_rows, const mtp_candidates & reduced, ggml_backend_t backend);

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
    } held;

    llama_context & ctx;
    int64_t &       n_bytes;
    int64_t &       t_us;
    mtp_host_memory candidates;

    void wait();
};
