// The sequences of the C interface: going back, copies, shifts, saved states.

#include "mtp-memory.h"
#include "pymtp-session.h"

#include <algorithm>
#include <stdexcept>
#include <string>

// After a copy, a shift or a restored state there is no pass to go back over.
static void stay_from_now_on(pymtp_session & session, int32_t seq) {
    if (!session.last_pass.empty()) {
        session.last_pass[seq] = pymtp_seq_end(session, seq) - 1;
    }
    if (session.replay) {
        session.replay->forget(seq);
    }
}

static void take_over(pymtp_session & session, int32_t seq) {
    const int32_t end = llama_memory_seq_pos_max(llama_get_memory(session.ctx), seq) + 1;
    if (end > session.n_ctx_seq) {
        throw std::runtime_error("sequence " + std::to_string(seq) + " has " + std::to_string(end) +
                                 " positions, of which " + std::to_string(session.n_ctx_seq) + " are possible");
    }
    stay_from_now_on(session, seq);
}

static void restore(pymtp_session & session, const uint8_t * data, size_t size) {
    session.mtp->restore_state(data, size);
    for (uint32_t seq = 0; seq < llama_n_seq_max(session.ctx); ++seq) {
        take_over(session, seq);
    }
}

// Drops the positions >= pos of a sequence whose memory cannot: goes back to where its last pass began, and decodes
// the rows before pos again.
static pymtp_status replay(pymtp_session & session, int32_t seq, int32_t pos) {
    if (!session.replay || !session.replay->restore(session.ctx, seq, pos)) {
        return pymtp_fail(PYMTP_INVALID, "the model's memory cannot drop the positions from %d of sequence %d", pos,
                          seq);
    }

    const auto & saved = session.replay->last(seq);
    session.mtp->heads.truncate(seq, saved.pos);

    const int32_t              n_rows = pos - saved.pos;
    std::vector<int32_t>       rows_pos;
    std::vector<uint8_t>       rows_flags;
    const std::vector<int32_t> rows_seq(n_rows, seq);
    for (int32_t i = 0; i < n_rows; ++i) {
        rows_pos.push_back(saved.pos + i);
        rows_flags.push_back(saved.flags[i] & ~PYMTP_ROW_LOGITS);
    }

    const auto tokens = saved.tokens;
    session.replay->forget(seq);
    if (n_rows == 0) {
        return PYMTP_OK;
    }
    ++session.mtp->counters.n_replays;
    return pymtp_run_decode(session, n_rows, tokens.data(), rows_pos.data(), rows_seq.data(), rows_flags.data());
}

int32_t pymtp_session_truncate(pymtp_session * session, int32_t seq, int32_t pos) {
    return pymtp_guard([&]() -> int32_t {
        if (!session->has_seq(seq) || pos < 0) {
            return pymtp_fail(PYMTP_INVALID, "cannot truncate sequence %d at position %d", seq, pos);
        }
        auto * memory = llama_get_memory(session->ctx);
        if (session->n_added[seq] > 0) {
            pos = std::min(pos, pymtp_seq_end(*session, seq));
        }
        if (pos > 0 && pos <= llama_memory_seq_pos_max(memory, seq)) {
            // a sliding-window cache has let go of what lies before its window
            const int32_t n_swa = llama_model_n_swa(llama_get_model(session->ctx));
            if (n_swa > 0 && llama_memory_seq_pos_min(memory, seq) > std::max(0, pos - n_swa)) {
                return pymtp_fail(PYMTP_INVALID,
                                  "sequence %d cannot go back to position %d: the window before it is gone", seq, pos);
            }
        }
        // of the snapshots that recurrent states go back to, llama.cpp writes those after a row of the last pass
        const bool is_tail = pos == 0 || pos > llama_memory_seq_pos_max(memory, seq);
        if (!is_tail && !session->last_pass.empty() && pos <= session->last_pass[seq]) {
            return replay(*session, seq, pos);
        }
        if (!llama_memory_seq_rm(memory, seq, pos, -1)) {
            return replay(*session, seq, pos);
        }
        session->mtp->heads.truncate(seq, pos);
        session->n_added[seq] = 0;
        return PYMTP_OK;
    });
}

