#pragma once

// Operations that llama.cpp's CPU backend says it has, and whose kernels end the process where they meet these types or
// layouts: they are asked for before.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether it has one for copies and rotations; true for all other operations.
bool cpu_has_kernel(const struct ggml_tensor * op);

#ifdef __cplusplus
}
#endif
