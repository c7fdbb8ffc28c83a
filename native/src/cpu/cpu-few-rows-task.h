#pragma once

// What a kernel for few rows is asked to compute, and what they share whatever their instructions. Knows memory, never
// tensors or threads.

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>

// rows of activations that share one unpacking of the weights
static constexpr int64_t N_ROWS_TOGETHER = 8;

// Whether prompts are computed by the kernels for few rows too. On ARM llama.cpp's for many rows multiply twice as many
// values in an instruction (i8mm), and round differently.
#if defined(__x86_64__)
static constexpr bool FEW_ROWS_ARE_PROMPTS = true;
#else
static constexpr bool FEW_ROWS_ARE_PROMPTS = false;
#endif

struct few_rows_task {
    const char *         matrix;   // its first row
    size_t               stride;   // bytes of a matrix row
    int64_t              begin;    // the matrix rows, which are the results of a row
    int64_t              end;
    int64_t              n_values; // of a matrix row
    int64_t              n_rows;   // of activations, at most N_ROWS_TOGETHER
    const void * const * in;       // quantized as llama.cpp has them for the type, [n_rows]
    float * const *      out;      // [n_rows]
};

using few_rows_kernel = void (*)(const few_rows_task &);

// nullptr if there is none for the type, or if the compiler lacks the instructions. Whether the processor has them is
// not asked here. repacked: the matrix is in llama.cpp's layout of 8 rows side by side, on ARM of 4 or 8, and so are
// begin and end.
few_rows_kernel few_rows_kernel_avx2(ggml_type type, bool repacked);
few_rows_kernel few_rows_kernel_avx512(ggml_type type, bool repacked);
few_rows_kernel few_rows_kernel_neon(ggml_type type, bool repacked);

// The same for F16 and BF16, for matrices that llama.cpp's sgemm takes with more rows.
few_rows_kernel few_rows_kernel_halves(ggml_type type, int64_t n_values, int64_t n_matrix);

// The one for this processor, of quantized weights
few_rows_kernel few_rows_find_kernel(ggml_type type, bool repacked);

// A loop whose arrays are in registers: it must be unrolled, by however many times it runs.
#define UNROLLED_FOR _Pragma("GCC unroll 32") for

// All of it is compiled once for each instruction set: the linker may not take a function of one for the other's.
namespace {

template <class T> T few_rows_load(const void * from) {
    T value;
    __builtin_memcpy(&value, from, sizeof(T));
    return value;
}

// what 4 bits stand for: in Q4_0 as llama.cpp repacks it, in IQ4_NL and IQ4_XS, and, doubled, in MXFP4
constexpr int8_t FEW_ROWS_SIGNED_4[16] = { 0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1 };
constexpr int8_t FEW_ROWS_IQ4[16]      = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
constexpr int8_t FEW_ROWS_MXFP4[16]    = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

// The rows of activations of a task, as blocks of their type
template <class BLOCK, int N> struct few_rows_inputs {
    const BLOCK * rows[N];

    explicit few_rows_inputs(const few_rows_task & task) {
        for (int n = 0; n < N; ++n) {
            rows[n] = (const BLOCK *) task.in[n];
        }
    }

    const BLOCK * operator[](int n) const { return rows[n]; }
};

// Blocks of T::N_VALUES values, of T::N_ROWS matrix rows. T::add adds the products of one to the sums of each row of
// activations.
template <class T, int N> void few_rows_blocks(const few_rows_task & task) {
    const int64_t n_blocks = task.n_values / T::N_VALUES;

    const few_rows_inputs<typename T::block_y, N> y(task);
    for (int64_t i = task.begin; i < task.end; i += T::N_ROWS) {
        const auto * x = (const typename T::block *) (task.matrix + i * task.stride);

        typename T::sums sums[N];
        for (int64_t b = 0; b < n_blocks; ++b) {
            T::add(sums, x[b], y, b);
        }
        for (int n = 0; n < N; ++n) {
            sums[n].store(task.out[n] + i);
        }
    }
}

// What a set of instructions has for a type
struct few_rows_entry {
    ggml_type       type;
    few_rows_kernel kernel;
};

template <size_t N> few_rows_kernel few_rows_find(const few_rows_entry (&entries)[N], ggml_type type) {
    for (const auto & entry : entries) {
        if (entry.type == type) {
            return entry.kernel;
        }
    }
    return nullptr;
}

#define FEW_ROWS_PRODUCT(of_n, ...)                                                                 \
    [](const few_rows_task & task) {                                                                \
        static constexpr few_rows_kernel KERNELS[N_ROWS_TOGETHER] = {                               \
            of_n<__VA_ARGS__, 1>, of_n<__VA_ARGS__, 2>, of_n<__VA_ARGS__, 3>, of_n<__VA_ARGS__, 4>, \
            of_n<__VA_ARGS__, 5>, of_n<__VA_ARGS__, 6>, of_n<__VA_ARGS__, 7>, of_n<__VA_ARGS__, 8>, \
        };                                                                                          \
        KERNELS[task.n_rows - 1](task);                                                             \
    }

} // namespace
