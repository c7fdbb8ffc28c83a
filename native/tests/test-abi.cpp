// Every entry of the C interface with indexes and numbers that do not fit: nothing may crash, what is refused has a
// message, and the session continues as before.
//
//   test-abi MODEL.gguf...      tiny models with MTP layers

#include "check.h"
#include "ggml-backend.h"
#include "llama.h"
#include "pymtp-text.h"
#include "pymtp.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

static constexpr int32_t N_DRAFT = 3;
static constexpr int32_t N_SEQ   = 2;
static constexpr int32_t N_VOCAB = 512;

static const std::vector<int32_t> ODD = {
    -1,        0,         1, 2, 3, 4, 5, 19, 20, 21, 31, 33, 64, 65, 255, 256, 511, 512, 513, 1 << 20, INT32_MAX - 1,
    INT32_MAX, INT32_MIN,
};

static llama_model * g_model;

static pymtp_session * create() {
    auto params            = llama_context_default_params();
    params.n_ctx           = 512;
    params.n_batch         = 128;
    params.n_ubatch        = 32;
    params.n_seq_max       = N_SEQ;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.kv_unified      = true;

    const pymtp_session_params of_session = {
        &params, N_DRAFT, true, PYMTP_HEAD_CONTEXT_TARGET, nullptr, 256, PYMTP_PADDING_ALWAYS,
    };
    pymtp_session * session = nullptr;
    CHECK_EQUAL(pymtp_session_init(g_model, &of_session, &session), +PYMTP_OK);
    return session;
}

static int32_t decode(pymtp_session * session, std::vector<int32_t> token, int32_t begin, int32_t seq) {
    std::vector<int32_t> pos;
    for (size_t i = 0; i < token.size(); ++i) {
        pos.push_back(begin + i);
    }
    const std::vector<int32_t> seqs(token.size(), seq);
    const std::vector<uint8_t> flags(token.size(), PYMTP_ROW_LOGITS | 1 << PYMTP_ROW_FEED_SHIFT);
    return pymtp_session_decode(session, token.size(), token.data(), pos.data(), seqs.data(), flags.data());
}

// a status that the interface knows; with a message unless it is OK
static void check_status(int32_t status) {
    CHECK(status >= PYMTP_OK && status <= PYMTP_FAILED);
    CHECK(status == PYMTP_OK || strlen(pymtp_error_message()) > 0);
}

static const int32_t BEGIN = 0;

// a session with 4 positions of each sequence, and draft logits
static void fill(pymtp_session * session) {
    for (int32_t seq = 0; seq < N_SEQ; ++seq) {
        CHECK_EQUAL(pymtp_session_truncate(session, 1, &seq, &BEGIN), +PYMTP_OK);
        CHECK_EQUAL(decode(session, { 1, 2, 3, 4 }, 0, seq), +PYMTP_OK);
    }
}

static void indexes_that_are_none_are_refused() {
    auto *  session = create();
    int32_t end;
    fill(session);
    for (const int32_t seq : { -1, N_SEQ, INT32_MAX, INT32_MIN }) {
        CHECK_EQUAL(pymtp_session_seen_end(session, 1, 1, &seq, &end), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_session_truncate(session, 1, &seq, &BEGIN), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_session_copy(session, seq, 0), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_session_copy(session, 0, seq), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_session_discard(session, seq, 0, 1), +PYMTP_INVALID);
        CHECK(strstr(pymtp_error_message(), "sequence") != nullptr);
    }
    pymtp_session_info info;
    CHECK_EQUAL(pymtp_session_describe(session, &info), +PYMTP_OK);
    for (const int32_t n : ODD) {
        check_status(pymtp_session_seen_end(session, n, 1, &BEGIN, &end));
        check_status(pymtp_session_discard(session, 0, n, 1));
        check_status(pymtp_session_discard(session, 1, 0, n));
        pymtp_device_reads_rows(nullptr, n);
        pymtp_device_reads_rows(ggml_backend_dev_get(0), n);
    }
    fill(session);
    CHECK_EQUAL(decode(session, { 5 }, 4, 0), +PYMTP_OK);
    pymtp_free(session);
}

