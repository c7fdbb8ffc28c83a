// Rounds through the C interface: prompts, drafts, verifying, going back, and what is refused.
//
//   test-session MODEL.gguf[+ASSISTANT.gguf]...      tiny models with MTP layers, or with an assistant

#include "check.h"
#include "head-graph.h"
#include "llama-model.h"
#include "llama.h"
#include "pymtp.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

static llama_model * g_model;
static llama_model * g_assistant;

// Stands before llama.cpp's own graph builder, and counts what the engine's counters are to be held against.
static int64_t g_n_builds;

ggml_cgraph * llama_model::build_graph(const llm_graph_params & params) const {
    using builder = ggml_cgraph * (*)(const llama_model *, const llm_graph_params &);

    static const auto build = (builder) dlsym(RTLD_NEXT, "_ZNK11llama_model11build_graphERK16llm_graph_params");

    ++g_n_builds;
    return build(this, params);
}

// Stand before ggml's function and the engine's: a llama.cpp whose heads read hidden states from an input of another
// name, or from two.
static bool g_renames = false;
static bool g_doubles = false;

ggml_tensor * ggml_set_name(ggml_tensor * tensor, const char * name) {
    static const auto set = (ggml_tensor * (*)(ggml_tensor *, const char *) ) dlsym(RTLD_NEXT, "ggml_set_name");

    const bool is_hidden = strcmp(name, "mtp_h_input") == 0 || strcmp(name, "inp_h") == 0;
    return set(tensor, g_renames && is_hidden ? "h_input" : name);
}

std::unique_ptr<llm_graph_context> head_graph_build(const llama_model & model, const llm_graph_params & params) {
    using builder = std::unique_ptr<llm_graph_context> (*)(const llama_model &, const llm_graph_params &);

    static const auto build = (builder) dlsym(RTLD_NEXT, "_Z16head_graph_buildRK11llama_modelRK16llm_graph_params");

    if (g_doubles) {
        build(model, params);
    }
    return build(model, params);
}

static constexpr int32_t N_DRAFT = 3;

using tokens_t = std::vector<int32_t>;
using logits_t = std::vector<std::vector<float>>; // [n_rows][n_vocab]

struct options {
    int32_t  n_draft  = N_DRAFT;
    uint32_t n_seq    = 1;
    uint32_t n_ctx    = 256;
    uint32_t n_ubatch = 32;
    bool     unified  = true;
    int32_t  padding  = PYMTP_PADDING_AUTO;
};

// The only part that calls the interface.
struct session {
    pymtp_session * handle = nullptr;
    int32_t         status = PYMTP_OK; // of the last call

    explicit session(const options & o = {}) {
        auto params            = llama_context_default_params();
        params.n_ctx           = o.n_ctx;
        params.n_batch         = 128;
        params.n_ubatch        = o.n_ubatch;
        params.n_seq_max       = o.n_seq;
        params.n_threads       = 1; // threads of ggml's own spin: slow on a machine that is busy
        params.n_threads_batch = 1;
        params.kv_unified      = o.unified;
        params.type_k          = GGML_TYPE_F32;
        params.type_v          = GGML_TYPE_F32;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.n_outputs_max   = 64;

        const pymtp_session_params of_session = { &params,     o.n_draft, true,     PYMTP_HEAD_CONTEXT_TARGET,
                                                  g_assistant, 0,         o.padding };

        status = pymtp_session_init(g_model, &of_session, &handle);
    }

    session(const session &) = delete;

    ~session() {
        if (handle) {
            pymtp_free(handle);
        }
    }

    pymtp_session_info info() {
        pymtp_session_info res;
        CHECK_EQUAL(pymtp_session_describe(handle, &res), +PYMTP_OK);
        return res;
    }

    llama_context * context() { return info().context; }

    int32_t next(int32_t seq = 0) { return llama_memory_seq_pos_max(llama_get_memory(context()), seq) + 1; }

    // tokens that continue what is decoded; the logits of all of them
    logits_t decode(const tokens_t & tokens, int32_t seq = 0, bool feed = false) {
        return decode_at(tokens, next(seq), seq, feed);
    }

