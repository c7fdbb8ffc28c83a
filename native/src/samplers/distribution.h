// Different tokens and their probabilities.

#pragma once

#include "pymtp-distribution.h"

#include <vector>

struct pymtp_distribution {
    static constexpr const char * what = "distribution";

    std::vector<int32_t> tokens;
    std::vector<double>  probs;
};
