#pragma once

// What the files of the C interface share: the session, and what they check it with.

#include "guard.h"
#include "mtp-engine.h"
#include "mtp-padding.h"
#include "pymtp.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using pymtp_threads = std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool *)>;

struct pymtp_session {
    static constexpr const char * what = "session";

    llama_context * ctx = nullptr;
    mtp_engine *    mtp = nullptr; // the context's

    int32_t n_ctx_seq     = 0;     // positions that a sequence may hold
    int32_t n_draft_max   = 0;
    int32_t n_heads       = 0;
    int32_t n_outputs_max = 0;
    int32_t n_logits      = 0;     // rows with logits of the last decode, until the next pass
    bool    has_draft     = false; // logits of a draft step, until the next pass

    // where the memory has recurrent states: the first position of each sequence's last pass, -1 before there is one
    std::vector<llama_pos> last_pass;

    std::unique_ptr<mtp_padder> padder; // what passes have more than they were asked for

    // set if they have cores of their own; for prompts only if these are others
    pymtp_threads threads       = { nullptr, nullptr };
    pymtp_threads threads_batch = { nullptr, nullptr };

    ~pymtp_session();

    // refuses what is no sequence
    void need_seq(int32_t seq) const {
        pymtp_refuse_if(seq < 0 || seq >= (int32_t) llama_n_seq_max(ctx), "sequence %d is not one of %u", seq,
                        llama_n_seq_max(ctx));
    }

    // rows of logits that the last decode or draft step has left
    int32_t n_rows_left(bool of_draft) const { return !of_draft ? n_logits : has_draft ? mtp->n_draft_rows() : 0; }

    int32_t n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))); }
};

// The rest of the line after a text in llama.cpp's log; "" if it is not there.
inline std::string pymtp_log_after(const char * log, const char * text) {
    const char * found = strstr(log, text);
    found              = found ? found + strlen(text) : "";
    return std::string(found, strcspn(found, "\n"));
}

// Throws mtp_rpc_error where llama.cpp has turned it into a line of its log.
inline void pymtp_check_lost(const char * log) {
    const std::string lost = pymtp_log_after(log, "RPC server ");
    if (!lost.empty()) {
        throw mtp_rpc_error("RPC server " + lost);
    }
}

// whatever changes the memory ends what the last pass has left
inline void forget_outputs(pymtp_session & session) {
    session.n_logits  = 0;
    session.has_draft = false;
}

// Drops the positions >= pos of a sequence. Of recurrent states: goes back, as far as that is possible.
void pymtp_truncate(pymtp_session & session, int32_t seq, int32_t pos);

// A pass of the trunk over rows, in which `decode` returns what llama_decode does. If it fails, nothing of them is left.
void pymtp_run_pass(pymtp_session & session, const std::vector<mtp_row> & rows,
                    const std::function<int32_t()> & decode);

// adds the time until it goes out of scope
struct pymtp_timer {
    int64_t & us;
    int64_t   begin = ggml_time_us();

    ~pymtp_timer() { us += ggml_time_us() - begin; }
};