    logits_t decode_at(const tokens_t & tokens, int32_t begin, int32_t seq = 0, bool feed = false) {
        const auto pos = positions(begin, tokens.size());
        return decode_rows(tokens, pos, tokens_t(tokens.size(), seq), feed);
    }

    logits_t decode_rows(const tokens_t & tokens, const tokens_t & pos, const tokens_t & seq, bool feed = false) {
        const int32_t              n_fed = feed ? info().n_heads : 0;
        const std::vector<uint8_t> flags(tokens.size(), PYMTP_ROW_LOGITS | n_fed << PYMTP_ROW_FEED_SHIFT);

        status = pymtp_session_decode(handle, tokens.size(), tokens.data(), pos.data(), seq.data(), flags.data());
        if (status != PYMTP_OK) {
            return {};
        }
        return read_logits(false);
    }

    // tokens: from `begin` on; all but the last are decoded, and have not fed the heads
    logits_t draft_step(int32_t step, const tokens_t & tokens, int32_t begin, int32_t seq = 0) {
        const auto     pos = positions(begin, tokens.size());
        const tokens_t seqs(tokens.size(), seq);

        status = pymtp_session_draft(handle, step, N_DRAFT, tokens.size(), tokens.data(), pos.data(), seqs.data());
        if (status != PYMTP_OK) {
            return {};
        }
        return read_logits(true);
    }

    tokens_t draft_fused(const tokens_t & tokens, int32_t begin, int32_t n_steps = N_DRAFT, int32_t seq = 0) {
        const auto     pos = positions(begin, tokens.size());
        const tokens_t seqs(tokens.size(), seq);
        tokens_t       drafts(std::max(n_steps, 0));

        status = pymtp_session_draft_greedy(handle, tokens.size(), tokens.data(), pos.data(), seqs.data(), &n_steps,
                                            drafts.data(), nullptr);
        if (status != PYMTP_OK) {
            return {};
        }
        drafts.resize(n_steps);
        return drafts;
    }

    void ban(const tokens_t & tokens) { status = pymtp_session_ban_tokens(handle, tokens.size(), tokens.data()); }

    void truncate(int32_t pos, int32_t seq = 0) { status = pymtp_session_truncate(handle, 1, &seq, &pos); }

    pymtp_counters counters() const {
        pymtp_counters c;
        pymtp_session_counters(handle, &c);
        return c;
    }

  private:
    static tokens_t positions(int32_t begin, size_t n) {
        tokens_t pos(n);
        std::iota(pos.begin(), pos.end(), begin);
        return pos;
    }

    logits_t read_logits(bool of_draft) {
        int32_t       n_vocab;
        const int32_t n_rows = pymtp_session_n_logits(handle, of_draft, &n_vocab);
        logits_t      res(n_rows, std::vector<float>(n_vocab));
        for (int32_t i = 0; i < n_rows; ++i) {
            CHECK_EQUAL(pymtp_session_logits(handle, of_draft, i, 1, n_vocab, res[i].data()), +PYMTP_OK);
        }
        return res;
    }
};

static int32_t best(const std::vector<float> & logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

static bool near(const std::vector<float> & a, const std::vector<float> & b) {
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        if (!(std::fabs(a[i] - b[i]) < 1e-4f)) {
            return false;
        }
    }
    return a.size() == b.size() && !a.empty();
}

// any tokens, the same in every run
static tokens_t text(int32_t n, int32_t seed = 1) {
    tokens_t tokens;
    uint32_t x = seed;
    for (int32_t i = 0; i < n; ++i) {
        x = x * 1664525u + 1013904223u;
        tokens.push_back((x >> 16) % 512);
    }
    return tokens;
}

// Drafts after `history`, all of which is decoded but the last token. n_fed: positions that the heads have seen.
static tokens_t draft_by_steps(session & s, const tokens_t & history, int32_t & n_fed, int32_t seq = 0) {
    tokens_t tokens = history;
    for (int32_t step = 0; step < N_DRAFT; ++step) {
        const int32_t begin  = step == 0 ? n_fed : (int32_t) tokens.size() - 1;
        const auto    logits = s.draft_step(step, { tokens.begin() + begin, tokens.end() }, begin, seq);
        CHECK_EQUAL(s.status, +PYMTP_OK);
        if (logits.size() != 1) {
            return {};
        }
        tokens.push_back(best(logits[0]));
    }
    n_fed = history.size() - 1;
    return { tokens.begin() + history.size(), tokens.end() };
}

