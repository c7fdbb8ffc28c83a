#pragma once

// The quantized types, each described once: how a tile of a block becomes bytes, one matrix row to a lane and four values
// to each of its dwords, in the order of the values. Knows the layout of blocks (ggml-common.h), not what is done with
// them.
//
//   MAX            the largest byte; 255: as large as can be, made by V::wide from a signed one
//   OFFSET         what the bytes are larger than the values
//   HAS_MINS       each group has a minimum of its own instead, scaled by min_d
//   each_group     calls with the number of a group and its vectors, 4 values in each
//   scale          what group's products are times
//   factors        scales, or minima, of values [32 * i, 32 * i + 16) and [32 * i + 16, 32 * i + 32)

#include "cpu-few-rows-kernel.h"

namespace {

// signed bytes, 4 to a dword: those of groups 0 to 3, 4 to 7, ...
template <class V, int N_GROUP_> struct few_rows_scales {
    static constexpr int N_GROUP = N_GROUP_;

    typename V::floats d;
    typename V::ints   scales[4];

    auto scale(int group) const { return V::scale(scales[group / 4], group % 4); }

    static auto pair(const typename V::ints * bytes, int i) {
        const int first = N_GROUP == 16 ? 2 * i : i;
        const int last  = N_GROUP == 16 ? 2 * i + 1 : i;
        return V::pair(bytes[first / 4], first % 4, last % 4);
    }

    auto factors(int i) const { return pair(scales, i); }
};

template <class V, class T> struct few_rows_of_256 {
    static void blocks(const few_rows_task & task, const few_rows_tile<V> & x, const char * later,
                       typename V::floats * sums) {
        few_rows_blocks_256<V, T>(task, x, later, sums);
    }
};

template <class V, class T> struct few_rows_of_32 {
    static void blocks(const few_rows_task & task, const few_rows_tile<V> & x, const char * later,
                       typename V::floats * sums) {
        few_rows_blocks_32<V, T>(task, x, later, sums);
    }
};

// what Q4_K and Q5_K begin with: d, min_d, and 6 bits for each of 8 scales and minima
template <class V> struct few_rows_k4_header : few_rows_scales<V, 32> {
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MINS = true;

    typename V::floats min_d;
    typename V::ints   mins[2];

    explicit few_rows_k4_header(const few_rows_tile<V> & x) {
        typename V::ints header[4];
        V::transpose(x, 0, header);
        this->d         = V::low_halves(header[0]);
        min_d           = V::high_halves(header[0]);
        this->scales[0] = V::mask(header[1], 0x3f);
        mins[0]         = V::mask(header[2], 0x3f);
        this->scales[1] = V::join(V::mask(header[3], 0x0f), V::mask(V::right(header[1], 2), 0x30));
        mins[1]         = V::join(V::mask(V::right(header[3], 4), 0x0f), V::mask(V::right(header[2], 2), 0x30));
    }

    auto factors(int i) const { return this->pair(mins, i); }
};

template <class V>
struct few_rows_q4_K : few_rows_k4_header<V>,
                       few_rows_of_256<V, few_rows_q4_K<V>> {
    using block              = block_q4_K;
    static constexpr int MAX = 15;
    using few_rows_k4_header<V>::few_rows_k4_header;

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            typename V::ints q[8];
            typename V::ints w[8];
            V::transpose(x, offsetof(block, qs) + 32 * i, q);
            V::transpose(x, offsetof(block, qs) + 32 * i + 16, q + 4);
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                w[k] = V::mask(q[k], 0x0f);
            }
            call(2 * i, w);
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                w[k] = V::mask(V::right(q[k], 4), 0x0f);
            }
            call(2 * i + 1, w);
        }
    }
};

