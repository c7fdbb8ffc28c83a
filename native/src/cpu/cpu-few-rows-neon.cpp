// The kernels for few rows on ARM, with dotprod, and i8mm where the compiler may take it.

#include "cpu-few-rows-task.h"

#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)

#    include "cpu-few-rows-neon-repacked.h"
#    include "cpu-few-rows-neon.h"

few_rows_kernel few_rows_kernel_neon(ggml_type type, bool repacked) {
    return repacked ? few_rows_find_repacked(type) : few_rows_find_in_order(type);
}

#else

few_rows_kernel few_rows_kernel_neon(ggml_type, bool) {
    return nullptr;
}

#endif