// the model's own text after a prompt, token by token
static tokens_t plain_text(const tokens_t & prompt, int32_t n) {
    session  s;
    tokens_t tokens = prompt;
    auto     logits = s.decode(prompt, 0, true);
    for (int32_t i = 0; i < n; ++i) {
        tokens.push_back(best(logits.back()));
        logits = s.decode({ tokens.back() });
    }
    return tokens;
}

static void rounds_give_the_text_of_single_steps() {
    constexpr int32_t N_PROMPT = 45; // two ubatches
    const auto        expected = plain_text(text(N_PROMPT), 60);

    session  s;
    tokens_t history = text(N_PROMPT);
    int32_t  n_fed   = N_PROMPT;
    history.push_back(best(s.decode(history, 0, true).back()));

    for (int32_t round = 0; history.size() + N_DRAFT + 1 < expected.size(); ++round) {
        draft_by_steps(s, history, n_fed);

        // what is verified is scripted: round % (N_DRAFT + 1) right drafts, then wrong ones
        tokens_t rows = { history.back() };
        for (int32_t i = 0; i < N_DRAFT; ++i) {
            const int32_t right = expected[history.size() + i];
            rows.push_back(i < round % (N_DRAFT + 1) ? right : (right + 1) % 512);
        }
        // now and then the heads are not fed, and catch up
        const bool   feed   = round % 3 != 0;
        const size_t begin  = history.size() - 1;
        const auto   logits = s.decode(rows, 0, feed);
        CHECK_EQUAL(logits.size(), rows.size());
        for (size_t i = 0; i < logits.size(); ++i) {
            history.push_back(best(logits[i]));
            CHECK_EQUAL(history.back(), expected[history.size() - 1]);
            if (i + 1 < rows.size() && history.back() != rows[i + 1]) {
                break;
            }
        }
        CHECK_EQUAL(history.size(), begin + 2 + round % (N_DRAFT + 1));
        s.truncate(history.size() - 1);
        CHECK_EQUAL(s.status, +PYMTP_OK);
        CHECK_EQUAL(s.next(), (int32_t) history.size() - 1);
        n_fed = feed ? history.size() - 1 : n_fed;
    }
    CHECK(s.counters().n_head_passes > 20);
}

static void every_graph_that_is_built_is_counted() {
    session    s;
    const auto tokens = text(200);
    s.decode({ tokens.begin(), tokens.begin() + 40 }, 0, true);

    const auto n_counted = [&] {
        return s.counters().n_trunk_builds + s.counters().n_head_builds;
    };

    const int64_t n_hooked_before  = g_n_builds; // with the graphs that llama.cpp builds to size its buffers
    const int64_t n_counted_before = n_counted();
    for (int32_t round = 0, pos = 40; round < 24; ++round, pos += 2) {
        const int32_t n_draft = round % (N_DRAFT + 1);
        if (n_draft > 0) {
            s.draft_fused({ tokens[pos] }, pos, n_draft);
        }
        s.decode({ tokens.begin() + pos, tokens.begin() + pos + 1 + N_DRAFT }, 0, true);
        s.truncate(pos + 2);
    }
    CHECK(n_counted() > n_counted_before);
    CHECK_EQUAL(n_counted() - n_counted_before, g_n_builds - n_hooked_before);
}

