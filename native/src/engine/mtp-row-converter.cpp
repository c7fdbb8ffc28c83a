#include "mtp-row-converter.h"

#include <cstring>

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

mtp_row_converter::mtp_row_converter(ggml_type from, ggml_type to, int64_t n_per_row) :
    from(from), to(to), numbers(n_per_row) {}

const std::vector<float> & mtp_row_converter::read(const void * row) {
    if (from == GGML_TYPE_F32) {
        memcpy(numbers.data(), row, numbers.size() * sizeof(float));
    } else {
        ggml_get_type_traits(from)->to_float(row, numbers.data(), numbers.size());
    }
    return numbers;
}

void mtp_row_converter::write(void * row) const {
    ggml_quantize_chunk(to, numbers.data(), row, 0, 1, numbers.size(), nullptr);
}
