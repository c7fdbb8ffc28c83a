#pragma once

// A part of ggml-cpu.cpp: operations that llama.cpp's CPU backend says it has, and whose kernels end the process where they
// meet these types or layouts. They are asked for before.

#include "ggml.h"

static bool cpu_is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static bool cpu_copies(const ggml_tensor & from, const ggml_tensor & to) {
    if (from.type == to.type) {
        return !ggml_is_quantized(to.type) || ggml_are_same_shape(&from, &to) ||
               (ggml_is_contiguous(&from) && ggml_is_contiguous(&to));
    }
    if (ggml_is_quantized(to.type)) {
        return cpu_is_float(from.type) && ggml_is_contiguous(&to) && from.nb[0] == ggml_type_size(from.type);
    }
    if (ggml_is_quantized(from.type)) {
        const bool holds_blocks = to.ne[0] % ggml_blck_size(from.type) == 0 || ggml_is_contiguous(&to);
        return to.type == GGML_TYPE_F32 && to.nb[0] == ggml_type_size(to.type) && holds_blocks;
    }
    return (cpu_is_float(from.type) && cpu_is_float(to.type)) ||
           (from.type == GGML_TYPE_F32 && to.type == GGML_TYPE_I32) ||
           (from.type == GGML_TYPE_I32 && to.type == GGML_TYPE_F32);
}

// Whether it has one for copies and rotations; true for all other operations.
static bool cpu_has_kernel(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP:
            return cpu_copies(*op->src[0], *op);
        case GGML_OP_ROPE:
            return op->src[0]->type == GGML_TYPE_F32 || op->src[0]->type == GGML_TYPE_F16;
        default:
            return true;
    }
}