static void a_fused_draft_is_the_one_drafted_by_steps() {
    session  one;
    session  other;
    tokens_t history = text(40);
    int32_t  n_fed   = 40;
    one.decode(history, 0, true);
    other.decode(history, 0, true);

    for (int32_t round = 0; round < 8; ++round) {
        history.push_back(round * 17);
        const tokens_t tail(history.begin() + n_fed, history.end());
        const auto     fused = one.draft_fused(tail, n_fed);
        CHECK_EQUAL(one.status, +PYMTP_OK);
        CHECK(fused == draft_by_steps(other, history, n_fed));

        tokens_t rows = { history.back() };
        rows.insert(rows.end(), fused.begin(), fused.end());
        const auto logits = one.decode(rows);
        CHECK(logits == other.decode(rows));

        const int32_t n_accepted = round % (N_DRAFT + 1);
        history.insert(history.end(), fused.begin(), fused.begin() + n_accepted);
        one.truncate(history.size());
        other.truncate(history.size());
    }
}

static void banned_tokens_are_not_drafted() {
    session    s;
    const auto prompt = text(20);
    s.decode(prompt, 0, true);
    const auto free = s.draft_fused({ 5 }, 20);
    CHECK_EQUAL(free.size(), (size_t) N_DRAFT);
    s.ban({ free.at(0) });
    s.truncate(20);
    const auto banned = s.draft_fused({ 5 }, 20);
    CHECK(std::find(banned.begin(), banned.end(), free.at(0)) == banned.end());
    s.ban({});
    s.truncate(20);
    CHECK(s.draft_fused({ 5 }, 20) == free);
    s.ban({ 512 });
    CHECK_EQUAL(s.status, +PYMTP_INVALID);
}

static void going_back_and_decoding_equals_decoding_afresh() {
    session  s;
    session  fresh;
    tokens_t tokens = text(40);
    s.decode(tokens, 0, true);
    // at least one row of a pass stays: llama.cpp keeps recurrent states from the first row on only
    for (const int32_t n_wrong : { 1, 2, 3, 3 }) {
        tokens_t rows = text(1 + n_wrong, 7);
        s.decode(rows);
        tokens.push_back(rows[0]);
        s.truncate(tokens.size());
        CHECK_EQUAL(s.status, +PYMTP_OK);
    }
    fresh.decode(tokens, 0, true);
    CHECK(near(s.decode({ 9 }).at(0), fresh.decode({ 9 }).at(0)));

    s.truncate(0);
    CHECK_EQUAL(s.next(), 0);
    fresh.truncate(0);
    CHECK(s.decode(text(35, 3), 0, true) == fresh.decode(text(35, 3), 0, true));
}

static void drafts_that_are_not_verified_leave_no_trace() {
    session  s;
    session  plain;
    tokens_t history = text(30);
    int32_t  n_fed   = 30;
    s.decode(history, 0, true);
    plain.decode(history, 0, true);
    for (const int32_t n_verified : { 0, 2, 1, 0, 3, 0 }) {
        history.push_back(7 * n_verified + 1);
        tokens_t   rows = { history.back() };
        const auto made = draft_by_steps(s, history, n_fed);
        rows.insert(rows.end(), made.begin(), made.begin() + std::min<size_t>(n_verified, made.size()));
        const auto logits = s.decode(rows);
        const auto single = plain.decode({ history.back() });
        CHECK(!logits.empty() && !single.empty() && near(logits[0], single[0]));
        s.truncate(history.size());
    }
}

