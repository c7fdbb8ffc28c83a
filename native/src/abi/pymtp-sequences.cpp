// The sequences of the C interface: going back, copies, shifts, saved states.

#include "mtp-memory.h"
#include "pymtp-session.h"

#include <algorithm>
#include <string>

// After a copy, a shift or a restored state there is no pass to go back over.
static void stay_from_now_on(pymtp_session & session, int32_t seq) {
    if (!session.last_pass.empty()) {
        session.last_pass[seq] = session.padder->end(seq) - 1;
    }
}

// one sequence, or all of them (-1)
static void restore(pymtp_session & session, int32_t seq, const uint8_t * data, size_t size, mtp_origin origin) {
    session.mtp->restore_state(data, size, origin, seq);
    for (int32_t each = 0; each < (int32_t) llama_n_seq_max(session.ctx); ++each) {
        if (seq == -1 || seq == each) {
            const int32_t end = session.padder->end(each);
            pymtp_refuse_if(end > session.n_ctx_seq, "sequence %d has %d positions, of which %d are possible", each,
                            end, session.n_ctx_seq);
            stay_from_now_on(session, each);
        }
    }
}

void pymtp_truncate(pymtp_session & session, int32_t seq, int32_t pos) {
    auto * memory = llama_get_memory(session.ctx);
    auto & images = session.mtp->images[seq];
    pymtp_refuse_if(!images.can_cut(pos), "sequence %d cannot go back to position %d: it is in an image", seq, pos);
    if (session.padder->has(seq)) {
        pos = std::min(pos, session.padder->end(seq));
    }
    if (pos > 0 && pos <= llama_memory_seq_pos_max(memory, seq)) {
        // a sliding-window cache has freed what is before its window
        const int32_t n_swa = llama_model_n_swa(llama_get_model(session.ctx));
        pymtp_refuse_if(n_swa > 0 && llama_memory_seq_pos_min(memory, seq) > std::max(0, pos - n_swa),
                        "sequence %d cannot go back to position %d: the window before it is gone", seq, pos);
    }
    // of the snapshots that recurrent states go back to, llama.cpp writes those after a row of the last pass
    const bool is_tail  = pos == 0 || pos > llama_memory_seq_pos_max(memory, seq);
    const bool has_none = !is_tail && !session.last_pass.empty() && pos <= session.last_pass[seq];
    pymtp_refuse_if(has_none || !llama_memory_seq_rm(memory, seq, pos, -1),
                    "the model's memory cannot drop the positions from %d of sequence %d", pos, seq);
    session.mtp->heads.truncate(seq, pos);
    images.truncate(pos);
    session.padder->forget(seq);
}

int32_t pymtp_session_truncate(pymtp_session * session, int32_t n, const int32_t * seq, const int32_t * pos) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need_array(seq, n, llama_n_seq_max(self.ctx), "sequences");
        pymtp_need_array(pos, n, llama_n_seq_max(self.ctx), "positions");
        for (int32_t i = 0; i < n; ++i) {
            self.need_seq(seq[i]);
            pymtp_refuse_if(pos[i] < 0, "cannot truncate sequence %d at position %d", seq[i], pos[i]);
            pymtp_truncate(self, seq[i], pos[i]);
        }
    });
}

int32_t pymtp_session_copy(pymtp_session * session, int32_t from, int32_t to) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        self.need_seq(from);
        self.need_seq(to);
        pymtp_refuse_if(from == to, "cannot copy sequence %d to itself", from);
        pymtp_truncate(self, to, 0);
        forget_outputs(self);
        self.padder->drop(from);
        self.mtp->copy(from, to);
        stay_from_now_on(self, to);
    });
}

int32_t pymtp_session_discard(pymtp_session * session, int32_t seq, int32_t pos, int32_t n) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        self.need_seq(seq);
        self.padder->drop(seq);
        auto *        memory = llama_get_memory(self.ctx);
        const int32_t last   = llama_memory_seq_pos_max(memory, seq);
        pymtp_refuse_if(pos < 0 || n < 1 || n > last - pos,
                        "cannot discard %d positions from %d of sequence %d: its last is %d", n, pos, seq, last);
        pymtp_refuse_if(!self.mtp->images[seq].spans.empty(), "sequence %d has images: no context shift", seq);
        pymtp_refuse_if(!llama_memory_can_shift(memory), "the model's memory cannot move positions: no context shift");
        const std::string obstacle = self.mtp->shift_obstacle();
        pymtp_refuse_if(!obstacle.empty(), "%s: no context shift", obstacle.c_str());
        pymtp_refuse_if(llama_memory_seq_pos_min(memory, seq) > 0,
                        "sequence %d no longer has its first positions: no context shift", seq);
        pymtp_refuse_if(!mtp_memory_is_alone(memory, seq), "sequence %d shares positions with a copy: no context shift",
                        seq);
        forget_outputs(self);
        self.mtp->discard(seq, pos, n);
        stay_from_now_on(self, seq);
    });
}

struct pymtp_state {
    static constexpr const char * what = "saved state";

    const std::vector<uint8_t> data;
};

int32_t pymtp_session_save(pymtp_session * session, int32_t seq, pymtp_state ** state) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need(state, "the state") = nullptr;
        forget_outputs(self);
        if (seq == -1) {
            self.padder->drop();
        } else {
            self.need_seq(seq);
            self.padder->drop(seq);
        }
        pymtp_give(state, std::unique_ptr<pymtp_state>(new pymtp_state{ self.mtp->save_state(seq) }));
    });
}

const uint8_t * pymtp_state_data(const pymtp_state * state, size_t * size) {
    return pymtp_guard_or((const uint8_t *) nullptr, state, [&](pymtp_state & self) {
        pymtp_need(size, "the size") = self.data.size();
        return self.data.data();
    });
}

int32_t pymtp_session_restore(pymtp_session * session, int32_t seq, const uint8_t * data, size_t size) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need_array(data, size > 0, 1, "bytes");
        std::vector<uint8_t> before; // of all sequences; a single one is empty if it fails
        if (seq == -1) {
            self.padder->drop();
            before = self.mtp->save_state();
        } else {
            self.need_seq(seq);
            pymtp_truncate(self, seq, 0);
        }
        forget_outputs(self);
        const auto why = pymtp_thrown([&] { restore(self, seq, data, size, MTP_ORIGIN_OUTSIDE); });
        if (why.empty()) {
            return;
        }
        if (seq == -1) {
            restore(self, -1, before.data(), before.size(), MTP_ORIGIN_CONTEXT);
        } else {
            pymtp_thrown([&] { pymtp_truncate(self, seq, 0); });
        }
        pymtp_refuse("the saved state does not fit this session: %s", why.text);
    });
}
