// The C interface: checks arguments, keeps exceptions and asserts on this side, names errors.

#include "pymtp.h"

#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"
#include "mtp-replay.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

static constexpr int32_t PYMTP_DRAFT_MAX = 32; // as in vLLM

static thread_local std::string g_error;
static std::atomic<int32_t>     g_n_contexts{ 0 };

static pymtp_status fail(pymtp_status status, const char * format, ...) {
    char    text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);

    g_error = text;
    return status;
}

struct pymtp_session {
    llama_context * ctx = nullptr;
    mtp_engine *    mtp = nullptr; // the context's

    int32_t n_draft_max   = 0;
    int32_t n_heads       = 0;
    int32_t n_outputs_max = 0;
    int32_t n_logits      = 0;     // rows with logits of the last decode, until the next pass
    bool    has_draft     = false; // logits of a draft step, until the next pass
    int64_t t_trunk_us    = 0;
    int64_t t_head_us     = 0;

    // where the memory has recurrent states: the first position of each sequence's last pass, -1 before there is one
    std::vector<llama_pos> last_pass;

    std::unique_ptr<mtp_replay> replay; // set if the memory cannot drop rejected drafts
    std::vector<uint8_t>        state;  // the last that was saved

    ~pymtp_session() {
        if (mtp) {
            mtp->drop_slots();
        }
        if (ctx) {
            llama_free(ctx);
            --g_n_contexts;
        }
    }
};

// adds the time until it goes out of scope
struct pymtp_timer {
    int64_t & us;
    int64_t   begin = ggml_time_us();

    ~pymtp_timer() { us += ggml_time_us() - begin; }
};

const char * pymtp_error_message(void) {
    return g_error.c_str();
}

int32_t pymtp_n_contexts(void) {
    return g_n_contexts;
}

int32_t pymtp_can_draft(const llama_model * model) {
    return llama_model_n_layer_nextn(model) > 0 && mtp_graph_has_heads(*model);
}