int32_t pymtp_session_copy(pymtp_session * session, int32_t from, int32_t to) {
    return pymtp_guard([&]() -> int32_t {
        if (!session->has_seq(from) || !session->has_seq(to) || from == to) {
            return pymtp_fail(PYMTP_INVALID, "cannot copy sequence %d to %d of %u", from, to,
                              llama_n_seq_max(session->ctx));
        }
        const int32_t status = pymtp_session_truncate(session, to, 0);
        if (status != PYMTP_OK) {
            return status;
        }
        forget_outputs(*session);
        pymtp_drop_added(*session, from);
        session->mtp->copy(from, to);
        stay_from_now_on(*session, to);
        return PYMTP_OK;
    });
}

int32_t pymtp_session_discard(pymtp_session * session, int32_t seq, int32_t pos, int32_t n) {
    return pymtp_guard([&]() -> int32_t {
        if (!session->has_seq(seq)) {
            return pymtp_fail(PYMTP_INVALID, "sequence %d is not one of %u", seq, llama_n_seq_max(session->ctx));
        }
        pymtp_drop_added(*session, seq);
        auto *        memory = llama_get_memory(session->ctx);
        const int32_t last   = llama_memory_seq_pos_max(memory, seq);
        if (pos < 0 || n < 1 || n > last - pos) {
            return pymtp_fail(PYMTP_INVALID, "cannot discard %d positions from %d of sequence %d: its last is %d", n,
                              pos, seq, last);
        }
        if (!llama_memory_can_shift(memory)) {
            return pymtp_fail(PYMTP_INVALID, "the model's memory cannot move positions: no context shift");
        }
        if (llama_memory_seq_pos_min(memory, seq) > 0) {
            return pymtp_fail(PYMTP_INVALID, "sequence %d no longer has its first positions: no context shift", seq);
        }
        if (!mtp_memory_is_alone(memory, seq)) {
            return pymtp_fail(PYMTP_INVALID, "sequence %d shares positions with a copy: no context shift", seq);
        }
        forget_outputs(*session);
        session->mtp->discard(seq, pos, n);
        stay_from_now_on(*session, seq);
        return PYMTP_OK;
    });
}

int32_t pymtp_session_save(pymtp_session * session, const uint8_t ** data, size_t * size) {
    return pymtp_guard([&]() -> int32_t {
        forget_outputs(*session);
        pymtp_drop_added(*session);
        session->state = session->mtp->save_state();

        *data = session->state.data();
        *size = session->state.size();
        return PYMTP_OK;
    });
}

int32_t pymtp_session_restore(pymtp_session * session, const uint8_t * data, size_t size) {
    return pymtp_guard([&]() -> int32_t {
        forget_outputs(*session);
        pymtp_drop_added(*session);
        const auto before = session->mtp->save_state();
        const auto why    = pymtp_thrown([&] { restore(*session, data, size); });
        if (!why.empty()) {
            restore(*session, before.data(), before.size());
            return pymtp_fail(PYMTP_INVALID, "the saved state does not fit this session: %s", why.text);
        }
        return PYMTP_OK;
    });
}

int32_t pymtp_session_save_sequence(pymtp_session * session, int32_t seq, const uint8_t ** data, size_t * size) {
    return pymtp_guard([&]() -> int32_t {
        if (!session->has_seq(seq)) {
            return pymtp_fail(PYMTP_INVALID, "sequence %d is not one of %u", seq, llama_n_seq_max(session->ctx));
        }
        forget_outputs(*session);
        pymtp_drop_added(*session, seq);
        session->state = session->mtp->save_state(seq);

        *data = session->state.data();
        *size = session->state.size();
        return PYMTP_OK;
    });
}

int32_t pymtp_session_restore_sequence(pymtp_session * session, int32_t seq, const uint8_t * data, size_t size) {
    return pymtp_guard([&]() -> int32_t {
        if (!session->has_seq(seq)) {
            return pymtp_fail(PYMTP_INVALID, "sequence %d is not one of %u", seq, llama_n_seq_max(session->ctx));
        }
        const int32_t status = pymtp_session_truncate(session, seq, 0);
        if (status != PYMTP_OK) {
            return status;
        }
        forget_outputs(*session);
        const auto why = pymtp_thrown([&] {
            session->mtp->restore_state(data, size, seq);
            take_over(*session, seq);
        });
        if (!why.empty()) {
            pymtp_session_truncate(session, seq, 0);
            return pymtp_fail(PYMTP_INVALID, "the saved state does not fit this session: %s", why.text);
        }
        return PYMTP_OK;
    });
}