template <class V>
struct few_rows_q5_K : few_rows_k4_header<V>,
                       few_rows_of_256<V, few_rows_q5_K<V>> {
    using block              = block_q5_K;
    static constexpr int MAX = 31;
    using few_rows_k4_header<V>::few_rows_k4_header;

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
        typename V::ints high[8];
        V::transpose(x, offsetof(block, qh), high);
        V::transpose(x, offsetof(block, qh) + 16, high + 4);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            typename V::ints q[8];
            typename V::ints w[8];
            V::transpose(x, offsetof(block, qs) + 32 * i, q);
            V::transpose(x, offsetof(block, qs) + 32 * i + 16, q + 4);
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                w[k] = V::join(V::mask(q[k], 0x0f), V::mask(V::shift(high[k], 4 - 2 * i), 0x10));
            }
            call(2 * i, w);
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                w[k] = V::join(V::mask(V::right(q[k], 4), 0x0f), V::mask(V::shift(high[k], 3 - 2 * i), 0x10));
            }
            call(2 * i + 1, w);
        }
    }
};

template <class V>
struct few_rows_q6_K : few_rows_scales<V, 16>,
                       few_rows_of_256<V, few_rows_q6_K<V>> {
    using block                    = block_q6_K;
    static constexpr int  MAX      = 63;
    static constexpr int  OFFSET   = 32;
    static constexpr bool HAS_MINS = false;

    explicit few_rows_q6_K(const few_rows_tile<V> & x) {
        V::transpose(x, offsetof(block, scales), this->scales);
        this->d = V::halves(x, offsetof(block, d));
    }

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int        half = i / 2;
            const int        part = i % 2; // of 32 values
            typename V::ints first[4];
            typename V::ints second[4];
            typename V::ints high[4];
            V::transpose(x, offsetof(block, ql) + 64 * half + 16 * part, first);
            V::transpose(x, offsetof(block, ql) + 64 * half + 32 + 16 * part, second);
            V::transpose(x, offsetof(block, qh) + 32 * half + 16 * part, high);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                typename V::ints w[4];
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    const auto & low = j % 2 == 0 ? first[k] : second[k];

                    w[k] = V::join(V::mask(j < 2 ? low : V::right(low, 4), 0x0f),
                                   V::mask(V::shift(high[k], 4 - 2 * j), 0x30));
                }
                call(8 * half + 2 * j + part, w);
            }
        }
    }
};

// 2 bits of each value, in the order of Q2_K and Q3_K
template <class V, class F> static void few_rows_each_2_bits(const few_rows_tile<V> & x, size_t qs, F && call) {
#pragma GCC                             unroll 4
    for (int i = 0; i < 4; ++i) {
        const int        half = i / 2;
        const int        part = i % 2; // of 32 values
        typename V::ints q[4];
        V::transpose(x, qs + 32 * half + 16 * part, q);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            typename V::ints w[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                w[k] = V::mask(V::right(q[k], 2 * j), 0x03);
            }
            call(half, part, j, w);
        }
    }
}

template <class V>
struct few_rows_q3_K : few_rows_scales<V, 16>,
                       few_rows_of_256<V, few_rows_q3_K<V>> {
    using block                    = block_q3_K;
    static constexpr int  MAX      = 7;
    static constexpr int  OFFSET   = 4;
    static constexpr bool HAS_MINS = false;

    explicit few_rows_q3_K(const few_rows_tile<V> & x) {
        typename V::ints s[4]; // the 12 bytes of the scales come after 4 others
        V::transpose(x, offsetof(block, scales) - 4, s);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const auto low  = V::mask(i < 2 ? s[1 + i] : V::right(s[i - 1], 4), 0x0f);
            const auto high = V::mask(V::shift(s[3], 4 - 2 * i), 0x30);
            this->scales[i] = V::subtract_bytes(V::join(low, high), 32);
        }
        this->d = V::halves(x, offsetof(block, d));
    }

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
        typename V::ints high[8];
        V::transpose(x, offsetof(block, hmask), high);
        V::transpose(x, offsetof(block, hmask) + 16, high + 4);
        few_rows_each_2_bits<V>(x, offsetof(block, qs),
                                [&](int half, int part, int j, typename V::ints * w) __attribute__((always_inline)) {
#pragma GCC unroll 4
                                    for (int k = 0; k < 4; ++k) {
                                        w[k] = V::join(w[k],
                                                       V::mask(V::shift(high[4 * part + k], 2 - 4 * half - j), 0x04));
                                    }
                                    call(8 * half + 2 * j + part, w);
                                });
    }
};

