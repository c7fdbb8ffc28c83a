#pragma once

// Different tokens and their probabilities, which is what a chain leaves of a vocabulary, and what acceptance methods
// compute with them. Knows tokens and numbers; nothing of where they come from.

#include "pymtp-distribution.h"

#include <vector>

struct pymtp_distribution {
    static constexpr const char * what = "distribution";

    std::vector<int32_t> tokens;
    std::vector<double>  probs;

    // 0 if it is not there
    double prob(int32_t token) const;

    // The index of the most likely token, the first of equals; -1 if there is none.
    int32_t best() const;

    // The token at 0 <= uniform < 1 of the cumulated probabilities; -1 if there is none.
    int32_t draw(double uniform) const;

    // the sum of the smaller probability of each token
    double overlap(const pymtp_distribution & other) const;

    // the sum of max(weight * this - source, 0), and a token drawn from these: from this one if all of them are 0
    double  residual_mass(const pymtp_distribution & source, double weight) const;
    int32_t sample_residual(const pymtp_distribution & source, double weight, double uniform) const;
};
