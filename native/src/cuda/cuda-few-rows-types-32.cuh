#pragma once

// Types of weights whose blocks have 32 values, taken in pairs; see cuda-few-rows-types.cuh.

#include "cuda-few-rows-words.cuh"

struct few_rows_of_32 {
    static constexpr int  N_VALUES = 64;
    static constexpr int  GROUP    = 32;
    static constexpr int  OFFSET   = 0;
    static constexpr bool HAS_MIN  = false;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int, int b) { return b; }
};

// only the second one's values are aligned
struct few_rows_q8_0 : few_rows_of_32 {
    static constexpr int SIZE = 68;

    int words[17];

    FEW_ROWS_FUNCTION few_rows_q8_0(const char * block, int) { few_rows_load<4>(words, block); }

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int k = 0; k < 2; ++k) {
            const int * words = (const int *) block + 4 * k + i;
            to[0][k]          = (int) __byte_perm(words[0], words[1], 0x5432);
            to[1][k]          = words[9];
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            values[i] = b == 0 ? (int) __byte_perm(words[i], words[i + 1], 0x5432) : words[9 + i];
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        return few_rows_half(b == 0 ? words[0] : (int) ((unsigned) words[8] >> 16));
    }
};

struct few_rows_18_bytes : few_rows_of_32 {
    static constexpr int SIZE = 36;

    int words[9];

    FEW_ROWS_FUNCTION few_rows_18_bytes(const char * block) { few_rows_load<4>(words, block); }

    // the i-th 4 bytes of each block
    static FEW_ROWS_FUNCTION few_rows_2_words packed_at(const char * block, int i) {
        const int * words = (const int *) block + i;
        return { { (int) __byte_perm(words[0], words[1], 0x5432), words[5] } };
    }

    FEW_ROWS_FUNCTION void packed(int b, int (&to)[4]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            to[i] = b == 0 ? (int) __byte_perm(words[i], words[i + 1], 0x5432) : words[5 + i];
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        return few_rows_half(b == 0 ? words[0] : (int) ((unsigned) words[4] >> 16));
    }
};

struct few_rows_q4_0 : few_rows_18_bytes {
    static constexpr int OFFSET = 8;

    FEW_ROWS_FUNCTION few_rows_q4_0(const char * block, int) : few_rows_18_bytes(block) {}

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        const few_rows_2_words bytes = packed_at(block, i);
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            to[b][0] = bytes.of[b] & 0x0f0f0f0f;
            to[b][1] = bytes.of[b] >> 4 & 0x0f0f0f0f;
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        int bytes[4];
        packed(b, bytes);
        few_rows_halves(bytes, values);
    }
};

// 4 bits of each value, and after the scale one bit of each
struct few_rows_q5_0 : few_rows_of_32 {
    static constexpr int SIZE   = 44;
    static constexpr int OFFSET = 16;

    int words[11];

    FEW_ROWS_FUNCTION few_rows_q5_0(const char * block, int) { few_rows_load<4>(words, block); }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        int bytes[5];
        FEW_ROWS_UNROLL
        for (int i = 0; i < 5; ++i) {
            bytes[i] = b == 0 ? (int) __byte_perm(words[i], words[i + 1], 0x5432) : words[6 + i];
        }
        few_rows_halves(bytes + 1, values);
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            values[i] |= fifth_bits(bytes[0], i);
        }
    }

    // of the i-th 4 values
    static FEW_ROWS_FUNCTION int fifth_bits(int bits, int i) {
        return (int) ((((unsigned) bits >> (4 * i) & 0x0f) * 0x00204081 & 0x01010101) << 4); // one to each byte
    }

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        const int * words = (const int *) block;
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            const int bits  = b == 0 ? (int) __byte_perm(words[0], words[1], 0x5432) : words[6];
            const int bytes = b == 0 ? (int) __byte_perm(words[i + 1], words[i + 2], 0x5432) : words[i + 7];
            to[b][0]        = (bytes & 0x0f0f0f0f) | fifth_bits(bits, i);
            to[b][1]        = (bytes >> 4 & 0x0f0f0f0f) | fifth_bits(bits, i + 4);
        }
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        return few_rows_half(b == 0 ? words[0] : (int) ((unsigned) words[5] >> 16));
    }
};

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
static FEW_ROWS_FUNCTION few_rows_table few_rows_table_iq4() {
    return { { 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535 } };
}

struct few_rows_iq4_nl : few_rows_18_bytes {
    FEW_ROWS_FUNCTION few_rows_iq4_nl(const char * block, int) : few_rows_18_bytes(block) {}

    static FEW_ROWS_FUNCTION void fragment(const char * block, int, int i, int (&to)[2][2]) {
        const few_rows_2_words bytes = packed_at(block, i);
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            few_rows_table_iq4().look_up(bytes.of[b], to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        int bytes[4];
        packed(b, bytes);
        few_rows_table_iq4().look_up(bytes, values);
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
            few_rows_load<1>(bytes, block + 17 * b + 1 + 4 * i);
            few_rows_table_mxfp4().look_up(bytes[0], to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        int bytes[4];
        few_rows_load<1>(bytes, block + 17 * b + 1);
        few_rows_table_mxfp4().look_up(bytes, values);
    }

    FEW_ROWS_FUNCTION float factor(int b) const {
        const int exponent = *(const unsigned char *) (block + 17 * b);
        return 0.5f * __int_as_float(exponent == 0 ? 0x00400000 : exponent << 23);
    }
};
