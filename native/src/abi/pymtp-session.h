#pragma once

// What the files of the C interface share: the session, and what they check it with.

#include "guard.h"
#include "mtp-engine.h"
#include "mtp-padding.h"
#include "mtp-replay.h"
#include "mtp-thread-pools.h"
#include "pymtp.h"

#include <memory>
#include <vector>

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
    int64_t t_trunk_us    = 0;
    int64_t t_head_us     = 0;

    // where the memory has recurrent states: the first position of each sequence's last pass, -1 before there is one
    std::vector<llama_pos> last_pass;

    mtp_padding          padding = MTP_PADDING_NONE;
    int32_t              n_pass  = 0; // rows that cost as much as another pass does
    std::vector<int32_t> n_added; // [n_seq_max] rows of the last pass after a sequence's end, if they are still there

    std::unique_ptr<mtp_replay> replay;        // set if the memory cannot drop rejected drafts

    std::unique_ptr<mtp_thread_pools> threads; // set if they have cores or a priority of their own

    ~pymtp_session();

    // refuses what is no sequence
    void need_seq(int32_t seq) const {
        if (seq < 0 || seq >= (int32_t) llama_n_seq_max(ctx)) {
            pymtp_refuse("sequence %d is not one of %u", seq, llama_n_seq_max(ctx));
        }
    }

    // rows of logits that the last decode or draft step has left
    int32_t n_rows_left(bool of_draft) const { return !of_draft ? n_logits : has_draft ? mtp->n_draft_rows() : 0; }

    int32_t n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))); }
};

// whatever changes the memory ends what the last pass has left
inline void forget_outputs(pymtp_session & session) {
    session.n_logits  = 0;
    session.has_draft = false;
}

// how passes are padded from now on; mode: a pymtp_padding
void pymtp_choose_padding(pymtp_session & session, int32_t mode);

// the rows that a pass is to have more than it was asked for
std::vector<mtp_row> pymtp_rows_to_add(const pymtp_session & session, int32_t n_rows, const int32_t * token,
                                       const int32_t * pos, const int32_t * seq, const uint8_t * flags);

// they have been decoded
void pymtp_note_added(pymtp_session & session, const std::vector<mtp_row> & added);

// drops them, of one sequence or of all
void pymtp_drop_added(pymtp_session & session, int32_t seq);
void pymtp_drop_added(pymtp_session & session);

// the position after the last of a sequence, without them
int32_t pymtp_seq_end(const pymtp_session & session, int32_t seq);

// Drops the positions >= pos of a sequence. Of recurrent states: goes back, or decodes again what is to stay.
pymtp_status pymtp_truncate(pymtp_session & session, int32_t seq, int32_t pos);

// Decodes checked rows. If it fails, nothing of them is left.
pymtp_status pymtp_run_decode(pymtp_session & session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                              const int32_t * seq, const uint8_t * flags);

// adds the time until it goes out of scope
struct pymtp_timer {
    int64_t & us;
    int64_t   begin = ggml_time_us();

    ~pymtp_timer() { us += ggml_time_us() - begin; }
};