template <class V>
struct few_rows_q2_K : few_rows_scales<V, 16>,
                       few_rows_of_256<V, few_rows_q2_K<V>> {
    using block                    = block_q2_K;
    static constexpr int  MAX      = 3;
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MINS = true;

    typename V::floats min_d;
    typename V::ints   mins[4];

    explicit few_rows_q2_K(const few_rows_tile<V> & x) {
        typename V::ints s[4];
        V::transpose(x, offsetof(block, scales), s);
        for (int i = 0; i < 4; ++i) {
            this->scales[i] = V::mask(s[i], 0x0f);
            mins[i]         = V::mask(V::right(s[i], 4), 0x0f);
        }
        V::transpose(x, sizeof(block) - 16, s); // d and min_d are its last 4 bytes
        this->d = V::low_halves(s[3]);
        min_d   = V::high_halves(s[3]);
    }

    auto factors(int i) const { return this->pair(mins, i); }

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
        few_rows_each_2_bits<V>(x, offsetof(block, qs),
                                [&](int half, int part, int j, typename V::ints * w)
                                    __attribute__((always_inline)) { call(8 * half + 2 * j + part, w); });
    }
};

// nibbles: 16 bytes hold the first values in their low halves, and the others in their high ones
template <class V> static void few_rows_nibbles(const few_rows_tile<V> & x, size_t qs, typename V::ints * w) {
    typename V::ints q[4];
    V::transpose(x, qs, q);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        w[k]     = V::mask(q[k], 0x0f);
        w[k + 4] = V::mask(V::right(q[k], 4), 0x0f);
    }
}

// nibbles that are places in a table of values
template <class V>
static void few_rows_looked_up(const few_rows_tile<V> & x, size_t qs, const int8_t * table, typename V::ints * w) {
    const auto values = V::table(table);
    few_rows_nibbles<V>(x, qs, w);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
        w[k] = V::wide(V::look_up(values, w[k]));
    }
}

static const int8_t FEW_ROWS_IQ4[16]   = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const int8_t FEW_ROWS_MXFP4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

template <class V>
struct few_rows_iq4_xs : few_rows_scales<V, 32>,
                         few_rows_of_256<V, few_rows_iq4_xs<V>> {
    using block                    = block_iq4_xs;
    static constexpr int  MAX      = 255;
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MINS = false;

    // of groups 0, 2, 4, 6, and of 1, 3, 5, 7
    explicit few_rows_iq4_xs(const few_rows_tile<V> & x) {
        typename V::ints header[4];
        V::transpose(x, 0, header);
        this->d = V::low_halves(header[0]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            auto bytes = V::mask(V::right(header[1], 4 * i), 0x0f);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                // the 2 bits of group 2 * k + i come from the dword's upper half
                bytes = V::join(bytes,
                                V::mask_dwords(V::shift(header[0], 8 * k + 4 - (16 + 4 * k + 2 * i)), 0x30 << 8 * k));
            }
            this->scales[i] = V::subtract_bytes(bytes, 32);
        }
    }

    auto scale(int group) const { return V::scale(this->scales[group % 2], group / 2); }

    auto factors(int i) const { return V::pair(this->scales[i % 2], i / 2, i / 2); }

    template <class F> void each_group(const few_rows_tile<V> & x, F && call) const {
        for (int i = 0; i < 8; ++i) {
            typename V::ints w[8];
            few_rows_looked_up<V>(x, offsetof(block, qs) + 16 * i, FEW_ROWS_IQ4, w);
            call(i, w);
        }
    }
};

template <class V> struct few_rows_q8_0 : few_rows_of_32<V, few_rows_q8_0<V>> {
    using block                 = block_q8_0;
    static constexpr int MAX    = 255;
    static constexpr int OFFSET = 0;

    static auto d(const few_rows_tile<V> & x) { return V::halves(x, 0); }

    static void unpack(const few_rows_tile<V> & x, typename V::ints * w) {
        V::transpose(x, offsetof(block, qs), w);
        V::transpose(x, offsetof(block, qs) + 16, w + 4);
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
            w[k] = V::wide(w[k]);
        }
    }
};

