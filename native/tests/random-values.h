#pragma once

// Random tensors, the same ones in each run of a program.

#include "ggml.h"

#include <cstdint>
#include <random>
#include <vector>

inline std::vector<float> random_values(size_t n) {
    static std::mt19937                   rng(1);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    std::vector<float>                    res(n);
    for (auto & x : res) {
        x = value(rng);
    }
    return res;
}

// as the tensor's data
inline std::vector<uint8_t> random_quantized(ggml_type type, int64_t n_rows, int64_t n_values) {
    const auto           values = random_values(n_rows * n_values);
    std::vector<uint8_t> res(n_rows * ggml_row_size(type, n_values));
    ggml_quantize_chunk(type, values.data(), res.data(), 0, n_rows, n_values, nullptr);
    return res;
}

inline std::vector<uint8_t> random_q8_0(int64_t n_rows, int64_t n_values) {
    return random_quantized(GGML_TYPE_Q8_0, n_rows, n_values);
}
