// The C interface of the samplers: a chain, the history that it looks at, its generators, and a grammar.

#include "pymtp-sampler.h"

#include "distribution.h"
#include "pymtp-session.h"
#include "sampler-chain.h"
#include "sampler-grammar.h"
#include "sampler-rules.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

struct pymtp_breakers {
    static constexpr const char * what = "set of breakers";

    const std::shared_ptr<const sampler_breakers> data; // with the samplers that look at it
};

// longer repetitions than these are no worse: the penalty would not fit a float
static int32_t longest_repetition(const pymtp_sampler_params & params) {
    constexpr float FLOAT_MAX_LOG = 88.7228391f;

    const float exponent = params.dry_base > 1.000001f ? FLOAT_MAX_LOG / std::log(params.dry_base) : 0.0f;
    return exponent >= 1.0f && exponent < 1e9f ? params.dry_allowed_length + (int32_t) exponent : INT32_MAX;
}

static sampler_history::params history_params(int32_t n_vocab, const pymtp_sampler_params & params) {
    const bool has_dry = params.dry_multiplier != 0.0f && params.dry_base >= 1.0f;
    return {
        /* .n_vocab     = */ n_vocab,
        /* .n_penalised = */ params.penalty_last_n,
        /* .n_repeated  = */ has_dry ? params.dry_penalty_last_n : 0,
        /* .allowed     = */ params.dry_allowed_length,
        /* .longest     = */ longest_repetition(params),
    };
}

struct pymtp_sampler {
    static constexpr const char * what = "sampler";

    const int32_t                                 n_vocab;
    const llama_vocab *                           vocab;
    const std::shared_ptr<const sampler_breakers> breakers;

    sampler_chain   chain;
    sampler_history history;
    int32_t         n_assumed = 0; // tokens of the history that are tentative

    std::mt19937 rng;

    // XTC's: for the row after the text, and as it is after each row of the target that was applied since. What a row
    // draws depends on its place in the text only, so rows that are not accepted leave no trace
    std::mt19937             xtc_rng;
    std::deque<std::mt19937> xtc_rng_after;
    std::mt19937             xtc_rng_ahead; // of drafts, which see what the target is going to draw

    sampler_rules rules;
    sampler_rules rules_ahead;           // after the tentative tokens

    std::vector<llama_token_data> mixed; // see apply_target
    pymtp_distribution            result;

    pymtp_sampler(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params,
                  std::shared_ptr<const sampler_breakers> breakers) :
        n_vocab(n_vocab), vocab(vocab), breakers(std::move(breakers)), chain(n_vocab, vocab, params),
        history(history_params(n_vocab, params), this->breakers.get()), rng(params.seed), xtc_rng(params.seed) {}

    sampler_rules & rules_now() { return n_assumed > 0 ? rules_ahead : rules; }

    void           forget();
    std::mt19937 & xtc_rng_of_row();
    void           apply_draft(sampler_row & row);
    void           apply_target(sampler_row & row);
    void           apply_finite(sampler_row & row, std::mt19937 & xtc_rng, const sampler_filter & filter);
    llama_token    sample(sampler_row & row);
    void           set_result(const llama_token_data * data, size_t n);
};

//
// rows
//

struct host_row : sampler_row {
    const float * logits;
    int32_t       n;

    host_row(const float * logits, int32_t n) : logits(logits), n(n) {}

    int32_t n_tokens() const override { return n; }

    void highest(int32_t n_highest, llama_token_data * out) override {
        std::vector<int32_t> ids(n_highest);
        std::vector<float>   values(n_highest);
        mtp_candidates_select(logits, n, n_highest, ids.data(), values.data());
        for (int32_t i = 0; i < n_highest; ++i) {
            out[i] = { ids[i], values[i], 0.0f };
        }
    }

    bool all(llama_token_data * out) override {
        sampler_finite finite;
        for (int32_t i = 0; i < n; ++i) {
            out[i] = { i, logits[i], 0.0f };
            finite.add(logits[i]);
        }
        return finite.all();
    }
};

