#pragma once

// What a kernel for few rows is asked to compute. Knows memory, never tensors or threads.

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
