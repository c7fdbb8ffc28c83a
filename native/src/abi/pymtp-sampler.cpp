// The C interface of the samplers.

#include "pymtp-session.h"
#include "pymtp-text.h"
#include "sampler.h"

#include <algorithm>

static constexpr int32_t N_BREAKERS_MAX = 128; // each takes 7 ms of a vocabulary of 150,000
static constexpr int32_t N_STAGES_MAX   = 64;
static constexpr int32_t N_TEXTS_MAX    = 4096;
static constexpr int32_t N_ROWS_MAX     = 1 << 20;

static void need_texts(const char * const * texts, int32_t n, int32_t n_max, const char * what) {
    pymtp_need_array(texts, n, n_max, what);
    pymtp_refuse_if(std::count(texts, texts + n, nullptr) > 0, "one of the %s is NULL", what);
}

// whatever is an index, or a number of elements
static void need_params(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params) {
    pymtp_refuse_if(n_vocab < 1 || n_vocab > PYMTP_VOCAB_MAX, "a vocabulary of %d tokens: 1 to %d are possible",
                    n_vocab, +PYMTP_VOCAB_MAX);
    pymtp_refuse_if(vocab && llama_vocab_n_tokens(vocab) < n_vocab, "a vocabulary of fewer than %d tokens", n_vocab);
    pymtp_need_array(params.stages, params.n_stages, N_STAGES_MAX, "stages");
    for (int32_t i = 0; i < params.n_stages; ++i) {
        const int32_t stage = params.stages[i];
        pymtp_refuse_if(stage < PYMTP_STAGE_PENALTIES || stage > PYMTP_STAGE_ADAPTIVE_P ||
                            (stage == PYMTP_STAGE_INFILL && !vocab),
                        "stage %d is unknown, or needs a vocabulary", stage);
    }
    pymtp_need_array(params.bias_token, params.n_bias, n_vocab, "tokens with a bias");
    pymtp_need_array(params.bias, params.n_bias, n_vocab, "biases");
    pymtp_need_tokens(params.bias_token, params.n_bias, n_vocab);
    need_texts(params.breakers, params.n_breakers, N_BREAKERS_MAX, "breakers");
    pymtp_refuse_if(params.n_breakers > 0 && !vocab, "breakers need a vocabulary");
}

int32_t pymtp_sampler_init(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params * params,
                           const pymtp_sampler * dry, pymtp_sampler ** sampler) {
    return pymtp_guard([&] {
        pymtp_need(sampler, "the sampler") = nullptr;
        pymtp_need(params, "the parameters");
        need_params(n_vocab, vocab, *params);
        llama_sampler_ptr copied;
        if (dry) {
            copied = pymtp_hold(dry)->copy_dry();
            pymtp_refuse_if(!copied, "the sampler to copy DRY from has other stages");
        }
        pymtp_give(sampler, std::make_unique<pymtp_sampler>(n_vocab, vocab, *params, std::move(copied)));
    });
}

int32_t pymtp_sampler_constrain(pymtp_sampler * sampler, const char * grammar) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        pymtp_refuse_if(!self.vocab, "a grammar needs a vocabulary");
        pymtp_need(grammar, "the grammar");
        self.constrain(sampler_grammar(self.vocab, grammar));
    });
}

int32_t pymtp_sampler_follow(pymtp_sampler * sampler, const pymtp_answer_rules * rules) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        const auto & given = pymtp_need(rules, "the rules");
        pymtp_refuse_if(!self.vocab, "rules of an answer need a vocabulary");
        pymtp_need(given.prefill, "what the prompt has of the answer");
        need_texts(given.words, given.n_words, N_TEXTS_MAX, "words");
        need_texts(given.patterns, given.n_patterns, N_TEXTS_MAX, "patterns");
        need_texts(given.thinking_ends, given.n_thinking_ends, N_TEXTS_MAX, "ends of the thinking");
        pymtp_fails_as(PYMTP_INVALID, "%s", [&] { self.follow(given); });
    });
}

int32_t pymtp_grammar_check(const char * grammar) {
    return pymtp_guard([&] {
        pymtp_need(grammar, "the grammar");
        sampler_grammar_check(grammar);
    });
}

static constexpr const char * NOT_ALLOWED = "the grammar does not allow token %d";

static void accept(pymtp_sampler & sampler, int32_t token) {
    pymtp_need_tokens(&token, 1, sampler.n_vocab);
    pymtp_refuse_if(!sampler.accept(token), NOT_ALLOWED, token);
}