struct session_row : sampler_row {
    mtp_engine & engine;
    bool         of_draft;
    int32_t      row;

    session_row(mtp_engine & engine, bool of_draft, int32_t row) : engine(engine), of_draft(of_draft), row(row) {}

    int32_t n_tokens() const override { return engine.n_logits(of_draft); }

    void highest(int32_t n, llama_token_data * out) override {
        std::vector<int32_t> ids(n);
        std::vector<float>   values(n);
        engine.candidates(of_draft, row, n, ids.data(), values.data());
        for (int32_t i = 0; i < n; ++i) {
            out[i] = { ids[i], values[i], 0.0f };
        }
    }

    bool all(llama_token_data * out) override {
        const float *  logits = engine.logits_row(of_draft, row);
        sampler_finite finite;
        for (int32_t i = 0; i < n_tokens(); ++i) {
            out[i] = { engine.token_of(of_draft, i), logits[i], 0.0f };
            finite.add(logits[i]);
        }
        return finite.all();
    }
};

//
// what a sampler does
//

void pymtp_sampler::forget() {
    for (; n_assumed > 0; --n_assumed) {
        history.pop();
    }
    rules_ahead = {};
}

// for a row of the target after the tentative tokens
std::mt19937 & pymtp_sampler::xtc_rng_of_row() {
    auto & after = xtc_rng_after;
    after.resize(std::min<size_t>(after.size(), n_assumed));
    after.push_back(after.empty() ? xtc_rng : after.back());
    return after.back();
}

void pymtp_sampler::set_result(const llama_token_data * data, size_t n) {
    result.tokens.resize(n);
    result.probs.resize(n);
    for (size_t i = 0; i < n; ++i) {
        result.tokens[i] = data[i].id;
        result.probs[i]  = data[i].p;
    }
}

// Sets the logits of tokens that are refused to -inf; returns the probability of the others.
static double refuse(const sampler_filter & filter, llama_token_data_array & array) {
    filter.apply(array);
    double sum = 0.0;
    for (size_t i = 0; i < array.size; ++i) {
        sum += array.data[i].logit == -INFINITY ? 0.0f : array.data[i].p;
    }
    return sum;
}

static bool is_refused(const llama_token_data & one) {
    return one.logit == -INFINITY;
}

void pymtp_sampler::apply_draft(sampler_row & row) {
    if (n_assumed == 0) {
        xtc_rng_ahead = xtc_rng;
    }
    const auto filter = rules_now().all();
    if (!chain.apply(row, history, xtc_rng_ahead, rules_now().closing())) {
        set_result(nullptr, 0); // no draft: what the target computes is another matter
        return;
    }

    auto & left = chain.left();
    if (filter.grammar) {
        const double sum = refuse(filter, left);
        if (sum > 0.0) {
            std::for_each(left.data, left.data + left.size, [&](llama_token_data & one) { one.p /= sum; });
        } else {
            chain.apply(row, history, xtc_rng_ahead, filter);
        }
    }
    // perhaps none is left: drafts may be limited to tokens that cannot follow
    left.size = std::remove_if(left.data, left.data + left.size, is_refused) - left.data;
    set_result(left.data, left.size);
}

struct not_finite {};

void pymtp_sampler::apply_finite(sampler_row & row, std::mt19937 & xtc_rng, const sampler_filter & filter) {
    if (!chain.apply(row, history, xtc_rng, filter)) {
        throw not_finite();
    }
}

// With a grammar, as sample() draws: a token that is refused is drawn again, among those that are not.
void pymtp_sampler::apply_target(sampler_row & row) {
    auto &     xtc_rng = xtc_rng_of_row();
    const auto filter  = rules_now().all();
    apply_finite(row, xtc_rng, rules_now().closing());

    auto & left = chain.left();
    set_result(left.data, left.size);
    if (!filter.grammar) {
        return;
    }
    const double sum = refuse(filter, left);
    if (std::none_of(left.data, left.data + left.size, is_refused)) {
        return;
    }

    mixed.assign(left.data, std::remove_if(left.data, left.data + left.size, is_refused));
    apply_finite(row, xtc_rng, filter);
    for (size_t i = 0; i < left.size; ++i) {
        const auto & one  = left.data[i];
        const float  p    = one.p * (1.0 - sum);
        const auto   here = std::find_if(mixed.begin(), mixed.end(), [&](const auto & m) { return m.id == one.id; });
        if (here != mixed.end()) {
            here->p += p;
        } else {
            mixed.push_back({ one.id, one.logit, p });
        }
    }
    set_result(mixed.data(), mixed.size());
}