int32_t pymtp_session_init(llama_model * model, const pymtp_session_params * params, pymtp_session ** out) try {
    *out = nullptr;

    const int32_t n_draft_max = params->n_draft_max;
    if (n_draft_max < 0 || n_draft_max > PYMTP_DRAFT_MAX) {
        return fail(PYMTP_INVALID, "n_draft_max = %d is out of range: 0 to %d", n_draft_max, PYMTP_DRAFT_MAX);
    }
    const int32_t n_heads = llama_model_n_layer_nextn(model);
    if (n_draft_max > 0 && n_heads == 0) {
        return fail(PYMTP_INVALID, "the model has no MTP head; use n_draft_max = 0");
    }
    if (n_draft_max > 0 && !mtp_graph_has_heads(*model)) {
        return fail(PYMTP_INVALID, "llama.cpp cannot run the MTP heads of %s; use n_draft_max = 0",
                    llm_arch_name(model->arch));
    }

    auto session = std::make_unique<pymtp_session>();
    auto cparams = *params->context;

    cparams.ctx_type = n_draft_max > 0 ? LLAMA_CONTEXT_TYPE_MTP_SHARED : LLAMA_CONTEXT_TYPE_DEFAULT;
    // recurrent states must be able to go back over a whole draft
    cparams.n_rs_seq = std::max(cparams.n_rs_seq, (uint32_t) n_draft_max);
    if (cparams.n_outputs_max == 0) {
        cparams.n_outputs_max = cparams.n_seq_max * (n_draft_max + 1);
    }
    // a verify pass is one ubatch, and llama.cpp wants one row more where it keeps recurrent states
    const uint32_t n_rows_max = n_draft_max + 2;
    if (n_draft_max > 0 &&
        std::min(cparams.n_ubatch > 0 ? cparams.n_ubatch : cparams.n_batch, cparams.n_batch) < n_rows_max) {
        return fail(PYMTP_INVALID, "n_ubatch = %u and n_batch = %u are too small: %d drafts need %u", cparams.n_ubatch,
                    cparams.n_batch, n_draft_max, n_rows_max);
    }

    const auto shortage = mtp_memory_check(*model, cparams);
    if (shortage.device) {
        constexpr double GiB = 1024.0 * 1024.0 * 1024.0;
        return fail(PYMTP_FAILED,
                    "a context of %u tokens needs %.1f GiB on %s, which has %.1f GiB free: use a smaller context (-c)",
                    cparams.n_ctx, shortage.needed / GiB, ggml_backend_dev_name(shortage.device), shortage.free / GiB);
    }

    session->ctx = llama_init_from_model(model, cparams);
    if (!session->ctx) {
        return fail(PYMTP_FAILED,
                    "llama.cpp could not create a context of %u tokens; use a smaller one (-c), or free memory",
                    cparams.n_ctx);
    }
    ++g_n_contexts;

    session->n_draft_max   = n_draft_max;
    session->n_heads       = std::min(n_heads, n_draft_max);
    session->n_outputs_max = cparams.n_outputs_max;

    session->mtp = &mtp_engine::attach(
        *session->ctx, {
                           session->n_heads,
                           session->n_heads > 1 && params->head_context == PYMTP_HEAD_CONTEXT_CHAINED,
                           { cparams.type_k, cparams.type_v, cparams.swa_full, cparams.ctx_type, nullptr },
                       });

    if (mtp_memory_attention(llama_get_memory(session->ctx)) != llama_get_memory(session->ctx)) {
        session->last_pass.assign(cparams.n_seq_max, -1);
    }
    if (n_draft_max > 0 && mtp_replay::is_needed(session->ctx)) {
        session->replay = std::make_unique<mtp_replay>(cparams.n_seq_max);
    }

    *out = session.release();
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

void pymtp_session_free(pymtp_session * session) {
    delete session;
}

llama_context * pymtp_session_context(pymtp_session * session) {
    return session->ctx;
}

int32_t pymtp_session_memory(const pymtp_session * session) {
    if (session->n_heads == 0) {
        return PYMTP_MEMORY_NONE;
    }
    return session->mtp->has_own_memory() ? PYMTP_MEMORY_OWN : PYMTP_MEMORY_SHARED;
}

const char * pymtp_session_memory_note(const pymtp_session * session) {
    if (session->mtp->has_own_memory()) {
        return "the trunk's cache keeps more than K/V by position, so the heads have a cache of their own";
    }
    if (session->replay) {
        return "the model's recurrent states cannot go back, so rejected drafts cost another pass of the trunk";
    }
    return "";
}

int32_t pymtp_session_n_draft_max(const pymtp_session * session) {
    return session->n_draft_max;
}

// what every row of a pass must satisfy
static pymtp_status check_rows(const pymtp_session & session, int32_t n_rows, int32_t n_rows_max, const int32_t * token,
                               const int32_t * pos, const int32_t * seq) {
    if (n_rows < 1 || n_rows > n_rows_max) {
        return fail(PYMTP_INVALID, "%d rows in a pass: 1 to %d are allowed", n_rows, n_rows_max);
    }

    const int32_t n_vocab   = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(session.ctx)));
    const int32_t n_seq_max = llama_n_seq_max(session.ctx);

    for (int32_t i = 0; i < n_rows; ++i) {
        if (token[i] < 0 || token[i] >= n_vocab) {
            return fail(PYMTP_INVALID, "row %d: token %d is not in the vocabulary of %d", i, token[i], n_vocab);
        }
        if (seq[i] < 0 || seq[i] >= n_seq_max) {
            return fail(PYMTP_INVALID, "row %d: sequence %d is not one of %d", i, seq[i], n_seq_max);
        }
        if (pos[i] < 0) {
            return fail(PYMTP_INVALID, "row %d: position %d is negative", i, pos[i]);
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
            return fail(PYMTP_INVALID, "row %d: position %d of sequence %d, but %d is next", i, pos[i], seq[i],
                        expected);
        }
        ++expected;
    }
    return PYMTP_OK;
}

