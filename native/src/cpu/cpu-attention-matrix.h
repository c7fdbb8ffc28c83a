#pragma once

// Keys or values of a cache, and their rows as floats. Knows memory and types, never tensors of a graph.

#include "cpu-vectors.h"

#if defined(MTP_VECTORS)

#    include "ggml-cpu-impl.h"
#    include "ggml-cpu.h"
#    include "simd-mappings.h"

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
        if (type == GGML_TYPE_F32) {
            memcpy(to, row(cell), n * sizeof(float));
        } else {
            ggml_get_type_traits(type)->to_float(row(cell), to, n);
        }
    }
};

} // namespace

#endif
