#pragma once

// Types of weights, as a lane of a warp unpacks them: of a part of a matrix row of 64 values, which are two of the blocks
// that activations come in, all 8 words of 4 values of each, or (for tensor cores, where four lanes share a part) the t-th
// and the one that is 4 after it. A description T<W>, of W words, knows
//
//   N_VALUES, SIZE        of a block of weights; of blocks of 32 values: of two
//   GROUP                 values that have a scale together: 32, or 16 with scales that are integers
//   OFFSET                what all values are too large by
//   HAS_MIN               whether what min() says is subtracted from each value
//   activations(part, b)  which block of 32 of its block the lane's block b is
//   T(block, part, t)     reads it, from shared memory
//   unpack(b, values)     W words of values as bytes
//   factor(b)             of GROUP 32: the scale
//   scale(b, g), factor() of GROUP 16: an integer for each half of a block, and a factor for all
//
// Knows shared memory, no tensors and no threads; cuda-few-rows-kernel.cuh multiplies.

#include <cstdint>

#ifdef __CUDACC__
#    define FEW_ROWS_FUNCTION      __device__ __forceinline__
#    define FEW_ROWS_HOST_FUNCTION __host__ __device__ __forceinline__
#    define FEW_ROWS_UNROLL        _Pragma("unroll")
#else
#    define FEW_ROWS_FUNCTION      inline
#    define FEW_ROWS_HOST_FUNCTION inline
#    define FEW_ROWS_UNROLL
#endif

static constexpr int FEW_ROWS_PART  = 64; // values of a lane
static constexpr int FEW_ROWS_WORDS = 8;  // integers of a block of 32 values

struct alignas(8) few_rows_2_words {
    int of[2];
};

struct alignas(16) few_rows_4_words {
    int of[4];
};

// N integers from an address that is odd bytes after a multiple of 4
template <int N> static FEW_ROWS_FUNCTION void few_rows_load_odd(int (&to)[N], const char * from, unsigned odd) {
    const int * words = (const int *) (from - odd);
    int         word  = words[0];
    FEW_ROWS_UNROLL
    for (int i = 0; i < N; ++i) {
        const int next = odd == 0 ? 0 : words[i + 1];
        to[i]          = (int) __byte_perm(word, next, 0x3210 + 0x1111 * odd);
        word           = odd == 0 && i + 1 < N ? words[i + 1] : next;
    }
}

// N integers from an address of which ALIGN is a divisor
template <int ALIGN, int N> static FEW_ROWS_FUNCTION void few_rows_load(int (&to)[N], const char * from) {
    if constexpr (ALIGN >= 16 && N % 4 == 0) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < N; i += 4) {
            const few_rows_4_words words = *(const few_rows_4_words *) (from + 4 * i);
            to[i]                        = words.of[0];
            to[i + 1]                    = words.of[1];
            to[i + 2]                    = words.of[2];
            to[i + 3]                    = words.of[3];
        }
    } else if constexpr (ALIGN >= 8 && N % 2 == 0) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < N; i += 2) {
            const few_rows_2_words words = *(const few_rows_2_words *) (from + 4 * i);
            to[i]                        = words.of[0];
            to[i + 1]                    = words.of[1];
        }
    } else if constexpr (ALIGN >= 4) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < N; ++i) {
            to[i] = ((const int *) from)[i];
        }
    } else {
        few_rows_load_odd(to, from, (unsigned) ((uintptr_t) from & 3));
    }
}

// which of a block's words is the j-th of W
template <int W> static FEW_ROWS_FUNCTION int few_rows_word(int j, int t) {
    return W == FEW_ROWS_WORDS ? j : t + 4 * j;
}

// N of a block's words: all of them, or one for each 4
template <int ALIGN, int N> static FEW_ROWS_FUNCTION void few_rows_load_words(int (&to)[N], const char * from, int t) {
    if constexpr (N >= 4) {
        few_rows_load<ALIGN>(to, from);
    } else {
        FEW_ROWS_UNROLL
        for (int j = 0; j < N; ++j) {
            int word[1];
            few_rows_load<ALIGN>(word, from + 4 * (t + 4 * j));
            to[j] = word[0];
        }
    }
}