llama_token pymtp_sampler::sample(sampler_row & row) {
    auto &     xtc_rng = xtc_rng_of_row();
    const auto pick    = [&](const sampler_filter & filter) {
        apply_finite(row, xtc_rng, filter);
        const auto & left = chain.left();
        set_result(left.data, left.size);
        return left.data[chain.is_drawn() ? sampler_draw(left, rng) : left.selected].id;
    };

    const llama_token token = pick(rules_now().closing());
    return rules_now().allows(token) ? token : pick(rules_now().all());
}

//
// interface
//

static llama_sampler_ptr parse_grammar(const llama_vocab * vocab, const char * text) {
    if (!text) {
        pymtp_refuse("no grammar (NULL)");
    }
    try {
        return sampler_grammar(vocab, text);
    } catch (const std::invalid_argument & err) {
        pymtp_refuse("%s", err.what());
    }
}

static constexpr int32_t N_BREAKERS_MAX = 1024; // each is looked for in every token of the vocabulary
static constexpr int32_t N_STAGES_MAX   = 64;
static constexpr int32_t N_TEXTS_MAX    = 4096;

int32_t pymtp_breakers_init(const llama_vocab * vocab, int32_t n, const char * const * text,
                            pymtp_breakers ** breakers) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(breakers, "the breakers") = nullptr;
        pymtp_need_array(text, n, N_BREAKERS_MAX, "breakers");
        if (!vocab) {
            pymtp_refuse("breakers need a vocabulary");
        }
        std::vector<std::string> texts;
        for (int32_t i = 0; i < n; ++i) {
            if (!text[i] || !*text[i]) {
                pymtp_refuse("breaker %d has no text", i);
            }
            texts.push_back(text[i]);
        }
        auto data = std::make_shared<const sampler_breakers>(vocab, texts);
        return pymtp_give(breakers, std::unique_ptr<pymtp_breakers>(new pymtp_breakers{ std::move(data) }));
    });
}

void pymtp_breakers_free(pymtp_breakers * breakers) {
    pymtp_handles<pymtp_breakers>::free(breakers);
}

// whatever is an index, or a number of elements
static void need_params(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params,
                        const sampler_breakers * breakers) {
    if (n_vocab < 1 || n_vocab > PYMTP_VOCAB_MAX) {
        pymtp_refuse("a vocabulary of %d tokens: 1 to %d are possible", n_vocab, +PYMTP_VOCAB_MAX);
    }
    if ((vocab && llama_vocab_n_tokens(vocab) < n_vocab) || (breakers && breakers->n_tokens() < n_vocab)) {
        pymtp_refuse("a vocabulary of fewer than %d tokens", n_vocab);
    }
    pymtp_need_array(params.stages, params.n_stages, N_STAGES_MAX, "stages");
    for (int32_t i = 0; i < params.n_stages; ++i) {
        const int32_t stage = params.stages[i];
        if (stage < PYMTP_STAGE_PENALTIES || stage > PYMTP_STAGE_ADAPTIVE_P ||
            (stage == PYMTP_STAGE_INFILL && !vocab)) {
            pymtp_refuse("stage %d is unknown, or needs a vocabulary", stage);
        }
    }
    pymtp_need_array(params.bias_token, params.n_bias, n_vocab, "tokens with a bias");
    pymtp_need_array(params.bias, params.n_bias, n_vocab, "biases");
    for (int32_t i = 0; i < params.n_bias; ++i) {
        if (params.bias_token[i] < 0 || params.bias_token[i] >= n_vocab) {
            pymtp_refuse("a bias of token %d, which is not in the vocabulary of %d", params.bias_token[i], n_vocab);
        }
    }
}