int32_t pymtp_sampler_accept(pymtp_sampler * sampler, int32_t n_tokens, const int32_t * token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        pymtp_need_array(token, n_tokens, INT32_MAX, "tokens");
        self.forget();
        for (int32_t i = 0; i < n_tokens; ++i) {
            accept(self, token[i]);
        }
    });
}

int32_t pymtp_sampler_assume(pymtp_sampler * sampler, int32_t token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        pymtp_need_tokens(&token, 1, self.n_vocab);
        pymtp_refuse_if(!self.assume(token), NOT_ALLOWED, token);
    });
}

template <typename F>
static void with_row_of_session(const pymtp_sampler & sampler, const pymtp_logits & logits, F && function) {
    const pymtp_hold session(logits.session);

    const int32_t n_rows = session->n_rows_left(logits.of_draft != 0);
    pymtp_refuse_if(logits.row < 0 || logits.row >= n_rows, "row %d of logits: the last pass has left %d", logits.row,
                    n_rows);
    auto & engine = *session->mtp;
    pymtp_refuse_if(engine.n_logits(false) > sampler.n_vocab, "a sampler of %d tokens for a vocabulary of %d",
                    sampler.n_vocab, engine.n_logits(false));
    const bool of_draft = logits.of_draft != 0;
    const auto all      = [&] {
        return engine.logits_row(of_draft, logits.row);
    };
    const auto highest = [&](int32_t n, int32_t * ids, float * values) {
        engine.candidates(of_draft, logits.row, n, ids, values);
    };

    // waiting for the device is not sampling
    auto &        counters = engine.counters;
    const int64_t begin    = ggml_time_us() - counters.t_trunk_us - counters.t_head_us;
    function({ engine.n_logits(of_draft), engine.tokens(of_draft), all, highest });
    counters.t_sample_us += ggml_time_us() - counters.t_trunk_us - counters.t_head_us - begin;
}

// Calls a function with the row that the caller means.
template <typename F> static void with_row(const pymtp_sampler & sampler, const pymtp_logits & logits, F && function) {
    try {
        if (logits.session) {
            return with_row_of_session(sampler, logits, function);
        }
        pymtp_refuse_if(logits.n_logits < 1 || logits.n_logits > sampler.n_vocab, "%d logits for a vocabulary of %d",
                        logits.n_logits, sampler.n_vocab);
        pymtp_need_array(logits.logits, logits.n_logits, sampler.n_vocab, "logits");
        const auto all = [&] {
            return logits.logits;
        };
        const auto highest = [&](int32_t n, int32_t * ids, float * values) {
            mtp_candidates_select(logits.logits, logits.n_logits, n, ids, values);
        };
        function({ logits.n_logits, nullptr, all, highest });
    } catch (const sampler_failure & err) {
        pymtp_fail(err.status, "%s", err.what());
    }
}

int32_t pymtp_sampler_apply(pymtp_sampler * sampler, const pymtp_logits * logits) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        pymtp_need(logits, "the logits");
        pymtp_refuse_if(!self.chain.is_drawn(), "mirostat and adaptive-p have no distribution: they pick one token");
        with_row(self, *logits,
                 [&](const sampler_row & row) { logits->of_draft ? self.apply_draft(row) : self.apply_target(row); });
    });
}

int32_t pymtp_sampler_sample(pymtp_sampler * sampler, const pymtp_logits * logits, int32_t n_rows,
                             const int32_t * draft, int32_t * n_tokens, int32_t * token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        int32_t & n = pymtp_need(n_tokens, "the number of tokens") = 0;
        pymtp_need_array(draft, n_rows, N_ROWS_MAX, "drafts");
        pymtp_need_array(token, n_rows, N_ROWS_MAX, "tokens");
        auto at = pymtp_need(logits, "the logits");
        for (; n < n_rows && (n == 0 || token[n - 1] == draft[n - 1]); ++n) {
            with_row(self, at, [&](const sampler_row & row) { token[n] = self.sample(row); });
            self.forget();
            accept(self, token[n]);
            ++at.row;
            at.logits += at.session ? 0 : at.n_logits;
        }
    });
}

int32_t pymtp_sampler_result(const pymtp_sampler * sampler, pymtp_distribution ** distribution) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) {
        pymtp_need(distribution, "the distribution") = nullptr;
        pymtp_give(distribution, std::make_unique<pymtp_distribution>(self.result));
    });
}

int32_t pymtp_sampler_n_candidates(const pymtp_sampler * sampler) {
    return pymtp_guard_or(-1, sampler, [](pymtp_sampler & self) { return self.chain.n_candidates(); });
}