static void sequences_do_not_disturb_each_other(bool unified, int32_t padding) {
    constexpr int32_t N_SEQ = 3;

    options o;
    o.n_seq   = N_SEQ;
    o.n_ctx   = 256 * N_SEQ;
    o.unified = unified;
    o.padding = padding;
    session together(o);
    session alone[N_SEQ];

    tokens_t history[N_SEQ];
    int32_t  n_fed[N_SEQ];
    for (int32_t seq = 0; seq < N_SEQ; ++seq) {
        history[seq] = text(20 + 15 * seq, seq + 1);
        n_fed[seq]   = history[seq].size();
        const auto a = together.decode(history[seq], seq, true);
        const auto b = alone[seq].decode(history[seq], 0, true);
        CHECK(!a.empty() && !b.empty() && near(a.back(), b.back()));
    }
    for (int32_t round = 0; round < 12; ++round) {
        tokens_t tokens;
        tokens_t pos;
        tokens_t seqs;
        logits_t expected;
        for (int32_t seq = 0; seq < N_SEQ; ++seq) {
            history[seq].push_back(text(1, 100 * round + seq)[0]);
            int32_t    n_fed_too = n_fed[seq];
            const auto drafts    = draft_by_steps(together, history[seq], n_fed[seq], seq);
            draft_by_steps(alone[seq], history[seq], n_fed_too);

            // all verified in one pass
            tokens_t rows = { history[seq].back() };
            rows.insert(rows.end(), drafts.begin(),
                        drafts.begin() + std::min<size_t>((round + seq) % 4, drafts.size()));
            for (size_t i = 0; i < rows.size(); ++i) {
                tokens.push_back(rows[i]);
                pos.push_back(history[seq].size() - 1 + i);
                seqs.push_back(seq);
            }
            for (const auto & logits : alone[seq].decode(rows)) {
                expected.push_back(logits);
            }
        }
        const auto logits = together.decode_rows(tokens, pos, seqs);
        CHECK_EQUAL(together.status, +PYMTP_OK);
        CHECK_EQUAL(logits.size(), expected.size());
        for (size_t i = 0; i < std::min(logits.size(), expected.size()); ++i) {
            CHECK(near(logits[i], expected[i]));
        }
        for (int32_t seq = 0; seq < N_SEQ; ++seq) {
            together.truncate(history[seq].size(), seq);
            CHECK_EQUAL(together.status, +PYMTP_OK);
            alone[seq].truncate(history[seq].size());
        }
    }
}

static void sequences_of_one_cache_do_not_disturb_each_other() {
    sequences_do_not_disturb_each_other(true, PYMTP_PADDING_NEVER);
    sequences_do_not_disturb_each_other(true, PYMTP_PADDING_ALWAYS);
}

static void sequences_with_streams_do_not_disturb_each_other() {
    sequences_do_not_disturb_each_other(false, PYMTP_PADDING_NEVER);
    sequences_do_not_disturb_each_other(false, PYMTP_PADDING_ALWAYS);
}

static void a_full_context_is_refused_and_changes_nothing() {
    session    s;
    const auto tokens = text(256);
    for (int32_t begin = 0; begin < 256; begin += 64) {
        s.decode({ tokens.begin() + begin, tokens.begin() + begin + 64 }, 0, true);
    }
    const auto before = s.decode_at({ 3 }, 256);
    CHECK_EQUAL(s.status, +PYMTP_FULL);
    CHECK(strlen(pymtp_error_message()) > 0);
    CHECK_EQUAL(s.next(), 256);
    if (g_assistant) {
        return; // needs no room
    }
    s.draft_step(0, { 3 }, 256);
    CHECK_EQUAL(s.status, +PYMTP_FULL);
    s.draft_fused({ 3 }, 256);
    CHECK_EQUAL(s.status, +PYMTP_FULL);

    s.truncate(254);
    if (s.status != PYMTP_OK) {
        return; // recurrent states cannot go back over a prompt
    }
    // a draft gets as long as there is room
    const auto drafts = s.draft_fused({ tokens[254] }, 254);
    CHECK_EQUAL(s.status, +PYMTP_OK);
    CHECK_EQUAL(drafts.size(), 2u);
    CHECK_EQUAL(s.decode({ tokens[254], tokens[255] }).size(), 2u);
}

