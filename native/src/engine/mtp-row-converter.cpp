#include "mtp-row-converter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

bool mtp_can_convert_from(ggml_type type) {
    const bool is_type = type >= 0 && type < GGML_TYPE_COUNT;
    return is_type && (type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float);
}

bool mtp_can_convert_to(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q2_K:
        case GGML_TYPE_Q3_K:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS:
        case GGML_TYPE_MXFP4:
            return true;
        default:
            return false;
    }
}

int64_t mtp_convert_rows(ggml_type from, ggml_type to, int64_t n_rows, int64_t n_per_row, const void * rows,
                         void * converted) {
    std::vector<float> numbers(n_per_row);
    for (int64_t i = 0; i < n_rows; ++i) {
        const char * row = (const char *) rows + i * ggml_row_size(from, n_per_row);
        if (from == GGML_TYPE_F32) {
            memcpy(numbers.data(), row, n_per_row * sizeof(float));
        } else {
            ggml_get_type_traits(from)->to_float(row, numbers.data(), n_per_row);
        }
        if (!std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); })) {
            return i;
        }
        ggml_quantize_chunk(to, numbers.data(), (char *) converted + i * ggml_row_size(to, n_per_row), 0, 1, n_per_row,
                            nullptr);
    }
    return n_rows;
}