int32_t pymtp_sampler_init(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params * params,
                           const pymtp_breakers * breakers, pymtp_sampler ** sampler) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(sampler, "the sampler") = nullptr;
        pymtp_need(params, "the parameters");

        std::shared_ptr<const sampler_breakers> data;
        if (breakers) {
            data = pymtp_hold(breakers)->data;
        }
        need_params(n_vocab, vocab, *params, data.get());
        return pymtp_give(sampler, std::make_unique<pymtp_sampler>(n_vocab, vocab, *params, std::move(data)));
    });
}

void pymtp_sampler_free(pymtp_sampler * sampler) {
    pymtp_handles<pymtp_sampler>::free(sampler);
}

int32_t pymtp_sampler_constrain(pymtp_sampler * sampler, const char * grammar) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        if (!self.vocab) {
            pymtp_refuse("a grammar needs a vocabulary");
        }
        parse_grammar(self.vocab, grammar); // names what is wrong, and writes nothing to stderr
        if (!self.rules.constrain(self.vocab, grammar)) {
            pymtp_refuse("llama.cpp refuses the grammar");
        }
        self.forget();
        return PYMTP_OK;
    });
}

static void need_texts(const char * const * texts, int32_t n, const char * what) {
    pymtp_need_array(texts, n, N_TEXTS_MAX, what);
    if (std::count(texts, texts + n, nullptr) > 0) {
        pymtp_refuse("one of the %s is NULL", what);
    }
}

int32_t pymtp_sampler_follow(pymtp_sampler * sampler, const pymtp_answer_rules * rules) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        const auto & given = pymtp_need(rules, "the rules");
        if (!self.vocab) {
            pymtp_refuse("rules of an answer need a vocabulary");
        }
        pymtp_need(given.prefill, "what the prompt has of the answer");
        need_texts(given.words, given.n_words, "words");
        need_texts(given.patterns, given.n_patterns, "patterns");
        need_texts(given.thinking_ends, given.n_thinking_ends, "ends of the thinking");
        if (given.grammar) {
            parse_grammar(self.vocab, given.grammar);
        }
        const auto why = pymtp_thrown([&] { self.rules = sampler_rules(self.vocab, given); });
        if (!why.empty()) {
            return pymtp_fail(PYMTP_INVALID, "%s", why.text);
        }
        self.forget();
        return PYMTP_OK;
    });
}

int32_t pymtp_grammar_check(const char * grammar) {
    return pymtp_guard([&]() -> int32_t {
        parse_grammar(nullptr, grammar);
        return PYMTP_OK;
    });
}

static void need_token(const pymtp_sampler & sampler, int32_t token) {
    if (token < 0 || token >= sampler.n_vocab) {
        pymtp_refuse("token %d is not in the vocabulary", token);
    }
}

int32_t pymtp_sampler_accept(pymtp_sampler * sampler, int32_t n_tokens, const int32_t * token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        pymtp_need_array(token, n_tokens, INT32_MAX, "tokens");
        self.forget();
        for (int32_t i = 0; i < n_tokens; ++i) {
            need_token(self, token[i]);
            if (!self.rules.allows(token[i])) {
                pymtp_refuse("the grammar does not allow token %d", token[i]);
            }
            self.rules.accept(token[i]);
            self.chain.accept(token[i]);
            self.history.push(token[i]);
            if (!self.xtc_rng_after.empty()) {
                self.xtc_rng = self.xtc_rng_after.front();
                self.xtc_rng_after.pop_front();
            }
        }
        return PYMTP_OK;
    });
}

int32_t pymtp_sampler_assume(pymtp_sampler * sampler, int32_t token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        need_token(self, token);
        if (!self.rules.empty()) {
            if (!self.rules_now().allows(token)) {
                pymtp_refuse("the grammar does not allow token %d", token);
            }
            if (self.n_assumed == 0) {
                self.rules_ahead = self.rules.clone();
            }
            self.rules_ahead.accept(token);
        }
        self.history.push(token);
        ++self.n_assumed;
        return PYMTP_OK;
    });
}