// the same of the b-th of a pair of blocks, of which only the second one's values are aligned
template <int N> static FEW_ROWS_FUNCTION void few_rows_load_pair(int (&to)[N], const char * from, int b, int t) {
    const unsigned odd = b == 0 ? 2 : 0;
    if constexpr (N >= 4) {
        few_rows_load_odd(to, from, odd);
    } else {
        FEW_ROWS_UNROLL
        for (int j = 0; j < N; ++j) {
            int word[1];
            few_rows_load_odd(word, from + 4 * (t + 4 * j), odd);
            to[j] = word[0];
        }
    }
}

static FEW_ROWS_FUNCTION float few_rows_half(unsigned bits) {
    return __half2float(__ushort_as_half((unsigned short) bits));
}

static FEW_ROWS_FUNCTION float few_rows_half_at(const char * from) {
    return few_rows_half(*(const unsigned short *) from);
}

// a byte of an integer
static FEW_ROWS_FUNCTION int few_rows_byte(unsigned word, int i) {
    return (int) (word >> (8 * i) & 0xff);
}

// 16 bytes of 4 bits are 32 values: the low halves, then the high ones
template <int W> static FEW_ROWS_FUNCTION void few_rows_halves(const int * packed, int (&values)[W]) {
    FEW_ROWS_UNROLL
    for (int i = 0; i < W / 2; ++i) {
        values[i]         = packed[i] & 0x0f0f0f0f;
        values[i + W / 2] = packed[i] >> 4 & 0x0f0f0f0f;
    }
}

// the same with values from a table of 16 bytes
template <int W>
static FEW_ROWS_FUNCTION void few_rows_look_up(unsigned t0, unsigned t1, unsigned t2, unsigned t3, const int * packed,
                                               int (&values)[W]) {
    FEW_ROWS_UNROLL
    for (int i = 0; i < W / 2; ++i) {
        const unsigned places = packed[i] & 0x77777777;
        const unsigned half   = 0x32103210 | (packed[i] & 0x88888888u) >> 1; // of the table
        const unsigned first  = __byte_perm(__byte_perm(t0, t1, places), __byte_perm(t2, t3, places), half);
        const unsigned second =
            __byte_perm(__byte_perm(t0, t1, places >> 16), __byte_perm(t2, t3, places >> 16), half >> 16);
        values[i]         = (int) __byte_perm(first, second, 0x6420);
        values[i + W / 2] = (int) __byte_perm(first, second, 0x7531);
    }
}

// --- blocks of 32 values, in pairs ---

struct few_rows_of_32 {
    static constexpr int  N_VALUES = 64;
    static constexpr int  GROUP    = 32;
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MIN  = false;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int, int b) { return b; }
};

template <int W = FEW_ROWS_WORDS> struct few_rows_q8_0 : few_rows_of_32 {
    static constexpr int SIZE = 68;

    int   words[2][W];
    float factors[2];

    FEW_ROWS_FUNCTION few_rows_q8_0(const char * block, int, int t = 0) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            few_rows_load_pair(words[b], block + 34 * b + 2, b, t);
            factors[b] = few_rows_half_at(block + 34 * b);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            values[i] = words[b][i];
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return factors[b]; }
};

// a scale, and 4 bits of each value
template <int W> struct few_rows_18_bytes : few_rows_of_32 {
    static constexpr int SIZE = 36;

    int   packed[2][W / 2];
    float factors[2];

    FEW_ROWS_FUNCTION few_rows_18_bytes(const char * block, int t) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            few_rows_load_pair(packed[b], block + 18 * b + 2, b, t);
            factors[b] = few_rows_half_at(block + 18 * b);
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return factors[b]; }
};

template <int W = FEW_ROWS_WORDS> struct few_rows_q4_0 : few_rows_18_bytes<W> {
    static constexpr int OFFSET = 8;

    FEW_ROWS_FUNCTION few_rows_q4_0(const char * block, int, int t = 0) : few_rows_18_bytes<W>(block, t) {}

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const { few_rows_halves(this->packed[b], values); }
};

