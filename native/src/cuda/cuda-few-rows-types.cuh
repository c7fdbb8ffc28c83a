#pragma once

// Types of weights, as a lane of a warp unpacks them: a part of a matrix row of 64 values, which are two of the blocks
// that activations come in. A description T of a type knows
//
//   N_VALUES, SIZE        of a block of weights; of blocks of 32 values: of two
//   GROUP                 values that have a scale together: 32, or 16 with scales that are integers
//   HAS_MIN               whether what min() says is subtracted from each value: then they are unsigned bytes, else signed
//   activations(part, b)  which block of 32 of its block the lane's block b is
//   T(block, part)        reads it, from shared memory
//   unpack(b, values)     32 values as bytes, 4 in an integer
//   fragment(block, part, i, to)  of both of a lane's blocks the i-th 4 and the (i + 4)-th, as tensor cores take them
//   factor(b)             of GROUP 32: the scale of what unpack() gives, which may be a multiple of the values
//   scale(b, g), factor() of GROUP 16: a whole number for each half of a block, and a factor for all
//
// Knows shared memory, no tensors and no threads; cuda-few-rows-kernel.cuh multiplies.

#include "cuda-few-rows-types-32.cuh"

// --- blocks of 256 values, a quarter for a lane ---

struct few_rows_of_256 {
    static constexpr int  N_VALUES = 256;
    static constexpr bool HAS_MIN  = false;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int part, int b) { return 2 * part + b; }
};

// Values whose bits are in two words, that both of the lane's blocks have: T::read gets N of these from the i-th on, and
// T::join makes 4 values of them for block b.
template <class T, class BASE> struct few_rows_joined : BASE {
    int part;
    int packed[FEW_ROWS_WORDS];
    int high[FEW_ROWS_WORDS] = {};

    FEW_ROWS_FUNCTION few_rows_joined(const char * block, int part) : BASE(block, part), part(part) {
        T::read(block, part, 0, packed, high);
    }

    static FEW_ROWS_FUNCTION void fragment(const char * block, int part, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int k = 0; k < 2; ++k) {
            int words[1];
            int bits[1] = {};
            T::read(block, part, i + 4 * k, words, bits);
            to[0][k] = T::join(words[0], bits[0], 0, part);
            to[1][k] = T::join(words[0], bits[0], 1, part);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            values[i] = T::join(packed[i], high[i], b, part);
        }
    }
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

struct few_rows_q4_K : few_rows_joined<few_rows_q4_K, few_rows_k4> {
    static constexpr int SIZE = 144;

    using few_rows_joined::few_rows_joined;

    template <int N> static FEW_ROWS_FUNCTION void read(const char * block, int part, int i, int (&packed)[N], int *) {
        few_rows_load<16>(packed, block + 16 + 32 * part + 4 * i);
    }

    // of block 1 these are 16 times the values
    static FEW_ROWS_FUNCTION int join(int packed, int, int b, int) { return packed & (int) (0x0f0f0f0fu << (4 * b)); }

    FEW_ROWS_FUNCTION float factor(int b) const { return few_rows_k4::factor(b) / (b == 0 ? 1 : 16); }
};

struct few_rows_q5_K : few_rows_joined<few_rows_q5_K, few_rows_k4> {
    static constexpr int SIZE = 176;

    using few_rows_joined::few_rows_joined;

    template <int N>
    static FEW_ROWS_FUNCTION void read(const char * block, int part, int i, int (&packed)[N], int (&high)[N]) {
        few_rows_load<16>(high, block + 16 + 4 * i);
        few_rows_load<16>(packed, block + 48 + 32 * part + 4 * i);
        FEW_ROWS_UNROLL
        for (int k = 0; k < N; ++k) {
            high[k] >>= 2 * part;
        }
    }

    static FEW_ROWS_FUNCTION int join(int packed, int high, int b, int) {
        return (packed >> (4 * b) & 0x0f0f0f0f) | (high >> b & 0x01010101) << 4;
    }
};

// scales of 16 values, which are read where they are
struct few_rows_k16 : few_rows_of_256 {
    static constexpr int GROUP = 16;

    const char * block;
    int          part;

    FEW_ROWS_FUNCTION few_rows_k16(const char * block, int part) : block(block), part(part) {}
};

// the lane's blocks are 64 values apart, and have the same bytes
struct few_rows_q6_K : few_rows_joined<few_rows_q6_K, few_rows_k16> {
    static constexpr int SIZE = 210;

    using few_rows_joined::few_rows_joined;

    static constexpr FEW_ROWS_HOST_FUNCTION int activations(int part, int b) { return part / 2 * 4 + part % 2 + 2 * b; }

    template <int N>
    static FEW_ROWS_FUNCTION void read(const char * block, int part, int i, int (&packed)[N], int (&high)[N]) {
        const few_rows_unaligned words(block);
        words.load(packed, 32 * part + 4 * i);
        words.load(high, 128 + part / 2 * 32 + 4 * i);
        FEW_ROWS_UNROLL
        for (int k = 0; k < N; ++k) {
            high[k] ^= (int) 0xaaaaaaaa; // 32 less
        }
    }

