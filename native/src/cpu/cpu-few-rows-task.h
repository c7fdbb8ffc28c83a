#pragma once

// What a kernel for few rows is given, and the kernels of each instruction set. Knows no tensors: cpu-few-rows.cpp makes
// tasks of these.

#include "ggml.h"

#include <cstddef>
#include <cstdint>

// rows of activations for which a part of the weights is unpacked once
static constexpr int64_t N_ROWS_TOGETHER = 32;

// 32 values of a row, and their sum: instructions that multiply unsigned bytes need it
struct few_rows_block {
    float   d;
    int32_t sum;
    int8_t  values[32];
};

// Matrix rows [begin, end) with some rows of activations: block_q8_K for types with blocks of 256 values,
// few_rows_block for those with blocks of 32.
struct few_rows_task {
    const char *         matrix;
    size_t               stride; // of the matrix, in bytes
    int64_t              begin;
    int64_t              end;
    int64_t              n_values; // of a row
    int64_t              n_rows;   // at most N_ROWS_TOGETHER
    const void * const * rows;
    float * const *      out;      // of each row, the place of the matrix's first row
};

using few_rows_kernel = void (*)(const few_rows_task & task);

// nullptr: none for that type, or the compiler does not know the instructions
few_rows_kernel few_rows_kernel_avx2(ggml_type type);
few_rows_kernel few_rows_kernel_avx512(ggml_type type);
