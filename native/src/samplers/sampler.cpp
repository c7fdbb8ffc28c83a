#include "sampler.h"

#include <algorithm>

pymtp_sampler::pymtp_sampler(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params,
                             llama_sampler_ptr dry) :
    n_vocab(n_vocab), vocab(vocab), chain(n_vocab, vocab, params), memory(chain.make_memory(std::move(dry))),
    rng(params.seed), xtc_rng(params.xtc_seed) {}

llama_sampler_ptr pymtp_sampler::copy_dry() const {
    return llama_sampler_ptr(chain.remembers_by_dry() ? llama_sampler_clone(llama_sampler_chain_get(memory.get(), 0)) :
                                                        nullptr);
}

// --- the text

void pymtp_sampler::constrain(llama_sampler_ptr grammar) {
    rules.constrain(std::move(grammar));
    forget();
}

void pymtp_sampler::follow(const pymtp_answer_rules & answer) {
    rules = sampler_rules(vocab, answer);
    forget();
}

bool pymtp_sampler::accept(llama_token token) {
    if (!rules.allows(token)) {
        return false;
    }
    rules.accept(token);
    chain.accept(token);
    llama_sampler_accept(memory.get(), token);
    if (!xtc_rng_after.empty()) {
        xtc_rng = xtc_rng_after.front();
        xtc_rng_after.pop_front();
    }
    return true;
}

bool pymtp_sampler::assume(llama_token token) {
    if (!rules_now().allows(token)) {
        return false;
    }
    if (n_assumed == 0) {
        rules_ahead = rules.clone();
        memory_ahead.reset(llama_sampler_clone(memory.get()));
    }
    rules_ahead.accept(token);
    llama_sampler_accept(memory_ahead.get(), token);
    ++n_assumed;
    return true;
}

void pymtp_sampler::forget() {
    n_assumed = 0;
    memory_ahead.reset();
    rules_ahead = {};
}

// --- rows

// for a row of the target after the tentative tokens
std::mt19937 & pymtp_sampler::xtc_rng_of_row() {
    if (!chain.uses_xtc()) {
        return xtc_rng; // nothing is drawn from it, and a copy takes longer than many a chain
    }
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
        sum += sampler_cannot_be(array.data[i]) ? 0.0f : array.data[i].p;
    }
    return sum;
}

void pymtp_sampler::apply_draft(const sampler_row & row) {
    if (n_assumed == 0) {
        xtc_rng_ahead = xtc_rng;
    }
    const auto filter = rules_now().all();
    if (!chain.apply(row, memory_now(), xtc_rng_ahead, rules_now().closing())) {
        set_result(nullptr, 0); // no draft: what the target computes is another matter
        return;
    }

    auto & left = chain.left();
    if (filter.grammar) {
        const double sum = refuse(filter, left);
        if (sum > 0.0) {
            std::for_each(left.data, left.data + left.size, [&](llama_token_data & one) { one.p /= sum; });
        } else {
            chain.apply(row, memory_now(), xtc_rng_ahead, filter);
        }
    }
    // perhaps none is left: drafts may be limited to tokens that cannot follow
    left.size = std::remove_if(left.data, left.data + left.size, sampler_cannot_be) - left.data;
    set_result(left.data, left.size);
}

void pymtp_sampler::apply_finite(const sampler_row & row, std::mt19937 & row_rng, const sampler_filter & filter) {
    if (!chain.apply(row, memory_now(), row_rng, filter)) {
        throw sampler_failure(PYMTP_NOT_FINITE, "the logits are not finite (NaN, or infinite)");
    }
    if (chain.is_blocked()) {
        throw sampler_failure(PYMTP_BLOCKED, "biases, grammar and rules leave no token that can follow");
    }
}

// With a grammar, as sample() draws: a token that is refused is drawn again, among those that are not.
void pymtp_sampler::apply_target(const sampler_row & row) {
    auto &     row_rng = xtc_rng_of_row();
    const auto filter  = rules_now().all();
    apply_finite(row, row_rng, rules_now().closing());

    auto & left = chain.left();
    set_result(left.data, left.size);
    if (!filter.grammar) {
        return;
    }
    const double sum = refuse(filter, left);
    if (std::none_of(left.data, left.data + left.size, sampler_cannot_be)) {
        return;
    }

    mixed.assign(left.data, std::remove_if(left.data, left.data + left.size, sampler_cannot_be));
    apply_finite(row, row_rng, filter);
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

llama_token pymtp_sampler::sample(const sampler_row & row) {
    auto &     row_rng = xtc_rng_of_row();
    const auto pick    = [&](const sampler_filter & filter) {
        apply_finite(row, row_rng, filter);
        const auto & left = chain.left();
        set_result(left.data, left.size);
        return left.data[chain.is_drawn() ? sampler_draw(left, rng) : left.selected].id;
    };

    const llama_token token = pick(rules_now().closing());
    return rules_now().allows(token) ? token : pick(rules_now().all());
}
