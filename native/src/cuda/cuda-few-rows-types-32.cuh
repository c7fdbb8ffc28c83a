#pragma once

// Types of weights whose blocks have 32 values, taken in pairs; see cuda-few-rows-types.cuh.

#include "cuda-few-rows-words.cuh"

struct few_rows_of_32 {
    static constexpr int  N_VALUES = 64;
    static constexpr int  GROUP    = 32;
    static constexpr bool HAS_MIN  = false;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int, int b) { return b; }
};

// Two blocks of a scale and words of values, of which only the second one's are aligned.
template <int BYTES> struct few_rows_pair : few_rows_of_32 {
    static constexpr int SIZE = BYTES;

    int words[SIZE / 4];

    FEW_ROWS_FUNCTION few_rows_pair(const char * block, int) { few_rows_load<4>(words, block); }

    // the i-th word of a block
    static FEW_ROWS_FUNCTION int word_of(const int * words, int b, int i) {
        return b == 0 ? (int) __byte_perm(words[i], words[i + 1], 0x5432) : words[SIZE / 8 + 1 + i];
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        return few_rows_half(b == 0 ? words[0] : (int) ((unsigned) words[SIZE / 8] >> 16));
    }
};

struct few_rows_q8_0 : few_rows_pair<68> {
    using few_rows_pair::few_rows_pair;

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            to[b][0] = word_of((const int *) block, b, i);
            to[b][1] = word_of((const int *) block, b, i + 4);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            values[i] = word_of(words, b, i);
        }
    }
};

// 4 bits of each value: T::split makes 4 values of the low halves of a word, and 4 of the high ones.
template <class T> struct few_rows_18_bytes : few_rows_pair<36> {
    using few_rows_pair::few_rows_pair;

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            T::split(word_of((const int *) block, b, i), to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            T::split(word_of(words, b, i), values[i], values[i + 4]);
        }
    }
};

struct few_rows_q4_0 : few_rows_18_bytes<few_rows_q4_0> {
    using few_rows_18_bytes::few_rows_18_bytes;

    // 16 times the values
    static FEW_ROWS_FUNCTION void split(int word, int & low, int & high) {
        low  = (int) ((few_rows_left(word, 4) & 0xf0f0f0f0) ^ FEW_ROWS_SIGNS);
        high = (int) ((word & 0xf0f0f0f0) ^ FEW_ROWS_SIGNS);
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return few_rows_pair::factor(b) / 16; }
};

// 4 bits of each value, and before them one bit of each
struct few_rows_q5_0 : few_rows_pair<44> {
    using few_rows_pair::few_rows_pair;

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            split((const int *) block, b, i, to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            split(words, b, i, values[i], values[i + 4]);
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return few_rows_pair::factor(b) / 8; }

  private:
    // 8 times the values
    static FEW_ROWS_FUNCTION void split(const int * words, int b, int i, int & low, int & high) {
        const int bits  = word_of(words, b, 0);
        const int bytes = word_of(words, b, i + 1);
        low             = (few_rows_left(bytes, 3) & 0x78787878) | fifth_bits(~bits, i);
        high            = (bytes >> 1 & 0x78787878) | fifth_bits(~bits, i + 4);
    }

    // of the i-th 4 values
    static FEW_ROWS_FUNCTION int fifth_bits(int bits, int i) {
        return (int) ((((unsigned) bits >> (4 * i) & 0x0f) * 0x00204081 & 0x01010101) << 7); // one to each byte
    }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
static FEW_ROWS_FUNCTION few_rows_table few_rows_table_iq4() {
    return { { 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535 } };
}

struct few_rows_iq4_nl : few_rows_18_bytes<few_rows_iq4_nl> {
    using few_rows_18_bytes::few_rows_18_bytes;

    static FEW_ROWS_FUNCTION void split(int word, int & low, int & high) {
        few_rows_table_iq4().look_up(word, low, high);
    }
};

// 0 1 2 3 4 6 8 12 and the same negative: twice the values
static FEW_ROWS_FUNCTION few_rows_table few_rows_table_mxfp4() {
    return { { 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc } };
}

// an exponent, then values, at any even address
struct few_rows_mxfp4 : few_rows_of_32 {
    static constexpr int SIZE = 34;

    const char * block;

    FEW_ROWS_FUNCTION few_rows_mxfp4(const char * block, int) : block(block) {}

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            int bytes[1];
            few_rows_unaligned(block + 17 * b + 1).load(bytes, 4 * i);
            few_rows_table_mxfp4().look_up(bytes[0], to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        int bytes[4];
        few_rows_unaligned(block + 17 * b + 1).load(bytes);
        few_rows_table_mxfp4().look_up(bytes, values);
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        const int exponent = *(const unsigned char *) (block + 17 * b);
        return 0.5f * __int_as_float(exponent == 0 ? 0x00400000 : exponent << 23);
    }
};
