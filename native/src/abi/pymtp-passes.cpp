// The passes of the C interface: trunk, drafts, and what they leave.

#include "head-graph.h"
#include "llama-context.h"
#include "pymtp-session.h"

#include <algorithm>

// what every row of a pass must satisfy
static void need_rows(const pymtp_session & session, int32_t n_rows, int32_t n_rows_max, const int32_t * token,
                      const int32_t * pos, const int32_t * seq) {
    pymtp_refuse_if(n_rows < 1 || n_rows > n_rows_max, "%d rows in a pass: 1 to %d are allowed", n_rows, n_rows_max);
    for (const int32_t * array : { token, pos, seq }) {
        pymtp_need_array(array, n_rows, n_rows_max, "tokens, positions and sequences");
    }
    pymtp_need_tokens(token, n_rows, session.n_vocab());
    for (int32_t i = 0; i < n_rows; ++i) {
        session.need_seq(seq[i]);
        pymtp_refuse_if(pos[i] < 0, "row %d: position %d is negative", i, pos[i]);
    }
}

// The positions of each sequence continue its decoded tail without a gap, and no row feeds more heads than there are.
static void need_tail(const pymtp_session & session, int32_t n_rows, const int32_t * pos, const int32_t * seq,
                      const uint8_t * flags) {
    std::vector<llama_pos> next(llama_n_seq_max(session.ctx), -1);

    pymtp_need_array(flags, n_rows, n_rows, "flags");
    for (int32_t i = 0; i < n_rows; ++i) {
        auto & expected = next[seq[i]];
        if (expected < 0) {
            expected = session.padder->end(seq[i]);
        }
        pymtp_refuse_if(pos[i] != expected, "row %d: position %d of sequence %d, but %d is next", i, pos[i], seq[i],
                        expected);
        ++expected;
        const int32_t n = flags[i] >> PYMTP_ROW_FEED_SHIFT;
        pymtp_refuse_if(n > session.n_heads, "row %d: feeds %d heads of %d", i, n, session.n_heads);
    }
}

// The rows of a draft: each sequence at consecutive positions from hidden states that are kept, all but its last decoded
// by the trunk. Returns them as the engine takes them: the last row of each sequence has output.
static std::vector<mtp_row> need_draft(const pymtp_session & session, int32_t step, int32_t n_rows,
                                       const int32_t * token, const int32_t * pos, const int32_t * seq) {
    pymtp_refuse_if(session.n_heads == 0, "the session does not draft");
    need_rows(session, n_rows, llama_n_ubatch(session.ctx), token, pos, seq);

    std::vector<mtp_row>   rows;
    std::vector<llama_pos> last(llama_n_seq_max(session.ctx), -1);

    for (int32_t i = 0; i < n_rows; ++i) {
        const bool is_first = last[seq[i]] < 0;
        const bool is_last  = i + 1 == n_rows || seq[i + 1] != seq[i];

        pymtp_refuse_if(!is_first && (seq[i - 1] != seq[i] || pos[i] - 1 != pos[i - 1]),
                        "row %d: position %d of sequence %d does not follow %d", i, pos[i], seq[i], last[seq[i]]);
        last[seq[i]] = pos[i];
        pymtp_refuse_if(is_last && !session.mtp->heads.has_hidden(seq[i], pos[i] - 1),
                        "row %d: no hidden state of position %d of sequence %d", i, pos[i] - 1, seq[i]);
        pymtp_refuse_if(!is_last && (step > 0 || pos[i] >= session.padder->end(seq[i])),
                        "row %d: position %d of sequence %d is not decoded, and not the last", i, pos[i], seq[i]);
        rows.push_back({ token[i], pos[i], seq[i], is_last });
    }
    return rows;
}

// what: of which nobody has said why it failed
[[noreturn]] static void fail_pass(const pymtp_reason & why, const char * what) {
    const bool is_named = why.status == PYMTP_LOST || why.status == PYMTP_FULL;
    pymtp_fail(is_named ? why.status : PYMTP_FAILED, "%s", why.empty() ? what : why.text);
}

// Runs a draft on its rows. If it fails, the cells that it took are given back.
template <typename F> static void run_draft(pymtp_session & session, const std::vector<mtp_row> & rows, F draft) {
    for (const auto & row : rows) {
        session.padder->drop(row.seq);
    }
    pymtp_status status = PYMTP_FAILED;
    const auto   why    = pymtp_thrown([&] { status = draft(); });
    if (status == PYMTP_OK) {
        return;
    }
    session.mtp->heads.forget_draft(rows);
    pymtp_fail_if(status == PYMTP_FULL, PYMTP_FULL, "the context of %u tokens has no room to draft",
                  llama_n_ctx(session.ctx));
    fail_pass(why, "the backend failed in a pass of the MTP heads");
}

void pymtp_run_pass(pymtp_session & session, const std::vector<mtp_row> & rows,
                    const std::function<int32_t()> & decode) {
    forget_outputs(session);

    int32_t    res = -1;
    const auto why = pymtp_thrown([&] { res = decode(); });

    if (res == 0) {
        for (auto row = rows.rbegin(); row != rows.rend() && !session.last_pass.empty(); ++row) {
            session.last_pass[row->seq] = row->pos;
        }
        return;
    }
    pymtp_fail_if(res == 1, PYMTP_FULL, "the context of %u tokens has no room for %zu more", llama_n_ctx(session.ctx),
                  rows.size());
    // earlier ubatches of the batch may have gone through: leave nothing of it
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
        pymtp_thrown([&] { pymtp_truncate(session, row->seq, session.last_pass.empty() ? row->pos : 0); });
    }
    fail_pass(why, "the backend failed in a pass of the trunk");
}

