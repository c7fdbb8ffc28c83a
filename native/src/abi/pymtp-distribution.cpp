// Distributions, and what acceptance methods compute with them: arithmetic on tokens and their probabilities.

#include "guard.h"
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

int32_t pymtp_distribution_init(int32_t n, const int32_t * token, const double * prob,
                                pymtp_distribution ** distribution) {
    return pymtp_guard([&] {
        pymtp_need(distribution, "the distribution") = nullptr;
        pymtp_need_array(token, n, PYMTP_VOCAB_MAX, "tokens");
        pymtp_need_array(prob, n, PYMTP_VOCAB_MAX, "probabilities");
        pymtp_need_tokens(token, n, PYMTP_VOCAB_MAX);
        auto made    = std::make_unique<pymtp_distribution>();
        made->tokens = { token, token + n };
        made->probs  = { prob, prob + n };
        pymtp_give(distribution, std::move(made));
    });
}

int32_t pymtp_distribution_read(const pymtp_distribution * distribution, const int32_t ** token, const double ** prob) {
    return pymtp_guard_or(0, distribution, [&](pymtp_distribution & self) -> int32_t {
        pymtp_need(token, "the tokens")       = self.tokens.data();
        pymtp_need(prob, "the probabilities") = self.probs.data();
        return self.tokens.size();
    });
}

double pymtp_distribution_prob(const pymtp_distribution * distribution, int32_t token) {
    return pymtp_guard_or((double) NAN, distribution, [&](pymtp_distribution & self) {
        const auto found = std::find(self.tokens.begin(), self.tokens.end(), token);
        return found == self.tokens.end() ? 0.0 : self.probs[found - self.tokens.begin()];
    });
}

int32_t pymtp_distribution_best(const pymtp_distribution * distribution, double * prob) {
    return pymtp_guard_or(-1, distribution, [&](pymtp_distribution & self) {
        const auto best = std::max_element(self.probs.begin(), self.probs.end());
        if (best == self.probs.end()) {
            return -1;
        }
        pymtp_need(prob, "the probability") = *best;
        return self.tokens[best - self.probs.begin()];
    });
}

// the token at a place of the cumulated weights, of which there is at least one; one without weight is never meant
static int32_t draw(const std::vector<int32_t> & tokens, const std::vector<double> & weights, double uniform) {
    const double place = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);

    double cumulated = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
        cumulated += weights[i];
        if (place < cumulated) {
            return tokens[i];
        }
    }
    return tokens.empty() ? -1 : tokens[weights.size() - 1];
}

// Calls a function with the probability of each of one's tokens and that in the other, in order. It must not throw.
template <typename F>
static void for_both(const pymtp_distribution & one, const pymtp_distribution * source, F && function) {
    // by token, and 0 between two calls: vocabularies are large and distributions mostly small
    thread_local std::vector<double> other_probs;

    const auto   other  = pymtp_hold(source).share();
    const auto & tokens = other->tokens;
    if (!tokens.empty()) {
        const size_t n = *std::max_element(tokens.begin(), tokens.end()) + 1;
        other_probs.resize(std::max(other_probs.size(), n));
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        other_probs[tokens[i]] = other->probs[i];
    }
    for (size_t i = 0; i < one.tokens.size(); ++i) {
        const size_t token = one.tokens[i];
        function(one.probs[i], token < other_probs.size() ? other_probs[token] : 0.0);
    }
    for (const int32_t token : tokens) {
        other_probs[token] = 0.0;
    }
}

double pymtp_distribution_residual_mass(const pymtp_distribution * target, const pymtp_distribution * source,
                                        double weight) {
    return pymtp_guard_or((double) NAN, [&] {
        double sum = 0.0;
        for_both(*pymtp_hold(target).share(), source,
                 [&](double t, double s) { sum += std::max(weight * t - s, 0.0); });
        return sum;
    });
}

int32_t pymtp_distribution_draw(const pymtp_distribution * target, const pymtp_distribution * source, double weight,
                                double uniform) {
    return pymtp_guard_or(-1, [&] {
        thread_local std::vector<double> residual;
        residual.clear();
        const auto from = pymtp_hold(target).share();
        if (source) {
            residual.reserve(from->tokens.size());
            for_both(*from, source, [&](double t, double s) { residual.push_back(std::max(weight * t - s, 0.0)); });
        }
        // there is none, or they are the same but for rounding
        const bool is_nothing = std::all_of(residual.begin(), residual.end(), [](double r) { return r == 0.0; });
        return draw(from->tokens, is_nothing ? from->probs : residual, uniform);
    });
}
