#include "sampler-rules.h"

#include "grammar-work.h"
#include "llama-grammar.h"
#include "reasoning-budget.h"

#include <climits>
#include <cmath>
#include <cstring>
#include <regex>
#include <string>

using tokens = std::vector<llama_token>;

static tokens tokenize(const llama_vocab * vocab, const char * text) {
    return common_tokenize(vocab, text, false, true);
}

// The tokens of what the prompt has of the answer. Some vocabularies put a space before the first, which is not there.
static tokens tokenize_prefill(const llama_vocab * vocab, const std::string & text) {
    tokens found = tokenize(vocab, text.c_str());
    if (!found.empty() && isspace((unsigned char) common_token_to_piece(vocab, found[0])[0]) &&
        !isspace((unsigned char) text[0])) {
        found.erase(found.begin());
    }
    return found;
}

static std::string escaped(const std::string & word) {
    static const std::regex special(R"([.^$|()*+?\[\]{}\\])");
    return std::regex_replace(word, special, "\\$&");
}

static constexpr size_t GRAMMAR_BYTES_MAX = 4 * 1024 * 1024;

static void check_length(const char * grammar) {
    const size_t n_bytes = strlen(grammar);
    if (n_bytes == 0 || n_bytes > GRAMMAR_BYTES_MAX) {
        throw grammar_error(n_bytes == 0 ? "it is empty" : "more than 4 MiB");
    }
}

llama_sampler_ptr sampler_grammar(const llama_vocab * vocab, const char * text) {
    check_length(text);
    return llama_sampler_ptr(llama_sampler_init_grammar(vocab, text, "root"));
}

void sampler_grammar_check(const char * text) {
    check_length(text);
    try {
        llama_grammar_free_impl(llama_grammar_init_impl(nullptr, text, "root", false, nullptr, 0, nullptr, 0));
    } catch (const grammar_error & err) {
        if (!strstr(err.what(), "no vocab")) { // a token in it, and nowhere to find it
            throw;
        }
    }
}

static llama_sampler_ptr lazy_grammar(const llama_vocab * vocab, const pymtp_answer_rules & rules) {
    tokens                   trigger_tokens; // of words that are tokens
    std::vector<std::string> patterns(rules.patterns, rules.patterns + rules.n_patterns);
    for (int32_t i = 0; i < rules.n_words; ++i) {
        const tokens word = tokenize(vocab, rules.words[i]);
        if (word.size() == 1) {
            trigger_tokens.push_back(word[0]);
        } else {
            patterns.push_back(escaped(rules.words[i]));
        }
    }
    check_length(rules.grammar);
    std::vector<const char *> texts;
    for (const auto & pattern : patterns) {
        texts.push_back(pattern.c_str());
    }
    return llama_sampler_ptr(llama_sampler_init_grammar_lazy_patterns(
        vocab, rules.grammar, "root", texts.data(), texts.size(), trigger_tokens.data(), trigger_tokens.size()));
}

// whether what the prompt has of the answer ends amid its thinking
static bool leaves_open(const pymtp_answer_rules & rules) {
    const std::string text(rules.prefill);
    const size_t      begin = text.rfind(rules.thinking_begin);
    if (begin == std::string::npos) {
        return false;
    }
    for (int32_t i = 0; i < rules.n_thinking_ends; ++i) {
        if (text.find(rules.thinking_ends[i], begin) != std::string::npos) {
            return false;
        }
    }
    return true;
}

sampler_rules::sampler_rules(const llama_vocab * vocab, const pymtp_answer_rules & rules) :
    is_lazy(rules.n_words + rules.n_patterns > 0) {
    const tokens prefill = tokenize_prefill(vocab, rules.prefill);
    if (rules.grammar) {
        grammar = is_lazy ? lazy_grammar(vocab, rules) : sampler_grammar(vocab, rules.grammar);
        for (size_t i = 0; !is_lazy && i < prefill.size(); ++i) {
            llama_sampler_accept(grammar.get(), prefill[i]);
        }
    }
    if (!rules.thinking_begin || rules.n_thinking_ends == 0 || !(is_lazy || rules.thinking_budget >= 0)) {
        return;
    }
    std::vector<tokens> ends;
    for (int32_t i = 0; i < rules.n_thinking_ends; ++i) {
        ends.push_back(tokenize(vocab, rules.thinking_ends[i]));
    }
    thinking.reset(common_reasoning_budget_init(vocab, { tokenize(vocab, rules.thinking_begin) }, ends, ends[0],
                                                rules.thinking_budget < 0 ? INT_MAX : rules.thinking_budget));
    // What the prompt has of a thinking that is open counts, but does not close it: llama.cpp takes a line break after
    // the opening for the end, if none may follow.
    const bool is_open = leaves_open(rules);
    for (size_t i = 0; is_open && i < prefill.size() && !closing(); ++i) {
        llama_sampler_accept(thinking.get(), prefill[i]);
    }
}

sampler_rules sampler_rules::clone() const {
    sampler_rules copy;
    copy.grammar.reset(grammar ? llama_sampler_clone(grammar.get()) : nullptr);
    copy.thinking.reset(thinking ? llama_sampler_clone(thinking.get()) : nullptr);
    copy.is_lazy = is_lazy;
    return copy;
}

sampler_filter sampler_rules::closing() const {
    const bool closes = common_reasoning_budget_get_state(thinking.get()) == REASONING_BUDGET_FORCING;
    return { closes ? thinking.get() : nullptr, nullptr };
}

// a lazy one does not look at the thinking, where its triggers are only talked about
bool sampler_rules::applies_grammar() const {
    if (!grammar || !is_lazy || !thinking) {
        return grammar != nullptr;
    }
    const auto state = common_reasoning_budget_get_state(thinking.get());
    return state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
}

bool sampler_rules::allows(llama_token token) const {
    if (!applies_grammar()) {
        return true;
    }
    llama_token_data       one   = { token, 1.0f, 0.0f };
    llama_token_data_array array = { &one, 1, -1, false };
    llama_sampler_apply(grammar.get(), &array);
    return one.logit != -INFINITY;
}

void sampler_rules::accept(llama_token token) {
    const bool followed = applies_grammar();
    if (followed) {
        llama_sampler_accept(grammar.get(), token);
    }
    if (!thinking) {
        return;
    }
    llama_sampler_accept(thinking.get(), token);
    if (!grammar || followed || common_reasoning_budget_get_state(thinking.get()) != REASONING_BUDGET_DONE) {
        return;
    }
    // what has closed the thinking may be a trigger
    if (const auto * end = common_reasoning_budget_get_end_match(thinking.get())) {
        for (const llama_token one : *end) {
            llama_sampler_accept(grammar.get(), one);
        }
    }
}