static void rows_that_do_not_fit_are_refused_and_change_nothing() {
    session s;
    s.decode(text(10), 0, true);
    CHECK_EQUAL(s.status, +PYMTP_OK);

    const auto refused = [&](const char * reason) {
        CHECK_EQUAL(s.status, +PYMTP_INVALID);
        CHECK(strstr(pymtp_error_message(), reason) != nullptr);
        CHECK_EQUAL(s.next(), 10);
    };

    s.decode({});
    refused("0 rows");
    s.decode(text(129));
    refused("129 rows");
    s.decode({ 512 });
    refused("not in the vocabulary");
    s.decode({ -1 });
    refused("not in the vocabulary");
    s.decode_at({ 1 }, 12);
    refused("10 is next");
    s.decode_at({ 1 }, 9);
    refused("10 is next");
    s.decode_at({ 1 }, -1);
    refused("negative");
    s.decode_rows({ 1 }, { 0 }, { 1 });
    refused("sequence 1");
    s.decode_rows({ 1 }, { 0 }, { -1 });
    refused("sequence -1");
    s.decode(text(65));
    refused("65 rows with logits");
    s.draft_step(0, { 512 }, 10);
    refused("not in the vocabulary");
    s.draft_step(0, { 1 }, 12);
    refused("no hidden state");
    s.draft_step(0, { 1, 2 }, 10);
    refused("not decoded");
    s.draft_fused({ 1 }, 10, N_DRAFT + 1);
    refused("a draft of 4");
    s.draft_fused({ 1 }, 10, 0);
    refused("a draft of 0");
    s.truncate(-1);
    refused("cannot truncate");
    s.truncate(3, 1);
    refused("sequence 1 is not one of 1");

    CHECK_EQUAL(s.decode({ 1 }).size(), 1u);
    CHECK_EQUAL(s.status, +PYMTP_OK);
}

static void sessions_that_cannot_be_are_refused() {
    options o;
    o.n_draft = -1;
    CHECK_EQUAL(session(o).status, +PYMTP_INVALID);
    o.n_draft = 33;
    CHECK_EQUAL(session(o).status, +PYMTP_INVALID);
    o.n_draft  = 8;
    o.n_ubatch = 8;
    CHECK_EQUAL(session(o).status, +PYMTP_INVALID);
    CHECK(session(o).handle == nullptr);
}

static void a_session_that_does_not_draft_says_so() {
    options o;
    o.n_draft = 0;
    session s(o);
    CHECK_EQUAL(s.info().memory, +PYMTP_MEMORY_NONE);
    CHECK_EQUAL(s.decode(text(12)).size(), 12u);
    s.draft_step(0, { 1 }, 12);
    CHECK_EQUAL(s.status, +PYMTP_INVALID);
    s.draft_fused({ 1 }, 12);
    CHECK_EQUAL(s.status, +PYMTP_INVALID);
    s.ban({ 1 });
    CHECK_EQUAL(s.status, +PYMTP_OK);
    s.truncate(0);
    CHECK_EQUAL(s.decode(text(12)).size(), 12u);
}

// aborts the n-th graph node from now on
struct failing_backend {
    session & s;
    int32_t   n_left;

    failing_backend(session & s, int32_t n_left) : s(s), n_left(n_left) {
        llama_set_abort_callback(
            s.context(), [](void * p) { return --static_cast<failing_backend *>(p)->n_left < 0; }, this);
    }

    ~failing_backend() { llama_set_abort_callback(s.context(), nullptr, nullptr); }
};

// the states of recurrent layers do not outlive a failed pass: llama.cpp goes back to a copy that it should have written
static void after_a_failed_pass_a_recurrent_sequence_is_gone() {
    if (!llama_model_is_hybrid(g_model)) {
        return;
    }
    session    s;
    session    fresh;
    const auto prompt = text(20);
    s.decode(prompt, 0, true);
    {
        const failing_backend failing(s, 5);
        s.decode({ 1, 2, 3 });
        CHECK_EQUAL(s.status, +PYMTP_FAILED);
        CHECK_EQUAL(s.next(), 0);
    }
    CHECK(s.decode(prompt, 0, true) == fresh.decode(prompt, 0, true));
}

static void recurrent_states_go_back_within_the_last_pass_only() {
    if (!llama_model_is_hybrid(g_model)) {
        return;
    }
    session s;
    s.decode(text(40), 0, true);
    s.decode(text(3, 5));
    s.truncate(40);
    CHECK_EQUAL(s.status, +PYMTP_INVALID);
    CHECK_EQUAL(s.next(), 43);
    s.truncate(41);
    CHECK_EQUAL(s.status, +PYMTP_OK);
    CHECK_EQUAL(s.next(), 41);
}