static void lists_of_tokens_are_checked() {
    auto *                          session = create();
    const std::vector<char>         matrix(1 << 16);
    const std::vector<const void *> rows(N_DRAFT, matrix.data());
    const int64_t                   n_embd = llama_model_n_embd(g_model);
    const std::vector<int64_t>      bytes(N_DRAFT, 4 * n_embd);
    const std::vector<int64_t>      halves(N_DRAFT, 2 * n_embd);
    const std::vector<int32_t>      twice = { 4, 7, 4 };
    CHECK_EQUAL(pymtp_session_limit_drafts(session, 3, twice.data(), -1, rows.data(), bytes.data()), +PYMTP_INVALID);
    CHECK(strstr(pymtp_error_message(), "token 4 is listed twice") != nullptr);
    CHECK_EQUAL(pymtp_session_limit_drafts(session, 2, twice.data(), -1, nullptr, nullptr), +PYMTP_INVALID);
    for (const int32_t type : { -2, 4, +GGML_TYPE_I32, +GGML_TYPE_COUNT, 1 << 30 }) {
        CHECK_EQUAL(pymtp_session_limit_drafts(session, 1, twice.data(), type, rows.data(), bytes.data()),
                    +PYMTP_INVALID);
    }
    CHECK_EQUAL(pymtp_session_limit_drafts(session, 2, twice.data(), +GGML_TYPE_F16, rows.data(), halves.data()),
                +PYMTP_OK);
    CHECK_EQUAL(pymtp_session_limit_drafts(session, 2, twice.data(), -1, rows.data(), halves.data()), +PYMTP_INVALID);
    for (const int32_t n : ODD) {
        const bool is_token = n >= 0 && n < N_VOCAB;
        CHECK_EQUAL(pymtp_session_ban_tokens(session, 1, &n), is_token ? +PYMTP_OK : +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_session_limit_drafts(session, 1, &n, -1, rows.data(), bytes.data()),
                    is_token ? +PYMTP_OK : +PYMTP_INVALID);
        check_status(pymtp_session_limit_drafts(session, n, nullptr, -1, nullptr, nullptr));
        check_status(pymtp_session_reduce(session, n));
        if (n < 0) {
            CHECK_EQUAL(pymtp_session_ban_tokens(session, n, twice.data()), +PYMTP_INVALID);
        }
        fill(session);
    }
    pymtp_free(session);
}

// rows of the same few odd numbers: some of them fit
static void passes_of_any_rows_do_not_crash() {
    auto *       session = create();
    std::mt19937 rng(7);

    const auto odd = [&] {
        return rng() % 3 ? (int32_t) (rng() % 6) : ODD[rng() % ODD.size()];
    };
    int32_t n_fit = 0;
    for (int32_t i = 0; i < 1500; ++i) {
        if (i % 16 == 0) {
            fill(session);
        }
        const int32_t        n = rng() % 4;
        std::vector<int32_t> token(8);
        std::vector<int32_t> pos(8);
        std::vector<int32_t> seq(8);
        std::vector<uint8_t> flags(8);
        for (int32_t k = 0; k < 8; ++k) {
            token[k] = odd();
            pos[k]   = rng() % 2 ? 4 + k : odd();
            seq[k]   = rng() % 2 ? 0 : odd();
            flags[k] = rng() % 4 ? 3 : odd();
        }
        const int32_t n_rows  = n == 0 ? std::min(8, odd()) : n;
        int32_t       n_steps = odd();
        int32_t       status  = PYMTP_OK;
        if (i % 3 == 0) {
            status = pymtp_session_decode(session, n_rows, token.data(), pos.data(), seq.data(), flags.data());
        } else if (i % 3 == 1) {
            status = pymtp_session_draft(session, odd(), n_steps, n_rows, token.data(), pos.data(), seq.data());
        } else {
            std::vector<int32_t> drafts(8 * N_DRAFT);
            status = pymtp_session_draft_greedy(session, n_rows, token.data(), pos.data(), seq.data(), &n_steps,
                                                drafts.data(), nullptr);
        }
        check_status(status);
        n_fit += status == PYMTP_OK;
    }
    CHECK(n_fit > 20);
    fill(session);
    CHECK_EQUAL(decode(session, { 5 }, 4, 0), +PYMTP_OK);
    pymtp_free(session);
}

static void states_that_end_anywhere_are_refused() {
    auto * session = create();
    fill(session);
    pymtp_state * saved = nullptr;
    size_t        size  = 0;
    CHECK_EQUAL(pymtp_session_save(session, -1, &saved), +PYMTP_OK);
    const uint8_t *            data = pymtp_state_data(saved, &size);
    const std::vector<uint8_t> state(data, data + size);
    pymtp_free(saved);

    CHECK_EQUAL(pymtp_session_restore(session, -1, state.data(), 0), +PYMTP_INVALID);
    for (size_t n = 0; n < state.size(); n += 1 + state.size() / 40) {
        CHECK_EQUAL(pymtp_session_restore(session, -1, state.data(), n), +PYMTP_INVALID);
    }
    CHECK_EQUAL(pymtp_session_restore(session, -1, state.data(), state.size()), +PYMTP_OK);
    CHECK_EQUAL(decode(session, { 5 }, 4, 0), +PYMTP_OK);
    pymtp_free(session);
}

