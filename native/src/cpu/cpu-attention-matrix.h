#pragma once

// Keys or values of a cache, and their rows as floats. Knows memory and types, never tensors of a graph.

#include "cpu-vectors.h"

#if defined(MTP_VECTORS)

#    include "ggml-cpu-impl.h"
#    include "ggml-cpu.h"
#    include "simd-mappings.h"

#    define GGML_COMMON_DECL_CPP
#    include "ggml-common.h"

#    include <algorithm>
#    include <cstring>

namespace {

// the keys or the values of a head, row by row
struct attention_matrix {
    ggml_type    type;
    int64_t      n; // values of a row
    const char * data;
    size_t       stride;

    const char * row(int64_t cell) const { return data + cell * stride; }

    int64_t n_padded() const { return (n + lanes::N - 1) / lanes::N * lanes::N; }

    // vectors can load them as they are
    bool is_plain() const { return (type == GGML_TYPE_F16 || type == GGML_TYPE_F32) && n % lanes::N == 0; }

    bool can_unpack() const { return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float; }

    // of n_padded() floats
    void unpack(int64_t cell, float * to) const {
        std::fill(to + n, to + n_padded(), 0.0f);
        switch (type) {
            case GGML_TYPE_F32:
                memcpy(to, row(cell), n * sizeof(float));
                break;
            case GGML_TYPE_Q8_0:
                for (auto * block = (const block_q8_0 *) row(cell); block < (const block_q8_0 *) row(cell) + n / QK8_0;
                     ++block, to += QK8_0) {
                    scale(block->qs, block->d, to);
                }
                break;
            case GGML_TYPE_Q4_0:
                for (auto * block = (const block_q4_0 *) row(cell); block < (const block_q4_0 *) row(cell) + n / QK4_0;
                     ++block, to += QK4_0) {
                    int8_t values[QK4_0];
                    for (int i = 0; i < QK4_0 / 2; ++i) {
                        values[i]             = (int8_t) ((block->qs[i] & 0x0f) - 8);
                        values[i + QK4_0 / 2] = (int8_t) ((block->qs[i] >> 4) - 8);
                    }
                    scale(values, block->d, to);
                }
                break;
            default:
                ggml_get_type_traits(type)->to_float(row(cell), to, n);
        }
    }

    static void scale(const int8_t * values, ggml_half by, float * to) {
        const lanes d = lanes::of(GGML_CPU_FP16_TO_FP32(by));
        for (int i = 0; i < 32; i += lanes::N) {
            (lanes::load(values + i) * d).store(to + i);
        }
    }
};

} // namespace

#endif
