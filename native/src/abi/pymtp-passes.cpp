// The passes of the C interface: trunk, drafts, and what they leave.

#include "pymtp-session.h"

#include <algorithm>
#include <string>

// what every row of a pass must satisfy
static pymtp_status check_rows(const pymtp_session & session, int32_t n_rows, int32_t n_rows_max, const int32_t * token,
                               const int32_t * pos, const int32_t * seq) {
    if (n_rows < 1 || n_rows > n_rows_max) {
        return pymtp_fail(PYMTP_INVALID, "%d rows in a pass: 1 to %d are allowed", n_rows, n_rows_max);
    }

    const int32_t n_vocab   = session.n_vocab();
    const int32_t n_seq_max = llama_n_seq_max(session.ctx);

    for (int32_t i = 0; i < n_rows; ++i) {
        if (token[i] < 0 || token[i] >= n_vocab) {
            return pymtp_fail(PYMTP_INVALID, "row %d: token %d is not in the vocabulary of %d", i, token[i], n_vocab);
        }
        if (seq[i] < 0 || seq[i] >= n_seq_max) {
            return pymtp_fail(PYMTP_INVALID, "row %d: sequence %d is not one of %d", i, seq[i], n_seq_max);
        }
        if (pos[i] < 0) {
            return pymtp_fail(PYMTP_INVALID, "row %d: position %d is negative", i, pos[i]);
        }
    }
    return PYMTP_OK;
}

// the positions of each sequence go on from its decoded tail without a gap
static pymtp_status check_tail(const pymtp_session & session, int32_t n_rows, const int32_t * pos,
                               const int32_t * seq) {
    auto *                 memory = llama_get_memory(session.ctx);
    std::vector<llama_pos> next(llama_n_seq_max(session.ctx), -1);

    for (int32_t i = 0; i < n_rows; ++i) {
        auto & expected = next[seq[i]];
        if (expected < 0) {
            expected = llama_memory_seq_pos_max(memory, seq[i]) + 1;
        }
        if (pos[i] != expected) {
            return pymtp_fail(PYMTP_INVALID, "row %d: position %d of sequence %d, but %d is next", i, pos[i], seq[i],
                              expected);
        }
        ++expected;
    }
    return PYMTP_OK;
}

// no row feeds more heads than there are
static pymtp_status check_feed(const pymtp_session & session, int32_t n_rows, const uint8_t * flags) {
    for (int32_t i = 0; i < n_rows; ++i) {
        const int32_t n = flags[i] >> PYMTP_ROW_FEED_SHIFT;
        if (n > session.n_heads) {
            return pymtp_fail(PYMTP_INVALID, "row %d: feeds %d heads of %d", i, n, session.n_heads);
        }
    }
    return PYMTP_OK;
}

// the rows of a draft: each sequence at consecutive positions from hidden states that are at hand, all but its last
// decoded by the trunk
static pymtp_status check_draft(const pymtp_session & session, int32_t step, int32_t n_rows, const int32_t * token,
                                const int32_t * pos, const int32_t * seq) {
    if (session.n_heads == 0) {
        return pymtp_fail(PYMTP_INVALID, "the session does not draft");
    }
    const pymtp_status status = check_rows(session, n_rows, llama_n_ubatch(session.ctx), token, pos, seq);
    if (status != PYMTP_OK) {
        return status;
    }

    auto *                 memory = llama_get_memory(session.ctx);
    std::vector<llama_pos> last(llama_n_seq_max(session.ctx), -1);

    for (int32_t i = 0; i < n_rows; ++i) {
        const bool is_first = last[seq[i]] < 0;
        const bool is_last  = i + 1 == n_rows || seq[i + 1] != seq[i];

        if (!is_first && (seq[i - 1] != seq[i] || pos[i] - 1 != pos[i - 1])) {
            return pymtp_fail(PYMTP_INVALID, "row %d: position %d of sequence %d does not follow %d", i, pos[i], seq[i],
                              last[seq[i]]);
        }
        last[seq[i]] = pos[i];
        if (is_last && !session.mtp->heads.has_hidden(seq[i], pos[i] - 1)) {
            return pymtp_fail(PYMTP_INVALID, "row %d: no hidden state of position %d of sequence %d", i, pos[i] - 1,
                              seq[i]);
        }
        if (!is_last && (step > 0 || pos[i] > llama_memory_seq_pos_max(memory, seq[i]))) {
            return pymtp_fail(PYMTP_INVALID, "row %d: position %d of sequence %d is not decoded, and not the last", i,
                              pos[i], seq[i]);
        }
    }
    return PYMTP_OK;
}

