#pragma once

// The vectors of the kernels for few rows in plain C++, with a single lane: what each instruction set must compute, bit
// for bit.

#include "cpu-few-rows-types.h"
#include "ggml.h"

#include <cmath>
#include <cstring>

struct scalar_vector {
    static constexpr int N = 1;

    using ints   = int32_t;
    using floats = float;
    using tile   = few_rows_tile<scalar_vector>;

    static ints zero() { return 0; }

    static floats zero_floats() { return 0.0f; }

    static floats set_float(float x) { return x; }

    static floats load_floats(const int32_t * bits) { return few_rows_load<float>(bits); }

    static void transpose(const tile & x, size_t at, ints * to) { memcpy(to, x.at[0] + at, 16); }

    static floats half(ints bits) { return ggml_fp16_to_fp32(bits & 0xffff); }

    static floats halves(const tile & x, size_t at) { return half(few_rows_load<uint16_t>(x.at[0] + at)); }

    static floats low_halves(ints x) { return half(x); }

    static floats high_halves(ints x) { return half(right(x, 16)); }

    static int8_t byte(ints x, int i) { return (int8_t) (uint32_t(x) >> 8 * i); }

    template <class F> static ints each_byte(F && value) {
        uint32_t res = 0;
        for (int i = 0; i < 4; ++i) {
            res |= uint32_t(uint8_t(value(i))) << 8 * i;
        }
        return res;
    }

    static ints mask(ints x, int with) {
        return each_byte([&](int i) { return byte(x, i) & with; });
    }

    static ints mask_dwords(ints x, int dword) { return x & dword; }

    static ints join(ints x, ints y) { return x | y; }

    static ints right(ints x, int n) { return uint32_t(x) >> n; }

    static ints shift(ints x, int n) { return n > 0 ? uint32_t(x) << n : uint32_t(x) >> -n; }

    static ints times_int(ints x, int y) { return uint32_t(x) * uint32_t(y); }

    static ints subtract_bytes(ints x, int with) {
        return each_byte([&](int i) { return byte(x, i) - with; });
    }

    static const int8_t * table(const int8_t * values) { return values; }

    static ints look_up(const int8_t * table, ints places) {
        return each_byte([&](int i) { return table[byte(places, i)]; });
    }

    static ints wide(ints x) { return x; }

    template <int> static constexpr int offset(int other) { return other; }

    static ints scale(ints bytes, int i) { return byte(bytes, i); }

    static ints pair(ints bytes, int first, int second) {
        return uint32_t(uint16_t(byte(bytes, first))) | uint32_t(uint16_t(byte(bytes, second))) << 16;
    }

    static ints add_pairs(ints sum, ints pairs, const int16_t * with) {
        return sum + int16_t(pairs) * with[0] + int16_t(uint32_t(pairs) >> 16) * with[1];
    }

    static ints subtract_times(ints x, ints y, int times) { return x - y * times; }

    template <int MAX> static ints dot_32(const ints * w, const int8_t * y, int32_t begin) {
        return add_scaled<MAX, 32>(begin, w, y, 1);
    }

    template <int, int N_GROUP> static ints add_scaled(ints total, const ints * w, const int8_t * y, ints scale) {
        ints sum = 0;
        for (int i = 0; i < N_GROUP; ++i) {
            sum += byte(w[i / 4], i % 4) * y[i];
        }
        return total + scale * sum;
    }

    static floats to_floats(ints x) { return (float) x; }

    static floats times(floats x, floats y) { return x * y; }

    static floats add_product(floats sum, floats x, floats y) { return std::fma(x, y, sum); }

    static floats subtract_product(floats sum, floats x, floats y) { return std::fma(-x, y, sum); }

    static void store(float * to, floats x, int64_t) { *to = x; }
};