static void sessions_of_any_numbers_are_refused_or_work() {
    for (const int32_t n : ODD) {
        auto params      = llama_context_default_params();
        params.n_ctx     = 256;
        params.n_threads = params.n_threads_batch = 1;

        const pymtp_session_params tries[] = {
            { &params, n, true, PYMTP_HEAD_CONTEXT_TARGET, nullptr, 0, 0 },
            { &params, 1, n, PYMTP_HEAD_CONTEXT_TARGET, nullptr, 0, 0 },
            { &params, 1, true, n, nullptr, 0, 0 },
            { &params, 1, true, PYMTP_HEAD_CONTEXT_TARGET, nullptr, n, 0 },
        };
        for (const auto & one : tries) {
            pymtp_session * session = nullptr;
            check_status(pymtp_session_init(g_model, &one, &session));
            pymtp_free(session);
        }
        params.n_seq_max                   = n;
        const pymtp_session_params many    = { &params, 1, true, PYMTP_HEAD_CONTEXT_TARGET, nullptr, 0, 0 };
        pymtp_session *            session = nullptr;
        check_status(pymtp_session_init(g_model, &many, &session));
        pymtp_free(session);
    }
}

static void distributions_of_any_tokens() {
    const double  probs[] = { 0.5, 0.5 };
    const int32_t small[] = { 3, 1 };
    for (const int32_t n : ODD) {
        const int32_t        tokens[] = { n, 1 };
        pymtp_distribution * one      = nullptr;
        pymtp_distribution * other    = nullptr;
        const bool           fits     = n >= 0 && n < PYMTP_VOCAB_MAX;
        CHECK_EQUAL(pymtp_distribution_init(2, tokens, probs, &one), fits ? +PYMTP_OK : +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_distribution_init(2, small, probs, &other), +PYMTP_OK);
        if (one) {
            CHECK(pymtp_distribution_prob(other, n) <= 0.5);
            CHECK(!std::isnan(pymtp_distribution_residual_mass(one, other, 1.0)));
            for (const double uniform : { 0.0, 0.999, -1.0, 2.0, (double) NAN }) {
                pymtp_distribution_draw(one, other, 1.0, uniform);
                pymtp_distribution_draw(one, nullptr, 1.0, uniform);
            }
        }
        if (n < 0) {
            pymtp_distribution * none = nullptr;
            CHECK_EQUAL(pymtp_distribution_init(n, small, probs, &none), +PYMTP_INVALID);
        }
        pymtp_free(one);
        pymtp_free(other);
    }
}

static pymtp_sampler_params sampler_params() {
    pymtp_sampler_params params = {};
    params.temp                 = 1.0f;
    params.penalty_last_n       = 8;
    params.penalty_repeat       = 1.1f;
    return params;
}

static void samplers_check_what_they_are_given() {
    const auto * vocab = llama_model_get_vocab(g_model);
    for (const int32_t n : ODD) {
        pymtp_sampler * sampler = nullptr;
        auto            params  = sampler_params();
        const bool      is_size = n >= 1 && n <= PYMTP_VOCAB_MAX;
        CHECK_EQUAL(pymtp_sampler_init(n, nullptr, &params, nullptr, &sampler), is_size ? +PYMTP_OK : +PYMTP_INVALID);
        pymtp_free(sampler);

        const float bias    = 1.0f;
        sampler             = nullptr;
        params.n_bias       = 1;
        params.bias_token   = &n;
        params.bias         = &bias;
        const bool is_token = n >= 0 && n < N_VOCAB;
        CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, nullptr, &params, nullptr, &sampler),
                    is_token ? +PYMTP_OK : +PYMTP_INVALID);
        pymtp_free(sampler);

        sampler         = nullptr;
        params          = sampler_params();
        params.n_stages = 1;
        params.stages   = &n;
        check_status(pymtp_sampler_init(N_VOCAB, nullptr, &params, nullptr, &sampler));
        pymtp_free(sampler);
        if (n < 0) {
            params.n_stages = n;
            CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, nullptr, &params, nullptr, &sampler), +PYMTP_INVALID);
            params            = sampler_params();
            params.n_breakers = n;
            CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, vocab, &params, nullptr, &sampler), +PYMTP_INVALID);
        }
    }
}

