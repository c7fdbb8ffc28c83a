#pragma once

// What the kernels for few rows share, whatever their instructions.

#include "cpu-few-rows-task.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

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

#define FEW_ROWS_PRODUCT(of_n, ...)                                                                 \
    [](const few_rows_task & task) {                                                                \
        static constexpr few_rows_kernel KERNELS[N_ROWS_TOGETHER] = {                               \
            of_n<__VA_ARGS__, 1>, of_n<__VA_ARGS__, 2>, of_n<__VA_ARGS__, 3>, of_n<__VA_ARGS__, 4>, \
            of_n<__VA_ARGS__, 5>, of_n<__VA_ARGS__, 6>, of_n<__VA_ARGS__, 7>, of_n<__VA_ARGS__, 8>, \
        };                                                                                          \
        KERNELS[task.n_rows - 1](task);                                                             \
    }

} // namespace