int32_t pymtp_session_decode(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                             const int32_t * seq, const uint8_t * flags) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const pymtp_timer timer = { self.mtp->counters.t_trunk_us };

        need_rows(self, n_rows, llama_n_batch(self.ctx), token, pos, seq);
        need_tail(self, n_rows, pos, seq, flags);
        std::vector<mtp_row> rows;
        int32_t              n_logits = 0;
        for (int32_t i = 0; i < n_rows; ++i) {
            rows.push_back({ token[i], pos[i], seq[i], (flags[i] & PYMTP_ROW_LOGITS) != 0 });
            n_logits += rows.back().output;
        }
        pymtp_refuse_if(n_logits > self.n_outputs_max, "%d rows with logits in a pass: at most %d are allowed",
                        n_logits, self.n_outputs_max);
        pymtp_run_pass(self, rows, [&] { return self.padder->decode(rows, flags); });
        self.n_logits = n_logits;
    });
}

int32_t pymtp_session_draft(pymtp_session * session, int32_t step, int32_t n_steps, int32_t n_rows,
                            const int32_t * token, const int32_t * pos, const int32_t * seq) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const pymtp_timer timer = { self.mtp->counters.t_head_us };

        pymtp_refuse_if(n_steps < 1 || n_steps > self.n_draft_max || step < 0 || step >= n_steps,
                        "step %d of a draft of %d: at most %d are allowed", step, n_steps, self.n_draft_max);
        const auto rows = need_draft(self, step, n_rows, token, pos, seq);
        forget_outputs(self);
        run_draft(self, rows, [&] { return self.mtp->draft(step, n_steps, rows); });
        self.has_draft = true;
    });
}

int32_t pymtp_session_draft_greedy(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                                   const int32_t * seq, int32_t * n_steps, int32_t * drafts, float * probs) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const pymtp_timer timer = { self.mtp->counters.t_head_us };

        const int32_t n_asked = pymtp_need(n_steps, "the number of steps");
        pymtp_refuse_if(n_asked < 1 || n_asked > self.n_draft_max, "a draft of %d: 1 to %d are allowed", n_asked,
                        self.n_draft_max);
        const auto rows = need_draft(self, 0, n_rows, token, pos, seq);
        pymtp_need(drafts, "the drafts");
        forget_outputs(self);
        run_draft(self, rows, [&] { return self.mtp->draft_greedy(rows, n_steps, drafts, probs); });
    });
}

// --- what the last pass has left

int32_t pymtp_session_n_logits(const pymtp_session * session, int32_t of_draft, int32_t * n_columns) {
    return pymtp_guard_or(-1, session, [&](pymtp_session & self) {
        pymtp_need(n_columns, "the length of a row") = self.mtp->n_columns(of_draft != 0);
        return self.n_rows_left(of_draft != 0);
    });
}

int32_t pymtp_session_logits(pymtp_session * session, int32_t of_draft, int32_t row, int32_t n_rows, int32_t n_columns,
                             float * logits) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const int32_t n_left = self.n_rows_left(of_draft != 0);
        const int32_t n_size = self.mtp->n_columns(of_draft != 0);
        pymtp_refuse_if(row < 0 || n_rows < 0 || n_rows > n_left || row > n_left - n_rows || n_columns != n_size,
                        "%d rows of %d logits from row %d: the last pass has left %d of %d", n_rows, n_columns, row,
                        n_left, n_size);
        pymtp_need_array(logits, n_rows, n_rows, "rows of logits");
        if (n_rows == 0) {
            return;
        }
        const float * found = self.mtp->logits(of_draft != 0);
        pymtp_fail_if(!found, PYMTP_FAILED, "the logits of the last pass cannot be fetched");
        std::copy_n(found + (size_t) row * n_columns, (size_t) n_rows * n_columns, logits);
    });
}

int32_t pymtp_session_hidden(pymtp_session * session, int32_t seq, int32_t pos, int32_t n_rows, float * hidden) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        self.need_seq(seq);
        pymtp_need_array(hidden, n_rows, llama_n_ctx(self.ctx), "hidden states");
        for (int32_t i = 0; i < n_rows; ++i) {
            pymtp_refuse_if(pos < 0 || pos > INT32_MAX - n_rows || !self.mtp->heads.has_hidden(seq, pos + i),
                            "the hidden state of position %d is not kept", pos + i);
        }
        self.mtp->heads.copy_hidden(seq, pos, n_rows, hidden);
    });
}

int32_t pymtp_session_rotate(pymtp_session * session, int32_t pos, int32_t n_rows, int32_t n_columns, float * rows) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const llama_model & model    = self.ctx->get_model();
        const int32_t       n_head_k = model.hparams.n_embd_head_k(model.hparams.n_layer_all - 1);
        pymtp_refuse_if(!model.hparams.mtp_generic || n_columns != n_head_k || n_rows < 1,
                        "no trained head has %d keys of %d numbers", n_rows, n_columns);
        pymtp_need_array(rows, n_rows, n_head_k, "rows");
        std::vector<float> found(rows, rows + (size_t) n_rows * n_columns);
        head_generic_rotate(model, self.ctx->get_cparams(), pos, found);
        std::copy(found.begin(), found.end(), rows);
    });
}