// 4 bits of each value, and after the scale one bit of each
template <int W = FEW_ROWS_WORDS> struct few_rows_q5_0 : few_rows_of_32 {
    static constexpr int SIZE   = 44;
    static constexpr int OFFSET = 16;

    const int t;
    int       packed[2][W / 2];
    int       high[2][1];
    float     factors[2];

    FEW_ROWS_FUNCTION few_rows_q5_0(const char * block, int, int t = 0) : t(t) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            few_rows_load_pair(high[b], block + 22 * b + 2, b, 0);
            few_rows_load_pair(packed[b], block + 22 * b + 6, b, t);
            factors[b] = few_rows_half_at(block + 22 * b);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        few_rows_halves(packed[b], values);
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            const unsigned bits = (unsigned) high[b][0] >> (4 * few_rows_word<W>(i, t)) & 0x0f;
            values[i] |= (int) ((bits * 0x00204081 & 0x01010101) << 4); // one to each byte
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return factors[b]; }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
template <int W> static FEW_ROWS_FUNCTION void few_rows_look_up_iq4(const int * packed, int (&values)[W]) {
    few_rows_look_up(0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535, packed, values);
}

template <int W = FEW_ROWS_WORDS> struct few_rows_iq4_nl : few_rows_18_bytes<W> {
    FEW_ROWS_FUNCTION few_rows_iq4_nl(const char * block, int, int t = 0) : few_rows_18_bytes<W>(block, t) {}

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const { few_rows_look_up_iq4(this->packed[b], values); }
};

// an exponent, then values, at any even address
template <int W = FEW_ROWS_WORDS> struct few_rows_mxfp4 : few_rows_of_32 {
    static constexpr int SIZE = 34;

    const char * block;
    const int    t;

    FEW_ROWS_FUNCTION few_rows_mxfp4(const char * block, int, int t = 0) : block(block), t(t) {}

    // 0 1 2 3 4 6 8 12 and the same negative: twice the values
    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        int bytes[W / 2];
        few_rows_load_words<1>(bytes, block + 17 * b + 1, t);
        few_rows_look_up(0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc, bytes, values);
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        const int exponent = *(const unsigned char *) (block + 17 * b);
        return 0.5f * __int_as_float(exponent == 0 ? 0x00400000 : exponent << 23);
    }
};

// --- blocks of 256 values, a quarter for a lane ---

struct few_rows_of_256 {
    static constexpr int  N_VALUES = 256;
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MIN  = false;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int part, int b) { return 2 * part + b; }
};

// Q4_K and Q5_K begin with two factors, and 8 scales and 8 minima of 6 bits
struct few_rows_k4 : few_rows_of_256 {
    static constexpr int  GROUP   = 32;
    static constexpr bool HAS_MIN = true;

    float    d;
    float    min_d;
    unsigned scales; // of the lane's blocks, in bytes
    unsigned mins;

    FEW_ROWS_FUNCTION few_rows_k4(const char * block, int part) {
        int words[4];
        few_rows_load<16>(words, block);
        d     = few_rows_half(words[0]);
        min_d = few_rows_half((unsigned) words[0] >> 16);

        const int      shift  = part % 2 * 16;
        const unsigned first  = (unsigned) words[1] >> shift;
        const unsigned second = (unsigned) words[2] >> shift;
        const unsigned third  = (unsigned) words[3] >> shift;

        scales = part < 2 ? first & 0x3f3f : (third & 0x0f0f) | (first >> 2 & 0x3030);
        mins   = part < 2 ? second & 0x3f3f : (third >> 4 & 0x0f0f) | (second >> 2 & 0x3030);
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return d * (float) few_rows_byte(scales, b); }

    FEW_ROWS_FUNCTION float min(int b) const { return min_d * (float) few_rows_byte(mins, b); }
};

template <int W = FEW_ROWS_WORDS> struct few_rows_q4_K : few_rows_k4 {
    static constexpr int SIZE = 144;

    int packed[W];

    FEW_ROWS_FUNCTION few_rows_q4_K(const char * block, int part, int t = 0) : few_rows_k4(block, part) {
        few_rows_load_words<16>(packed, block + 16 + 32 * part, t);
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            values[i] = packed[i] >> (4 * b) & 0x0f0f0f0f;
        }
    }
};

