#include "mtp-replay.h"

#include "llama-context.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "mtp-memory.h"

static constexpr llama_state_seq_flags MTP_REPLAY_FLAGS =
    LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY | LLAMA_STATE_SEQ_FLAGS_ON_DEVICE;

bool mtp_replay::is_needed(const llama_context * ctx) {
    auto *     memory    = llama_get_memory(ctx);
    const bool is_hybrid = mtp_memory_attention(memory) != memory;
    return is_hybrid && llama_n_rs_seq(ctx) == 0;
}

bool mtp_replay::save(llama_context * ctx, llama_seq_id seq, llama_pos pos, std::vector<llama_token> tokens,
                      std::vector<uint8_t> flags) {
    auto & cur = seqs[seq];

    cur.pos    = pos;
    cur.tokens = std::move(tokens);
    cur.flags  = std::move(flags);
    cur.state.resize(llama_state_seq_get_size_ext(ctx, seq, MTP_REPLAY_FLAGS));

    if (llama_state_seq_get_data_ext(ctx, cur.state.data(), cur.state.size(), seq, MTP_REPLAY_FLAGS) == 0) {
        forget(seq);
        return false;
    }
    return true;
}

bool mtp_replay::restore(llama_context * ctx, llama_seq_id seq, llama_pos pos) {
    const auto & cur    = seqs[seq];
    auto *       memory = llama_get_memory(ctx);

    const llama_pos end = cur.pos + (llama_pos) cur.tokens.size();
    if (cur.pos < 0 || pos < cur.pos || llama_memory_seq_pos_max(memory, seq) + 1 != end) {
        return false;
    }
    if (llama_state_seq_set_data_ext(ctx, cur.state.data(), cur.state.size(), seq, MTP_REPLAY_FLAGS) == 0) {
        return false;
    }
    return mtp_memory_drop(memory, seq, cur.pos);
}
