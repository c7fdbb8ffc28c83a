// The C interface of distributions.

#include "pymtp-distribution.h"

#include "distribution.h"
#include "guard.h"

#include <cmath>

int32_t pymtp_distribution_init(int32_t n, const int32_t * token, const double * prob,
                                pymtp_distribution ** distribution) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(distribution, "the distribution") = nullptr;
        pymtp_need_array(token, n, PYMTP_VOCAB_MAX, "tokens");
        pymtp_need_array(prob, n, PYMTP_VOCAB_MAX, "probabilities");
        for (int32_t i = 0; i < n; ++i) {
            if (token[i] < 0 || token[i] >= PYMTP_VOCAB_MAX) {
                return pymtp_fail(PYMTP_INVALID, "a distribution with token %d: 0 to %d are possible", token[i],
                                  PYMTP_VOCAB_MAX - 1);
            }
        }
        auto made    = std::make_unique<pymtp_distribution>();
        made->tokens = { token, token + n };
        made->probs  = { prob, prob + n };
        return pymtp_give(distribution, std::move(made));
    });
}

void pymtp_distribution_free(pymtp_distribution * distribution) {
    pymtp_handles<pymtp_distribution>::free(distribution);
}

int32_t pymtp_distribution_read(const pymtp_distribution * distribution, const int32_t ** token, const double ** prob) {
    return pymtp_guard_or(0, distribution, [&](pymtp_distribution & self) -> int32_t {
        pymtp_need(token, "the tokens")       = self.tokens.data();
        pymtp_need(prob, "the probabilities") = self.probs.data();
        return self.tokens.size();
    });
}

double pymtp_distribution_prob(const pymtp_distribution * distribution, int32_t token) {
    return pymtp_guard_or((double) NAN, distribution, [&](pymtp_distribution & self) { return self.prob(token); });
}

int32_t pymtp_distribution_best(const pymtp_distribution * distribution, double * prob) {
    return pymtp_guard_or(-1, distribution, [&](pymtp_distribution & self) {
        const int32_t best = self.best();
        if (best < 0) {
            return -1;
        }
        pymtp_need(prob, "the probability") = self.probs[best];
        return self.tokens[best];
    });
}

int32_t pymtp_distribution_draw(const pymtp_distribution * distribution, double uniform) {
    return pymtp_guard_or(-1, distribution, [&](pymtp_distribution & self) { return self.draw(uniform); });
}

double pymtp_distribution_overlap(const pymtp_distribution * one, const pymtp_distribution * other) {
    return pymtp_guard_or((double) NAN, [&] {
        const pymtp_hold_both both(one, other);
        return both.one().overlap(both.other());
    });
}

double pymtp_distribution_residual_mass(const pymtp_distribution * target, const pymtp_distribution * source,
                                        double weight) {
    return pymtp_guard_or((double) NAN, [&] {
        const pymtp_hold_both both(target, source);
        return both.one().residual_mass(both.other(), weight);
    });
}

int32_t pymtp_distribution_sample_residual(const pymtp_distribution * target, const pymtp_distribution * source,
                                           double weight, double uniform) {
    return pymtp_guard_or(-1, [&] {
        const pymtp_hold_both both(target, source);
        return both.one().sample_residual(both.other(), weight, uniform);
    });
}
