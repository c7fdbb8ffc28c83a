#include "cpu-operations.h"

static bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static bool copies(const ggml_tensor & from, const ggml_tensor & to) {
    if (from.type == to.type) {
        return !ggml_is_quantized(to.type) || ggml_are_same_shape(&from, &to) ||
               (ggml_is_contiguous(&from) && ggml_is_contiguous(&to));
    }
    if (ggml_is_quantized(to.type)) {
        return is_float(from.type) && ggml_is_contiguous(&to) && from.nb[0] == ggml_type_size(from.type);
    }
    if (ggml_is_quantized(from.type)) {
        const bool holds_blocks = to.ne[0] % ggml_blck_size(from.type) == 0 || ggml_is_contiguous(&to);
        return to.type == GGML_TYPE_F32 && to.nb[0] == ggml_type_size(to.type) && holds_blocks;
    }
    return (is_float(from.type) && is_float(to.type)) || (from.type == GGML_TYPE_F32 && to.type == GGML_TYPE_I32) ||
           (from.type == GGML_TYPE_I32 && to.type == GGML_TYPE_F32);
}

bool cpu_has_kernel(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP:
            return copies(*op->src[0], *op);
        case GGML_OP_ROPE:
            return op->src[0]->type == GGML_TYPE_F32 || op->src[0]->type == GGML_TYPE_F16;
        default:
            return true;
    }
}