// a row that feeds the heads goes on where they were fed last, and needs the hidden state before it
static pymtp_status check_feed(const pymtp_session & session, int32_t n_rows, const int32_t * pos, const int32_t * seq,
                               const uint8_t * flags) {
    if (session.n_heads == 0) {
        return PYMTP_OK;
    }
    std::vector<bool> seen(llama_n_seq_max(session.ctx), false);

    for (int32_t i = 0; i < n_rows; ++i) {
        if (!(flags[i] & PYMTP_ROW_FEED)) {
            continue;
        }
        const bool is_first = !seen[seq[i]];
        seen[seq[i]]        = true;
        if (is_first && !session.mtp->can_feed(seq[i], pos[i] - 1)) {
            return fail(PYMTP_INVALID,
                        "row %d: the heads cannot go on at position %d of sequence %d: they have seen %d positions, "
                        "and need the hidden state before the next; decode the sequence again from 0",
                        i, pos[i], seq[i], session.mtp->n_fed(seq[i]));
        }
    }
    return PYMTP_OK;
}

// the rows of a draft: each sequence at consecutive positions from hidden states that are at hand, all but its last
// decoded by the trunk
static pymtp_status check_draft(const pymtp_session & session, int32_t step, int32_t n_rows, const int32_t * token,
                                const int32_t * pos, const int32_t * seq) {
    if (session.n_heads == 0) {
        return fail(PYMTP_INVALID, "the session does not draft");
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

        if (!is_first && (seq[i - 1] != seq[i] || pos[i] != pos[i - 1] + 1)) {
            return fail(PYMTP_INVALID, "row %d: position %d of sequence %d does not follow %d", i, pos[i], seq[i],
                        last[seq[i]]);
        }
        last[seq[i]] = pos[i];
        if (!session.mtp->has_hidden(seq[i], pos[i] - 1)) {
            return fail(PYMTP_INVALID, "row %d: no hidden state of position %d of sequence %d", i, pos[i] - 1, seq[i]);
        }
        if (is_first && step == 0 && pos[i] > session.mtp->n_fed(seq[i])) {
            return fail(PYMTP_INVALID, "row %d: the heads have seen %d positions of sequence %d, not those up to %d", i,
                        session.mtp->n_fed(seq[i]), seq[i], pos[i]);
        }
        if (!is_last && (step > 0 || pos[i] > llama_memory_seq_pos_max(memory, seq[i]))) {
            return fail(PYMTP_INVALID, "row %d: position %d of sequence %d is not decoded, and not the last", i, pos[i],
                        seq[i]);
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
    std::string  why    = "the backend failed in a pass of the MTP heads";
    try {
        status = draft();
    } catch (const std::exception & err) {
        why = err.what();
    }
    if (status == PYMTP_OK) {
        return PYMTP_OK;
    }
    session.mtp->forget_drafts(rows);
    if (status == PYMTP_FULL) {
        return fail(PYMTP_FULL, "the context of %u tokens has no room to draft", llama_n_ctx(session.ctx));
    }
    return fail(status, "%s", why.c_str());
}

// Decodes checked rows. If it fails, nothing of them is left.
static pymtp_status run_decode(pymtp_session & session, int32_t n_rows, const int32_t * token, const int32_t * pos,
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
        return fail(PYMTP_INVALID, "%d rows with logits in a pass: at most %d are allowed", n_logits,
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
    session.mtp->row_flags.assign(flags, flags + n_rows);

    int32_t     res = -1;
    std::string why = "the backend failed in a pass of the trunk";
    try {
        res = llama_decode(session.ctx, batch);
    } catch (const std::exception & err) {
        why = err.what();
    }

    switch (res) {
        case 0:
            session.n_logits = n_logits;
            for (int32_t i = n_rows; i-- > 0 && !session.last_pass.empty();) {
                session.last_pass[seq[i]] = pos[i];
            }
            return PYMTP_OK;
        case 1:
            return fail(PYMTP_FULL, "the context of %u tokens has no room for %d more", llama_n_ctx(session.ctx),
                        n_rows);
        default:
            // earlier ubatches of the batch may have gone through: leave nothing of it
            for (int32_t i = n_rows; i-- > 0;) {
                pymtp_session_truncate(&session, seq[i], session.last_pass.empty() ? pos[i] : 0);
            }
            return fail(PYMTP_FAILED, "%s", why.c_str());
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
            return fail(PYMTP_FAILED, "llama.cpp could not save the state of sequence %d", seq[begin]);
        }
    }
    return PYMTP_OK;
}

// Drops the positions >= pos of a sequence whose memory cannot: goes back to where its last pass began, and decodes
// the rows before pos again.
static pymtp_status replay(pymtp_session & session, int32_t seq, int32_t pos) {
    if (!session.replay || !session.replay->restore(session.ctx, seq, pos)) {
        return fail(PYMTP_INVALID, "the model's memory cannot drop the positions from %d of sequence %d", pos, seq);
    }

    const auto & saved = session.replay->last(seq);
    session.mtp->truncate(seq, saved.pos);

    const int32_t              n_rows = pos - saved.pos;
    std::vector<int32_t>       rows_pos;
    std::vector<uint8_t>       rows_flags;
    const std::vector<int32_t> rows_seq(n_rows, seq);
    for (int32_t i = 0; i < n_rows; ++i) {
        rows_pos.push_back(saved.pos + i);
        rows_flags.push_back(saved.flags[i] & PYMTP_ROW_FEED);
    }

    const auto tokens = saved.tokens;
    session.replay->forget(seq);
    if (n_rows == 0) {
        return PYMTP_OK;
    }
    ++session.mtp->counters.n_replays;
    return run_decode(session, n_rows, tokens.data(), rows_pos.data(), rows_seq.data(), rows_flags.data());
}

int32_t pymtp_session_decode(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                             const int32_t * seq, const uint8_t * flags) try {
    const pymtp_timer timer = { session->t_trunk_us };

    pymtp_status status = check_rows(*session, n_rows, llama_n_batch(session->ctx), token, pos, seq);
    if (status == PYMTP_OK) {
        status = check_tail(*session, n_rows, pos, seq);
    }
    if (status == PYMTP_OK) {
        status = check_feed(*session, n_rows, pos, seq, flags);
    }
    if (status == PYMTP_OK && session->replay) {
        status = save_for_replay(*session, n_rows, token, pos, seq, flags);
    }
    if (status != PYMTP_OK) {
        return status;
    }
    return run_decode(*session, n_rows, token, pos, seq, flags);
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

const float * pymtp_session_logits(pymtp_session * session, int32_t * n_rows, int32_t * n_vocab) {
    *n_rows  = session->n_logits;
    *n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(session->ctx)));
    return session->n_logits > 0 ? session->mtp->logits() : nullptr;
}

int32_t pymtp_session_draft(pymtp_session * session, int32_t step, int32_t n_steps, int32_t n_rows,
                            const int32_t * token, const int32_t * pos, const int32_t * seq) try {
    const pymtp_timer timer = { session->t_head_us };

    if (n_steps < 1 || n_steps > session->n_draft_max || step < 0 || step >= n_steps) {
        return fail(PYMTP_INVALID, "step %d of a draft of %d: at most %d are allowed", step, n_steps,
                    session->n_draft_max);
    }
    const pymtp_status status = check_draft(*session, step, n_rows, token, pos, seq);
    if (status != PYMTP_OK) {
        return status;
    }
    session->n_logits  = 0;
    session->has_draft = false;

    const auto         rows    = draft_rows(n_rows, token, pos, seq);
    const pymtp_status drafted = run_draft(*session, rows, [&] { return session->mtp->draft(step, n_steps, rows); });

    session->has_draft = drafted == PYMTP_OK;
    return drafted;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

const float * pymtp_session_draft_logits(pymtp_session * session, int32_t * n_rows, int32_t * n_vocab) {
    *n_rows  = session->has_draft ? session->mtp->n_draft_rows : 0;
    *n_vocab = session->mtp->n_draft_vocab();
    return session->has_draft ? session->mtp->draft_logits() : nullptr;
}

int32_t pymtp_session_draft_greedy(pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                                   const int32_t * seq, int32_t * n_steps, int32_t * drafts, float * probs) try {
    const pymtp_timer timer = { session->t_head_us };

    if (*n_steps < 1 || *n_steps > session->n_draft_max) {
        return fail(PYMTP_INVALID, "a draft of %d: 1 to %d are allowed", *n_steps, session->n_draft_max);
    }
    const pymtp_status status = check_draft(*session, 0, n_rows, token, pos, seq);
    if (status != PYMTP_OK) {
        return status;
    }
    session->n_logits  = 0;
    session->has_draft = false;

    const auto rows = draft_rows(n_rows, token, pos, seq);
    return run_draft(*session, rows, [&] { return session->mtp->draft_greedy(rows, n_steps, drafts, probs); });
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

// whatever changes the memory ends what the last pass has left
static void forget_outputs(pymtp_session & session) {
    session.n_logits  = 0;
    session.has_draft = false;
    if (session.replay) {
        session.replay->forget_all();
    }
}

int32_t pymtp_session_reduce(pymtp_session * session, int32_t n_max, int32_t also_on_host) {
    if (n_max < 0) {
        return fail(PYMTP_INVALID, "n_max = %d is negative", n_max);
    }
    session->mtp->reduce_logits(n_max, also_on_host != 0);
    return PYMTP_OK;
}

int32_t pymtp_session_n_logits(const pymtp_session * session, int32_t of_draft) {
    return of_draft ? (session->has_draft ? session->mtp->n_draft_rows : 0) : session->n_logits;
}

int32_t pymtp_session_candidates(pymtp_session * session, int32_t of_draft, int32_t n, int32_t * ids,
                                 float * values) try {
    const int32_t n_vocab = of_draft ? session->mtp->n_draft_vocab() :
                                       llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(session->ctx)));
    const int32_t n_rows  = pymtp_session_n_logits(session, of_draft);
    if (n < 1 || n > n_vocab) {
        return fail(PYMTP_INVALID, "%d candidates of a vocabulary of %d", n, n_vocab);
    }
    if (n_rows == 0) {
        return fail(PYMTP_INVALID, "the last pass has left no logits");
    }
    session->mtp->candidates(of_draft != 0, n_rows, n, ids, values);
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_output_type(const pymtp_session * session, int32_t head, int32_t * type, int64_t * row_bytes) {
    if (head < 0 || head >= session->n_heads) {
        return fail(PYMTP_INVALID, "head %d is not one of %d", head, session->n_heads);
    }
    const ggml_tensor * matrix = session->mtp->output_matrix(head);

    *type      = matrix->type;
    *row_bytes = ggml_row_size(matrix->type, matrix->ne[0]);
    return PYMTP_OK;
}

int32_t pymtp_session_trim(pymtp_session * session, int32_t n_tokens, const int32_t * token,
                           const void * const * rows) try {
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(session->ctx)));
    if (n_tokens < 1 || n_tokens > n_vocab) {
        return fail(PYMTP_INVALID, "a draft vocabulary of %d tokens: 1 to %d are possible", n_tokens, n_vocab);
    }
    if (session->n_heads == 0) {
        return fail(PYMTP_INVALID, "the session does not draft");
    }
    session->has_draft = false;
    session->n_logits  = 0;
    if (!token) {
        // repacked matrices keep rows in groups
        session->mtp->trim(std::min(n_vocab, GGML_PAD(n_tokens, 32)));
        return PYMTP_OK;
    }
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (token[i] < 0 || token[i] >= n_vocab) {
            return fail(PYMTP_INVALID, "token %d is not in the vocabulary of %d", token[i], n_vocab);
        }
    }
    session->mtp->trim(std::vector<llama_token>(token, token + n_tokens),
                       std::vector<const void *>(rows, rows + session->n_heads));
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_bar(pymtp_session * session, int32_t n_tokens, const int32_t * token) try {
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(session->ctx)));
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (token[i] < 0 || token[i] >= n_vocab) {
            return fail(PYMTP_INVALID, "token %d is not in the vocabulary of %d", token[i], n_vocab);
        }
    }
    session->mtp->bar({ token, token + n_tokens });
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_truncate(pymtp_session * session, int32_t seq, int32_t pos) try {
    if (seq < 0 || seq >= (int32_t) llama_n_seq_max(session->ctx) || pos < 0) {
        return fail(PYMTP_INVALID, "cannot truncate sequence %d at position %d", seq, pos);
    }
    auto * memory = llama_get_memory(session->ctx);
    if (pos > 0 && pos <= llama_memory_seq_pos_max(memory, seq)) {
        // a sliding-window cache has let go of what lies behind its window
        const int32_t n_swa = llama_model_n_swa(llama_get_model(session->ctx));
        if (n_swa > 0 && llama_memory_seq_pos_min(memory, seq) > std::max(0, pos - n_swa)) {
            return fail(PYMTP_INVALID, "sequence %d cannot go back to position %d: the window before it is gone", seq,
                        pos);
        }
    }
    // of the snapshots that recurrent states go back to, llama.cpp writes those behind a row of the last pass
    const bool is_tail = pos == 0 || pos > llama_memory_seq_pos_max(memory, seq);
    if (!is_tail && !session->last_pass.empty() && pos <= session->last_pass[seq]) {
        return replay(*session, seq, pos);
    }
    if (!llama_memory_seq_rm(memory, seq, pos, -1)) {
        return replay(*session, seq, pos);
    }
    session->mtp->truncate(seq, pos);
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_copy(pymtp_session * session, int32_t from, int32_t to) try {
    const int32_t n_seq_max = llama_n_seq_max(session->ctx);
    if (from < 0 || from >= n_seq_max || to < 0 || to >= n_seq_max || from == to) {
        return fail(PYMTP_INVALID, "cannot copy sequence %d to %d of %d", from, to, n_seq_max);
    }
    const int32_t status = pymtp_session_truncate(session, to, 0);
    if (status != PYMTP_OK) {
        return status;
    }
    forget_outputs(*session);
    session->mtp->copy(from, to);
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_discard(pymtp_session * session, int32_t seq, int32_t pos, int32_t n) try {
    auto * memory = llama_get_memory(session->ctx);
    if (seq < 0 || seq >= (int32_t) llama_n_seq_max(session->ctx) || pos < 0 || n < 1 ||
        pos + n > llama_memory_seq_pos_max(memory, seq)) {
        return fail(PYMTP_INVALID, "cannot discard %d positions from %d of sequence %d: its last is %d", n, pos, seq,
                    llama_memory_seq_pos_max(memory, seq));
    }
    if (!llama_memory_can_shift(memory)) {
        return fail(PYMTP_INVALID, "the model's memory cannot move positions: no context shift");
    }
    if (llama_memory_seq_pos_min(memory, seq) > 0) {
        return fail(PYMTP_INVALID, "sequence %d no longer has its first positions: no context shift", seq);
    }
    forget_outputs(*session);
    session->mtp->discard(seq, pos, n);
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_save(pymtp_session * session, const uint8_t ** data, size_t * size) try {
    forget_outputs(*session);
    session->state = session->mtp->save_state();

    *data = session->state.data();
    *size = session->state.size();
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

int32_t pymtp_session_restore(pymtp_session * session, const uint8_t * data, size_t size) try {
    forget_outputs(*session);
    const auto before = session->mtp->save_state();
    try {
        session->mtp->restore_state(data, size);
    } catch (const std::exception & err) {
        const std::string why = err.what();
        session->mtp->restore_state(before.data(), before.size());
        return fail(PYMTP_INVALID, "the saved state does not fit this session: %s", why.c_str());
    }
    return PYMTP_OK;
} catch (const std::exception & err) {
    return fail(PYMTP_FAILED, "%s", err.what());
}

void pymtp_session_counters(const pymtp_session * session, pymtp_counters * counters) {
    *counters            = session->mtp->counters;
    counters->t_trunk_us = session->t_trunk_us;
    counters->t_head_us  = session->t_head_us;
}

int64_t pymtp_session_compute_bytes(const pymtp_session * session) {
    return session->mtp->compute_bytes();
}
