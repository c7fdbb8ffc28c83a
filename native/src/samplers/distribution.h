// Different tokens and their probabilities.

#pragma once

#include "pymtp-distribution.h"

#include <vector>

struct pymtp_distribution {
    std::vector<int32_t> tokens;
    std::vector<double>  probs;
};
