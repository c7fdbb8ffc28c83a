#pragma once

// Comes before each of mtmd's files. A tensor that a projector's file lacks, of those that llama.cpp takes for optional,
// is an exception where its graphs are built, which the loader turns into an error; else it would be a crash.

#include "ggml.h"

#include <stdexcept>

inline ggml_tensor * image_operand(ggml_tensor * tensor) {
    if (!tensor) {
        throw std::runtime_error("graph: a tensor is missing");
    }
    return tensor;
}

#define ggml_add(ctx, a, b)        ggml_add(ctx, image_operand(a), image_operand(b))
#define ggml_sub(ctx, a, b)        ggml_sub(ctx, image_operand(a), image_operand(b))
#define ggml_mul(ctx, a, b)        ggml_mul(ctx, image_operand(a), image_operand(b))
#define ggml_div(ctx, a, b)        ggml_div(ctx, image_operand(a), image_operand(b))
#define ggml_mul_mat(ctx, a, b)    ggml_mul_mat(ctx, image_operand(a), image_operand(b))
#define ggml_get_rows(ctx, a, b)   ggml_get_rows(ctx, image_operand(a), image_operand(b))
#define ggml_concat(ctx, a, b, d)  ggml_concat(ctx, image_operand(a), image_operand(b), d)
#define ggml_conv_2d(ctx, a, ...)  ggml_conv_2d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_cont(ctx, a)          ggml_cont(ctx, image_operand(a))
#define ggml_cast(ctx, a, type)    ggml_cast(ctx, image_operand(a), type)
#define ggml_transpose(ctx, a)     ggml_transpose(ctx, image_operand(a))
#define ggml_permute(ctx, a, ...)  ggml_permute(ctx, image_operand(a), __VA_ARGS__)
#define ggml_norm(ctx, a, eps)     ggml_norm(ctx, image_operand(a), eps)
#define ggml_rms_norm(ctx, a, eps) ggml_rms_norm(ctx, image_operand(a), eps)
#define ggml_view_1d(ctx, a, ...)  ggml_view_1d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_view_2d(ctx, a, ...)  ggml_view_2d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_view_3d(ctx, a, ...)  ggml_view_3d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_view_4d(ctx, a, ...)  ggml_view_4d(ctx, image_operand(a), __VA_ARGS__)

#define ggml_conv_2d_direct(ctx, a, ...) ggml_conv_2d_direct(ctx, image_operand(a), __VA_ARGS__)
#define ggml_conv_2d_dw(ctx, a, ...)     ggml_conv_2d_dw(ctx, image_operand(a), __VA_ARGS__)
#define ggml_reshape_1d(ctx, a, ...)     ggml_reshape_1d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_reshape_2d(ctx, a, ...)     ggml_reshape_2d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_reshape_3d(ctx, a, ...)     ggml_reshape_3d(ctx, image_operand(a), __VA_ARGS__)
#define ggml_reshape_4d(ctx, a, ...)     ggml_reshape_4d(ctx, image_operand(a), __VA_ARGS__)