static void after_a_failed_pass_what_was_decoded_stays() {
    if (llama_model_is_hybrid(g_model)) {
        return;
    }
    for (const int32_t n_nodes : { 0, 5, 20 }) {
        session    s;
        session    fresh;
        const auto prompt = text(20);
        s.decode(prompt, 0, true);
        fresh.decode(prompt, 0, true);
        {
            const failing_backend failing(s, n_nodes);
            s.decode({ 1, 2, 3 });
            CHECK_EQUAL(s.status, +PYMTP_FAILED);
            CHECK_EQUAL(s.next(), 20);
        }
        {
            const failing_backend failing(s, n_nodes);
            s.draft_step(0, { 1 }, 20);
            CHECK_EQUAL(s.status, +PYMTP_FAILED);
            CHECK_EQUAL(s.next(), 20);
        }
        {
            const failing_backend failing(s, n_nodes);
            s.draft_fused({ 1 }, 20);
            CHECK_EQUAL(s.status, +PYMTP_FAILED);
            CHECK_EQUAL(s.next(), 20);
        }
        int32_t  n_fed     = 20;
        int32_t  n_fed_too = 20;
        tokens_t history   = prompt;
        history.push_back(1);
        CHECK(draft_by_steps(s, history, n_fed) == draft_by_steps(fresh, history, n_fed_too));
        const auto a = s.decode({ 1, 2, 3 });
        const auto b = fresh.decode({ 1, 2, 3 });
        CHECK_EQUAL(s.status, +PYMTP_OK);
        CHECK(a.size() == 3 && b.size() == 3 && near(a[2], b[2]));
    }
}

static void heads_whose_hidden_states_cannot_be_tied_are_refused() {
    for (bool * breaks : { &g_renames, &g_doubles }) {
        *breaks = true;
        session s;
        if (g_assistant) { // its graph is built for the first draft
            s.decode(text(20));
            CHECK_EQUAL(s.status, +PYMTP_OK);
            s.draft_fused({ 1 }, 20);
        }
        *breaks = false;
        CHECK_EQUAL(s.status, +PYMTP_FAILED);
        CHECK(strstr(pymtp_error_message(), breaks == &g_renames ? "has 0 inputs named" : "has 2 inputs named"));
    }
    CHECK_EQUAL(session().status, +PYMTP_OK);
}

static void the_library_names_its_sources() {
    CHECK(strstr(pymtp_abi_id(), "llama.cpp ") != nullptr);
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    for (int i = 1; i < argc; ++i) {
        ggml_backend_dev_t no_devices[] = { nullptr };

        auto params     = llama_model_default_params();
        params.load_mtp = true;
        params.devices  = no_devices;

        const std::string files = argv[i];
        const size_t      plus  = files.find('+');

        g_model = llama_model_load_from_file(files.substr(0, plus).c_str(), params);
        g_assistant =
            plus == std::string::npos ? nullptr : llama_model_load_from_file(files.substr(plus + 1).c_str(), params);
        CHECK(g_model != nullptr);
        CHECK(g_assistant != nullptr || plus == std::string::npos);
        if (!g_model) {
            continue;
        }
        printf("%s\n", argv[i]);

        RUN(rounds_give_the_text_of_single_steps);
        RUN(every_graph_that_is_built_is_counted);
        RUN(a_fused_draft_is_the_one_drafted_by_steps);
        RUN(banned_tokens_are_not_drafted);
        RUN(going_back_and_decoding_equals_decoding_afresh);
        RUN(drafts_that_are_not_verified_leave_no_trace);
        RUN(sequences_of_one_cache_do_not_disturb_each_other);
        RUN(sequences_with_streams_do_not_disturb_each_other);
        RUN(a_full_context_is_refused_and_changes_nothing);
        RUN(rows_that_do_not_fit_are_refused_and_change_nothing);
        RUN(sessions_that_cannot_be_are_refused);
        RUN(a_session_that_does_not_draft_says_so);
        RUN(after_a_failed_pass_what_was_decoded_stays);
        RUN(after_a_failed_pass_a_recurrent_sequence_is_gone);
        RUN(recurrent_states_go_back_within_the_last_pass_only);
        RUN(heads_whose_hidden_states_cannot_be_tied_are_refused);
        RUN(the_library_names_its_sources);

        llama_model_free(g_assistant);
        llama_model_free(g_model);
    }
    llama_backend_free();
    return g_n_failed > 0;
}
