#pragma once

// How a lane reads words of shared memory, and values of 4 bits that are packed in them. Knows no types of weights.

#include <cstdint>

#ifdef __CUDACC__
#    define FEW_ROWS_FUNCTION      __device__ __forceinline__
#    define FEW_ROWS_HOST_FUNCTION __host__ __device__ __forceinline__
#    define FEW_ROWS_UNROLL        _Pragma("unroll")
#    define FEW_ROWS_ROLLED        _Pragma("unroll 1")
#else
#    define FEW_ROWS_FUNCTION      inline
#    define FEW_ROWS_HOST_FUNCTION inline
#    define FEW_ROWS_UNROLL
#    define FEW_ROWS_ROLLED
#endif

static constexpr int FEW_ROWS_PART  = 64; // values of a lane
static constexpr int FEW_ROWS_WORDS = 8;  // integers of a block of 32 values

// 12582912, and its bits as a float: a small integer that is added to them is in the last ones, and needs no conversion.
static constexpr int   FEW_ROWS_BEGIN       = 0x4b400000;
static constexpr float FEW_ROWS_BEGIN_FLOAT = 12582912.0f;

// bytes of which the highest bit is turned: what was 128 is 0
static constexpr unsigned FEW_ROWS_SIGNS = 0x80808080;

template <int N> struct alignas(4 * N) few_rows_words {
    int of[N];
};

// N integers from an address of which ALIGN is a divisor
template <int ALIGN, int N> static FEW_ROWS_FUNCTION void few_rows_load(int (&to)[N], const char * from) {
    static_assert(ALIGN >= 4);
    constexpr int n = ALIGN >= 16 && N % 4 == 0 ? 4 : ALIGN >= 8 && N % 2 == 0 ? 2 : 1; // at a time
    FEW_ROWS_UNROLL
    for (int i = 0; i < N; i += n) {
        const auto words = *(const few_rows_words<n> *) (from + 4 * i);
        FEW_ROWS_UNROLL
        for (int k = 0; k < n; ++k) {
            to[i + k] = words.of[k];
        }
    }
}

// The integers from any address on: those that are there in whole words, shifted
struct few_rows_unaligned {
    const char * words;
    unsigned     shift;

    FEW_ROWS_FUNCTION few_rows_unaligned(const char * from) :
        words(from - ((uintptr_t) from & 3)), shift(0x3210 + 0x1111 * ((unsigned) (uintptr_t) from & 3)) {}

    // skipped: bytes, a multiple of 4
    template <int N> FEW_ROWS_FUNCTION void load(int (&to)[N], int skipped = 0) const {
        int word = *(const int *) (words + skipped);
        FEW_ROWS_UNROLL
        for (int i = 0; i < N; ++i) {
            const int next = *(const int *) (words + skipped + 4 * (i + 1));
            to[i]          = (int) __byte_perm(word, next, shift);
            word           = next;
        }
    }
};

static FEW_ROWS_FUNCTION float few_rows_half(unsigned bits) {
    return __half2float(__ushort_as_half((unsigned short) bits));
}

static FEW_ROWS_FUNCTION float few_rows_half_at(const char * from) {
    return few_rows_half(*(const unsigned short *) from);
}

// a sum that began with FEW_ROWS_BEGIN
static FEW_ROWS_FUNCTION float few_rows_sum_of(int sum) {
    return __fadd_rn(__int_as_float(sum), -FEW_ROWS_BEGIN_FLOAT);
}

// a byte of an integer
static FEW_ROWS_FUNCTION int few_rows_byte(unsigned word, int i) {
    return (int) (word >> (8 * i) & 0xff);
}

// What leaves a byte is in the next one.
static FEW_ROWS_FUNCTION int few_rows_left(int word, int n_bits) {
    return (int) ((unsigned) word << n_bits);
}

// values of 4 bits, from a table of 16 bytes: those of the low halves of 4 bytes, then those of the high ones
struct few_rows_table {
    unsigned of[4];

    FEW_ROWS_FUNCTION unsigned four_at(unsigned places, unsigned half) const {
        return __byte_perm(__byte_perm(of[0], of[1], places), __byte_perm(of[2], of[3], places), half);
    }

    FEW_ROWS_FUNCTION void look_up(int packed, int & low, int & high) const {
        const unsigned places = packed & 0x77777777;
        const unsigned half   = 0x32103210 | (packed & 0x88888888u) >> 1; // of the table
        const unsigned first  = four_at(places, half);
        const unsigned second = four_at(places >> 16, half >> 16);
        low                   = (int) __byte_perm(first, second, 0x6420);
        high                  = (int) __byte_perm(first, second, 0x7531);
    }

    FEW_ROWS_FUNCTION void look_up(const int * packed, int (&values)[FEW_ROWS_WORDS]) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            look_up(packed[i], values[i], values[i + 4]);
        }
    }
};
