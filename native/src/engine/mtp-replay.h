#pragma once

// Recurrent states that cannot go back: llama.cpp keeps no snapshots for some architectures. The state before a pass
// that verifies drafts is kept on the device; to drop rejected drafts it is put back, and the accepted rows are decoded
// again. Knows rows and states; the caller runs the passes.

#include "llama.h"

#include <cstdint>
#include <vector>

class mtp_replay {
  public:
    // whether the context's memory cannot drop single positions
    static bool is_needed(const llama_context * ctx);

    // the rows of one sequence that are about to be decoded. false if llama.cpp cannot save the state
    bool save(llama_context * ctx, llama_seq_id seq, llama_pos pos, std::vector<llama_token> tokens,
              std::vector<uint8_t> flags);

    // Puts the state back to what it was at the last save, if that is at most at pos and the sequence has gone on from
    // there by the saved rows alone. false if it is not; then nothing has changed.
    bool restore(llama_context * ctx, llama_seq_id seq, llama_pos pos);

    // what the last save of a sequence was given
    struct saved {
        llama_pos                pos = -1; // -1: nothing
        std::vector<llama_token> tokens;
        std::vector<uint8_t>     flags;
        std::vector<uint8_t>     state; // what llama.cpp keeps of it on the host
    };

    const saved & last(llama_seq_id seq) const { return seqs[seq]; }

    void forget(llama_seq_id seq) { seqs[seq].pos = -1; }

    explicit mtp_replay(uint32_t n_seq_max) : seqs(n_seq_max) {}

  private:
    std::vector<saved> seqs;
};