    // 4 times the values
    static FEW_ROWS_FUNCTION int join(int packed, int high, int b, int part) {
        const int low = (b == 0 ? few_rows_left(packed, 2) : packed >> 2) & 0x3c3c3c3c;
        return low | (few_rows_left(high, 6 - 4 * b - part % 2 * 2) & 0xc0c0c0c0);
    }

    FEW_ROWS_FUNCTION float scale(int b, int g) const {
        return *(const signed char *) (block + 192 + 2 * activations(part, b) + g);
    }

    FEW_ROWS_FUNCTION float factor() const { return few_rows_half_at(block + 208) / 4; }
};

// 2 bits and 1 bit of a value, and scales of 4 bits and 2 bits
struct few_rows_q3_K : few_rows_joined<few_rows_q3_K, few_rows_k16> {
    static constexpr int SIZE = 110;

    unsigned scales; // 4 bytes, 32 too large

    FEW_ROWS_FUNCTION few_rows_q3_K(const char * block, int part) : few_rows_joined(block, part) {
        int words[3];
        few_rows_unaligned(block).load(words, 96);
        const unsigned low = (unsigned) (part % 2 ? words[1] : words[0]) >> (part / 2 * 4);
        scales             = (low & 0x0f0f0f0f) | ((unsigned) words[2] >> (2 * part) & 0x03030303) << 4;
    }

    template <int N>
    static FEW_ROWS_FUNCTION void read(const char * block, int part, int i, int (&packed)[N], int (&high)[N]) {
        const few_rows_unaligned words(block);
        words.load(high, 4 * i);
        words.load(packed, 32 + part / 2 * 32 + 4 * i);
        FEW_ROWS_UNROLL
        for (int k = 0; k < N; ++k) {
            high[k] >>= 2 * part;
            packed[k] >>= part % 2 * 4;
        }
    }

    // 32 times the values
    static FEW_ROWS_FUNCTION int join(int packed, int high, int b, int) {
        return (few_rows_left(packed, 5 - 2 * b) & 0x60606060) | (few_rows_left(~high, 7 - b) & 0x80808080);
    }

    FEW_ROWS_FUNCTION float scale(int b, int g) const { return (float) (few_rows_byte(scales, 2 * b + g) - 32); }

    FEW_ROWS_FUNCTION float factor() const { return few_rows_half_at(block + 108) / 32; }
};

struct few_rows_iq4_xs : few_rows_of_256 {
    static constexpr int SIZE  = 136;
    static constexpr int GROUP = 32;

    int   packed[8];
    float factors[2];

    FEW_ROWS_FUNCTION few_rows_iq4_xs(const char * block, int part) {
        int words[2];
        few_rows_load<8>(words, block);
        few_rows_load<8>(packed, block + 8 + 32 * part);
        const float d = few_rows_half(words[0]);
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            const int i    = 2 * part + b;
            const int low  = words[1] >> (4 * i) & 0x0f;
            const int high = words[0] >> (16 + 2 * i) & 0x03;
            factors[b]     = d * (float) ((low | high << 4) - 32);
        }
    }

    static FEW_ROWS_FUNCTION void fragment(const char * block, int part, int i, int (&to)[2][2]) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            few_rows_table_iq4().look_up(((const int *) (block + 8 + 32 * part + 16 * b))[i], to[b][0], to[b][1]);
        }
    }

    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        few_rows_table_iq4().look_up(packed + 4 * b, values);
    }

    FEW_ROWS_FUNCTION float factor(int b) const { return factors[b]; }
};

// --- as the kernel for many rows takes them: a quarter of the values, one after the other, for each lane ---

template <class T> struct many_rows_type {
    using type = T;
};

struct many_rows_q6_K : few_rows_k16 {
    static constexpr int SIZE = 210;

    int high[8];

    FEW_ROWS_FUNCTION many_rows_q6_K(const char * block, int part) : few_rows_k16(block, part) {
        few_rows_unaligned(block).load(high, 128 + part / 2 * 32);
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            high[i] ^= (int) 0xaaaaaaaa; // 32 less
        }
    }

    // 4 times the values
    FEW_ROWS_FUNCTION void unpack(int b, int (&values)[FEW_ROWS_WORDS]) const {
        const unsigned turn = part % 2 ? 30 : 2; // to the left
        int            packed[8];
        few_rows_unaligned(block).load(packed, part / 2 * 64 + b * 32);
        FEW_ROWS_UNROLL
        for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
            const unsigned word = (unsigned) packed[i];
            const int      low  = (int) (word << turn | word >> (32 - turn)) & 0x3c3c3c3c;
            values[i]           = low | (few_rows_left(high[i], 6 - 2 * b - part % 2 * 4) & 0xc0c0c0c0);
        }
    }

    FEW_ROWS_FUNCTION float scale(int b, int g) const {
        return *(const signed char *) (block + 192 + 4 * part + 2 * b + g);
    }

    FEW_ROWS_FUNCTION float factor() const { return few_rows_half_at(block + 208) / 4; }
};

template <> struct many_rows_type<few_rows_q6_K> {
    using type = many_rows_q6_K;
};