template <int W = FEW_ROWS_WORDS> struct few_rows_q5_K : few_rows_k4 {
    static constexpr int SIZE = 176;

    int packed[W];
    int high[W];

    FEW_ROWS_FUNCTION few_rows_q5_K(const char * block, int part, int t = 0) : few_rows_k4(block, part) {
        few_rows_load_words<16>(high, block + 16, t);
        few_rows_load_words<16>(packed, block + 48 + 32 * part, t);
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            high[i] >>= 2 * part;
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            values[i] = (packed[i] >> (4 * b) & 0x0f0f0f0f) | (high[i] >> b & 0x01010101) << 4;
        }
    }
};

// the lane's blocks are 64 values apart, and have the same bytes
template <int W = FEW_ROWS_WORDS> struct few_rows_q6_K : few_rows_of_256 {
    static constexpr int SIZE   = 210;
    static constexpr int GROUP  = 16;
    static constexpr int OFFSET = 32;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int part, int b) { return part / 2 * 4 + part % 2 + 2 * b; }

    const char * block;
    int          part;
    int          packed[W];
    int          high[W];

    FEW_ROWS_FUNCTION few_rows_q6_K(const char * block, int part, int t = 0) : block(block), part(part) {
        few_rows_load_words<2>(packed, block + 32 * part, t);
        few_rows_load_words<2>(high, block + 128 + part / 2 * 32, t);
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            high[i] >>= part % 2 * 2;
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            values[i] = (packed[i] >> (4 * b) & 0x0f0f0f0f) | (high[i] >> (4 * b) & 0x03030303) << 4;
        }
    }

    FEW_ROWS_FUNCTION int scale(int b, int g) const {
        return *(const signed char *) (block + 192 + 2 * activations(part, b) + g);
    }

    FEW_ROWS_FUNCTION float factor() const { return few_rows_half_at(block + 208); }
};

// 2 bits and 1 bit of a value, and scales of 4 bits and 2 bits
template <int W = FEW_ROWS_WORDS> struct few_rows_q3_K : few_rows_of_256 {
    static constexpr int SIZE   = 110;
    static constexpr int GROUP  = 16;
    static constexpr int OFFSET = 4;

    const char * block;
    int          packed[W];
    int          high[W];
    unsigned     scales; // 4 bytes, 32 too large

    FEW_ROWS_FUNCTION few_rows_q3_K(const char * block, int part, int t = 0) : block(block) {
        few_rows_load_words<2>(high, block, t);
        few_rows_load_words<2>(packed, block + 32 + part / 2 * 32, t);
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            high[i] >>= 2 * part;
            packed[i] >>= part % 2 * 4;
        }
        int words[3];
        few_rows_load<2>(words, block + 96);
        const unsigned low = (unsigned) (part % 2 ? words[1] : words[0]) >> (part / 2 * 4);
        scales             = (low & 0x0f0f0f0f) | ((unsigned) words[2] >> (2 * part) & 0x03030303) << 4;
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < W; ++i) {
            values[i] = (packed[i] >> (2 * b) & 0x03030303) | (high[i] >> b & 0x01010101) << 2;
        }
    }

    FEW_ROWS_FUNCTION int scale(int b, int g) const { return few_rows_byte(scales, 2 * b + g) - 32; }

    FEW_ROWS_FUNCTION float factor() const { return few_rows_half_at(block + 108); }
};

template <int W = FEW_ROWS_WORDS> struct few_rows_iq4_xs : few_rows_of_256 {
    static constexpr int SIZE  = 136;
    static constexpr int GROUP = 32;

    int   packed[2][W / 2];
    float factors[2];

    FEW_ROWS_FUNCTION few_rows_iq4_xs(const char * block, int part, int t = 0) {
        int words[2];
        few_rows_load<8>(words, block);
        const float d = few_rows_half(words[0]);
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            const int i    = 2 * part + b;
            const int low  = words[1] >> (4 * i) & 0x0f;
            const int high = words[0] >> (16 + 2 * i) & 0x03;
            factors[b]     = d * (float) ((low | high << 4) - 32);
            few_rows_load_words<8>(packed[b], block + 8 + 32 * part + 16 * b, t);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[W]) const { few_rows_look_up_iq4(packed[b], values); }

    FEW_ROWS_FUNCTION float factor(int b) const { return factors[b]; }
};