// the rows as the engine takes them; the last of each sequence has output
static std::vector<mtp_row> draft_rows(int32_t n_rows, const int32_t * token, const int32_t * pos,
                                       const int32_t * seq) {
    std::vector<mtp_row> rows;
    for (int32_t i = 0; i < n_rows; ++i) {
        rows.push_back({ token[i], pos[i], seq[i], i + 1 == n_rows || seq[i + 1] != seq[i] });
    }
    return rows;
}

// Runs a draft on its rows. If it fails, the cells that it took are given back.
template <typename F>
static pymtp_status run_draft(pymtp_session & session, const std::vector<mtp_row> & rows, F draft) {
    pymtp_status status = PYMTP_FAILED;
    const auto   why    = pymtp_thrown([&] { status = draft(); });
    if (status == PYMTP_OK) {
        return PYMTP_OK;
    }
    session.mtp->heads.forget_draft(rows);
    if (status == PYMTP_FULL) {
        return pymtp_fail(PYMTP_FULL, "the context of %u tokens has no room to draft", llama_n_ctx(session.ctx));
    }
    return pymtp_fail(status, "%s", why.empty() ? "the backend failed in a pass of the MTP heads" : why.text);
}

// Decodes checked rows. If it fails, nothing of them is left.
pymtp_status pymtp_run_decode(pymtp_session & session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                              const int32_t * seq, const uint8_t * flags) {
    std::vector<int8_t>         logits(n_rows);
    std::vector<int32_t>        n_seq_id(n_rows, 1);
    std::vector<llama_seq_id *> seq_id(n_rows);

    int32_t n_logits = 0;
    for (int32_t i = 0; i < n_rows; ++i) {
        logits[i] = (flags[i] & PYMTP_ROW_LOGITS) != 0;
        seq_id[i] = const_cast<llama_seq_id *>(&seq[i]);
        n_logits += logits[i];
    }
    if (n_logits > session.n_outputs_max) {
        return pymtp_fail(PYMTP_INVALID, "%d rows with logits in a pass: at most %d are allowed", n_logits,
                          session.n_outputs_max);
    }

    const llama_batch batch = {
        n_rows,          const_cast<llama_token *>(token),
        nullptr,         const_cast<llama_pos *>(pos),
        n_seq_id.data(), seq_id.data(),
        logits.data(),
    };

    session.n_logits  = 0;
    session.has_draft = false;

    int32_t    res = -1;
    const auto why = pymtp_thrown([&] { res = session.mtp->decode(batch, flags); });

    switch (res) {
        case 0:
            session.n_logits = n_logits;
            for (int32_t i = n_rows; i-- > 0 && !session.last_pass.empty();) {
                session.last_pass[seq[i]] = pos[i];
            }
            return PYMTP_OK;
        case 1:
            return pymtp_fail(PYMTP_FULL, "the context of %u tokens has no room for %d more", llama_n_ctx(session.ctx),
                              n_rows);
        default:
            // earlier ubatches of the batch may have gone through: leave nothing of it
            for (int32_t i = n_rows; i-- > 0;) {
                pymtp_session_truncate(&session, seq[i], session.last_pass.empty() ? pos[i] : 0);
            }
            return pymtp_fail(PYMTP_FAILED, "%s", why.empty() ? "the backend failed in a pass of the trunk" : why.text);
    }
}

// Before rows of several positions a sequence are decoded that may be drafts: keeps the state to come back to. Longer
// runs of rows are prompts.
static pymtp_status save_for_replay(pymtp_session & session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                                    const int32_t * seq, const uint8_t * flags) {
    for (int32_t begin = 0, end; begin < n_rows; begin = end) {
        end = std::find_if(seq + begin, seq + n_rows, [&](int32_t s) { return s != seq[begin]; }) - seq;

        session.replay->forget(seq[begin]);
        if (end - begin > 1 && end - begin <= session.n_draft_max + 1 && pos[begin] > 0 &&
            !session.replay->save(session.ctx, seq[begin], pos[begin], { token + begin, token + end },
                                  { flags + begin, flags + end })) {
            return pymtp_fail(PYMTP_FAILED, "llama.cpp could not save the state of sequence %d", seq[begin]);
        }
    }
    return PYMTP_OK;
}