template <class V> struct few_rows_q4_0 : few_rows_of_32<V, few_rows_q4_0<V>> {
    using block                 = block_q4_0;
    static constexpr int MAX    = 15;
    static constexpr int OFFSET = 8;

    static auto d(const few_rows_tile<V> & x) { return V::halves(x, 0); }

    static void unpack(const few_rows_tile<V> & x, typename V::ints * w) {
        few_rows_nibbles<V>(x, offsetof(block, qs), w);
    }
};

template <class V> struct few_rows_q5_0 : few_rows_of_32<V, few_rows_q5_0<V>> {
    using block                 = block_q5_0;
    static constexpr int MAX    = 31;
    static constexpr int OFFSET = 16;

    static auto d(const few_rows_tile<V> & x) { return V::halves(x, 0); }

    static void unpack(const few_rows_tile<V> & x, typename V::ints * w) {
        typename V::ints header[4]; // the first dword: a bit for each of the 32 values
        V::transpose(x, offsetof(block, qh), header);
        few_rows_nibbles<V>(x, offsetof(block, qs), w);
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
            // bit i to bit 8 * i + 4
            const auto bits = V::mask_dwords(V::right(header[0], 4 * k), 0x0f);
            w[k]            = V::join(w[k], V::mask(V::times_int(bits, 0x02040810), 0x10));
        }
    }
};

template <class V> struct few_rows_iq4_nl : few_rows_of_32<V, few_rows_iq4_nl<V>> {
    using block                 = block_iq4_nl;
    static constexpr int MAX    = 255;
    static constexpr int OFFSET = 0;

    static auto d(const few_rows_tile<V> & x) { return V::halves(x, 0); }

    static void unpack(const few_rows_tile<V> & x, typename V::ints * w) {
        few_rows_looked_up<V>(x, offsetof(block, qs), FEW_ROWS_IQ4, w);
    }
};

template <class V> struct few_rows_mxfp4 : few_rows_of_32<V, few_rows_mxfp4<V>> {
    using block                 = block_mxfp4;
    static constexpr int MAX    = 255;
    static constexpr int OFFSET = 0;

    // half of 2^(e - 127): the table holds twice the values
    static auto d(const few_rows_tile<V> & x) {
        int32_t bits[V::N];
        for (int m = 0; m < V::N; ++m) {
            const int32_t e = (uint8_t) x.at[m][0];
            bits[m]         = e < 2 ? 0x00200000 << e : (e - 1) << 23;
        }
        return V::load_floats(bits);
    }

    static void unpack(const few_rows_tile<V> & x, typename V::ints * w) {
        few_rows_looked_up<V>(x, offsetof(block, qs), FEW_ROWS_MXFP4, w);
    }
};

template <class V> static few_rows_kernel few_rows_find_kernel(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K:
            return few_rows_product<V, few_rows_q2_K<V>>;
        case GGML_TYPE_Q3_K:
            return few_rows_product<V, few_rows_q3_K<V>>;
        case GGML_TYPE_Q4_K:
            return few_rows_product<V, few_rows_q4_K<V>>;
        case GGML_TYPE_Q5_K:
            return few_rows_product<V, few_rows_q5_K<V>>;
        case GGML_TYPE_Q6_K:
            return few_rows_product<V, few_rows_q6_K<V>>;
        case GGML_TYPE_IQ4_XS:
            return few_rows_product<V, few_rows_iq4_xs<V>>;
        case GGML_TYPE_Q4_0:
            return few_rows_product<V, few_rows_q4_0<V>>;
        case GGML_TYPE_Q5_0:
            return few_rows_product<V, few_rows_q5_0<V>>;
        case GGML_TYPE_Q8_0:
            return few_rows_product<V, few_rows_q8_0<V>>;
        case GGML_TYPE_IQ4_NL:
            return few_rows_product<V, few_rows_iq4_nl<V>>;
        case GGML_TYPE_MXFP4:
            return few_rows_product<V, few_rows_mxfp4<V>>;
        default:
            return nullptr;
    }
}

} // namespace