static void only_dry_alone_is_copied() {
    const auto *    vocab   = llama_model_get_vocab(g_model);
    const int32_t   dry     = PYMTP_STAGE_DRY;
    const int32_t   other   = PYMTP_STAGE_PENALTIES;
    const char *    breaker = "a";
    pymtp_sampler * first   = nullptr;
    pymtp_sampler * copy    = nullptr;
    for (const int32_t * stage : { &dry, &other }) {
        auto params               = sampler_params();
        params.n_stages           = 1;
        params.stages             = stage;
        params.dry_multiplier     = 1.0f;
        params.dry_base           = 1.5f;
        params.dry_penalty_last_n = 8;
        params.n_breakers         = 1;
        params.breakers           = &breaker;
        CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, vocab, &params, nullptr, &first), +PYMTP_OK);
        const int32_t expected = stage == &dry ? +PYMTP_OK : +PYMTP_INVALID;
        CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, vocab, &params, first, &copy), expected);
        pymtp_free(first);
        pymtp_free(copy);
        CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, vocab, &params, first, &copy), +PYMTP_INVALID);
    }
}

static void samplers_take_any_token_and_row() {
    auto *             session   = create();
    const auto         params    = sampler_params();
    pymtp_sampler *    sampler   = nullptr;
    pymtp_sampler *    small     = nullptr;
    const int32_t      penalties = PYMTP_STAGE_PENALTIES;
    std::vector<float> logits(N_VOCAB, 0.5f);

    auto with_stage     = params;
    with_stage.n_stages = 1;
    with_stage.stages   = &penalties;
    CHECK_EQUAL(pymtp_sampler_init(N_VOCAB, nullptr, &with_stage, nullptr, &sampler), +PYMTP_OK);
    CHECK_EQUAL(pymtp_sampler_init(16, nullptr, &with_stage, nullptr, &small), +PYMTP_OK);
    CHECK_EQUAL(pymtp_sampler_constrain(sampler, "root ::= \"a\""), +PYMTP_INVALID);
    fill(session);
    for (const int32_t n : ODD) {
        const bool is_token = n >= 0 && n < N_VOCAB;
        CHECK_EQUAL(pymtp_sampler_accept(sampler, 1, &n), is_token ? +PYMTP_OK : +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_sampler_assume(sampler, n), is_token ? +PYMTP_OK : +PYMTP_INVALID);

        int32_t            token, n_tokens;
        const int32_t      draft = -1;
        const pymtp_logits row   = { session, 0, n, 0, nullptr };
        const pymtp_logits host  = { nullptr, 0, 0, std::min(n, N_VOCAB + 1), logits.data() };
        const pymtp_logits none  = { nullptr, 0, 0, n, nullptr };
        check_status(pymtp_sampler_apply(sampler, &row));
        check_status(pymtp_sampler_sample(sampler, &row, 1, &draft, &n_tokens, &token));
        check_status(pymtp_sampler_sample(sampler, &host, 1, &draft, &n_tokens, &token));
        CHECK_EQUAL(pymtp_sampler_sample(sampler, &none, 1, &draft, &n_tokens, &token), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_sampler_sample(small, &row, 1, &draft, &n_tokens, &token), +PYMTP_INVALID);
        CHECK_EQUAL(pymtp_sampler_accept(sampler, 0, nullptr), +PYMTP_OK);
    }
    pymtp_free(sampler);
    pymtp_free(small);
    pymtp_free(session);
}

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    for (int i = 1; i < argc; ++i) {
        ggml_backend_dev_t no_devices[] = { nullptr };

        auto params     = llama_model_default_params();
        params.load_mtp = true;
        params.devices  = no_devices;
        g_model         = llama_model_load_from_file(argv[i], params);
        CHECK(g_model != nullptr);
        if (!g_model) {
            continue;
        }
        printf("%s\n", argv[i]);

        RUN(indexes_that_are_none_are_refused);
        RUN(lists_of_tokens_are_checked);
        RUN(passes_of_any_rows_do_not_crash);
        RUN(states_that_end_anywhere_are_refused);
        RUN(sessions_of_any_numbers_are_refused_or_work);
        RUN(distributions_of_any_tokens);
        RUN(samplers_check_what_they_are_given);
        RUN(only_dry_alone_is_copied);
        RUN(samplers_take_any_token_and_row);

        llama_model_free(g_model);
    }
    llama_backend_free();
    return g_n_failed > 0;
}