int32_t pymtp_session_decode(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                             const int32_t * seq, const uint8_t * flags) {
    return pymtp_guard([&]() -> int32_t {
        const pymtp_timer timer = { session->t_trunk_us };

        pymtp_status status = check_rows(*session, n_rows, llama_n_batch(session->ctx), token, pos, seq);
        if (status == PYMTP_OK) {
            status = check_tail(*session, n_rows, pos, seq);
        }
        if (status == PYMTP_OK) {
            status = check_feed(*session, n_rows, flags);
        }
        if (status == PYMTP_OK && session->replay) {
            status = save_for_replay(*session, n_rows, token, pos, seq, flags);
        }
        if (status != PYMTP_OK) {
            return status;
        }
        return pymtp_run_decode(*session, n_rows, token, pos, seq, flags);
    });
}

const float * pymtp_session_logits(pymtp_session * session, int32_t * n_rows, int32_t * n_vocab) {
    *n_vocab = session->n_vocab();
    const float * found =
        pymtp_guard_or(nullptr, [&] { return session->n_logits > 0 ? session->mtp->logits() : nullptr; });
    *n_rows = found ? session->n_logits : 0;
    return found;
}

int32_t pymtp_session_draft(pymtp_session * session, int32_t step, int32_t n_steps, int32_t n_rows,
                            const int32_t * token, const int32_t * pos, const int32_t * seq) {
    return pymtp_guard([&]() -> int32_t {
        const pymtp_timer timer = { session->t_head_us };

        if (n_steps < 1 || n_steps > session->n_draft_max || step < 0 || step >= n_steps) {
            return pymtp_fail(PYMTP_INVALID, "step %d of a draft of %d: at most %d are allowed", step, n_steps,
                              session->n_draft_max);
        }
        const pymtp_status status = check_draft(*session, step, n_rows, token, pos, seq);
        if (status != PYMTP_OK) {
            return status;
        }
        session->n_logits  = 0;
        session->has_draft = false;

        const auto         rows = draft_rows(n_rows, token, pos, seq);
        const pymtp_status drafted =
            run_draft(*session, rows, [&] { return session->mtp->draft(step, n_steps, rows); });

        session->has_draft = drafted == PYMTP_OK;
        return drafted;
    });
}

const float * pymtp_session_draft_logits(pymtp_session * session, int32_t * n_rows, int32_t * n_vocab) {
    *n_vocab = session->mtp->vocab.size();
    const float * found =
        pymtp_guard_or(nullptr, [&] { return session->has_draft ? session->mtp->draft_logits() : nullptr; });
    *n_rows = found ? session->mtp->n_draft_rows() : 0;
    return found;
}

int32_t pymtp_session_draft_greedy(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                                   const int32_t * seq, int32_t * n_steps, int32_t * drafts, float * probs) {
    return pymtp_guard([&]() -> int32_t {
        const pymtp_timer timer = { session->t_head_us };

        if (*n_steps < 1 || *n_steps > session->n_draft_max) {
            return pymtp_fail(PYMTP_INVALID, "a draft of %d: 1 to %d are allowed", *n_steps, session->n_draft_max);
        }
        const pymtp_status status = check_draft(*session, 0, n_rows, token, pos, seq);
        if (status != PYMTP_OK) {
            return status;
        }
        session->n_logits  = 0;
        session->has_draft = false;

        const auto rows = draft_rows(n_rows, token, pos, seq);
        return run_draft(*session, rows, [&] { return session->mtp->draft_greedy(rows, n_steps, drafts, probs); });
    });
}

int32_t pymtp_session_n_logits(const pymtp_session * session, int32_t of_draft) {
    return of_draft ? (session->has_draft ? session->mtp->n_draft_rows() : 0) : session->n_logits;
}

int32_t pymtp_session_candidates(pymtp_session * session, int32_t of_draft, int32_t n, int32_t * ids, float * values) {
    return pymtp_guard([&]() -> int32_t {
        const int32_t n_logits = session->mtp->n_logits(of_draft != 0);
        const int32_t n_rows   = pymtp_session_n_logits(session, of_draft);
        if (n < 1 || n > n_logits) {
            return pymtp_fail(PYMTP_INVALID, "%d candidates of a vocabulary of %d", n, n_logits);
        }
        if (n_rows == 0) {
            return pymtp_fail(PYMTP_INVALID, "the last pass has left no logits");
        }
        for (int32_t row = 0; row < n_rows; ++row) {
            session->mtp->candidates(of_draft != 0, row, n, ids + (size_t) row * n, values + (size_t) row * n);
        }
        return PYMTP_OK;
    });
}