int32_t pymtp_sampler_forget(pymtp_sampler * sampler) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        self.forget();
        return PYMTP_OK;
    });
}

template <typename F>
static void with_row_of_session(const pymtp_sampler & sampler, const pymtp_logits & logits, F && function) {
    const pymtp_hold session(logits.session);

    const int32_t n_rows = session->n_rows_left(logits.of_draft != 0);
    if (logits.row < 0 || logits.row >= n_rows) {
        pymtp_refuse("row %d of logits: the last pass has left %d", logits.row, n_rows);
    }
    auto & engine = *session->mtp;
    if (engine.n_logits(false) > sampler.n_vocab) {
        pymtp_refuse("a sampler of %d tokens for a vocabulary of %d", sampler.n_vocab, engine.n_logits(false));
    }
    session_row row(engine, logits.of_draft != 0, logits.row);

    // waiting for the device is not sampling
    auto &        counters = engine.counters;
    const int64_t begin    = ggml_time_us() - counters.t_trunk_us - counters.t_head_us;
    function(row);
    counters.t_sample_us += ggml_time_us() - counters.t_trunk_us - counters.t_head_us - begin;
}

template <typename F>
static void with_any_row(const pymtp_sampler & sampler, const pymtp_logits & logits, F && function) {
    if (logits.session) {
        with_row_of_session(sampler, logits, function);
        return;
    }
    if (logits.n_logits < 1 || logits.n_logits > sampler.n_vocab) {
        pymtp_refuse("%d logits for a vocabulary of %d", logits.n_logits, sampler.n_vocab);
    }
    pymtp_need_array(logits.logits, logits.n_logits, sampler.n_vocab, "logits");
    host_row row(logits.logits, logits.n_logits);
    function(row);
}

// Calls a function with the row that the caller means; returns a status.
template <typename F>
static int32_t with_row(const pymtp_sampler & sampler, const pymtp_logits & logits, F && function) {
    try {
        with_any_row(sampler, logits, function);
        return PYMTP_OK;
    } catch (const not_finite &) {
        return pymtp_fail(PYMTP_NOT_FINITE, "the logits are not finite (NaN, or infinite)");
    }
}

int32_t pymtp_sampler_apply(pymtp_sampler * sampler, const pymtp_logits * logits) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        pymtp_need(logits, "the logits");
        if (!self.chain.is_drawn()) {
            pymtp_refuse("mirostat and adaptive-p have no distribution: they pick one token");
        }
        return with_row(self, *logits,
                        [&](sampler_row & row) { logits->of_draft ? self.apply_draft(row) : self.apply_target(row); });
    });
}

int32_t pymtp_sampler_sample(pymtp_sampler * sampler, const pymtp_logits * logits, int32_t * token) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        pymtp_need(token, "the token");
        return with_row(self, pymtp_need(logits, "the logits"), [&](sampler_row & row) { *token = self.sample(row); });
    });
}

int32_t pymtp_sampler_result(const pymtp_sampler * sampler, pymtp_distribution ** distribution) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        pymtp_need(distribution, "the distribution") = nullptr;
        return pymtp_give(distribution, std::make_unique<pymtp_distribution>(self.result));
    });
}

int32_t pymtp_sampler_n_candidates(const pymtp_sampler * sampler) {
    // repetitions are few, and change from token to token
    constexpr int32_t N_MORE        = 256;
    constexpr int32_t N_REPETITIONS = 16;
    return pymtp_guard_or(0, sampler, [](pymtp_sampler & self) {
        return self.chain.n_candidates(self.history.n_counted_max(N_MORE), N_REPETITIONS);
    });
}

int32_t pymtp_sampler_counts(const pymtp_sampler * sampler, int64_t * n_pruned, int64_t * n_full) {
    return pymtp_guard(sampler, [&](pymtp_sampler & self) -> int32_t {
        pymtp_need(n_pruned, "the number of candidates") = self.chain.n_pruned;
        pymtp_need(n_full, "the number of whole rows")   = self.chain.n_full;
        return PYMTP_OK;
    });
}
