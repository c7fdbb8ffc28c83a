#pragma once

// Recurrent states that cannot go back: llama.cpp keeps no snapshots for some architectures. The state before a pass
// that verifies drafts is kept on the device; to drop rejected drafts it is put back, and the accepted rows are decoded
// again. Knows rows and states; the caller runs the passes.

#include "llama.h"
#include "mtp-memory.h"

#include <cstdint>
#include <vector>

class mtp_replay {
  public:
    // whether the context's memory cannot drop single positions
    static bool is_needed(const llama_context * ctx) {
        auto *     memory    = llama_get_memory(ctx);
        const bool is_hybrid = mtp_memory_attention(memory) != memory;
        return is_hybrid && llama_n_rs_seq(ctx) == 0;
    }

    // the rows of one sequence that are about to be decoded. false if llama.cpp cannot save the state
    bool save(llama_context * ctx, llama_seq_id seq, llama_pos pos, std::vector<llama_token> tokens,
              std::vector<uint8_t> flags) {
        auto & cur = seqs[seq];

        cur.pos    = pos;
        cur.tokens = std::move(tokens);
        cur.flags  = std::move(flags);
        cur.state.resize(llama_state_seq_get_size_ext(ctx, seq, FLAGS));

        if (llama_state_seq_get_data_ext(ctx, cur.state.data(), cur.state.size(), seq, FLAGS) == 0) {
            forget(seq);
            return false;
        }
        return true;
    }

    // Puts the state back to what it was at the last save, if that is at most at pos and the sequence has gone on from
    // there by the saved rows alone. false if it is not; then nothing has changed.
    bool restore(llama_context * ctx, llama_seq_id seq, llama_pos pos) {
        const auto & cur    = seqs[seq];
        auto *       memory = llama_get_memory(ctx);

        const llama_pos end = cur.pos + (llama_pos) cur.tokens.size();
        if (cur.pos < 0 || pos < cur.pos || llama_memory_seq_pos_max(memory, seq) + 1 != end) {
            return false;
        }
        if (llama_state_seq_set_data_ext(ctx, cur.state.data(), cur.state.size(), seq, FLAGS) == 0) {
            return false;
        }
        return mtp_memory_drop(memory, seq, cur.pos);
    }

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
    static constexpr llama_state_seq_flags FLAGS = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY | LLAMA_STATE_SEQ_FLAGS_ON_DEVICE;

    std::vector<saved> seqs;
};
