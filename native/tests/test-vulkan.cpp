// Products of few rows by Vulkan against those of the CPU. Without a Vulkan device, or if the compiler of shaders had no
// products of integers, there is nothing to test.

#include "ggml-backend.h"
#include "ggml.h"
#include "gpu-products.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// types of mul_mat_vecq_wide.glsl
static constexpr ggml_type TYPES[] = { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K,
                                       GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS };

// whether values are rounded to 8 bits
static bool multiplies_integers() {
    product p = random_product(GGML_TYPE_Q4_K, 256, 64, 1, 0, fused::NOTHING);
    for (float & value : p.rows[0]) {
        value = std::sqrt(std::fabs(value));
    }
    const auto gpu = p.compute(g_gpu, 0, 1);
    const auto cpu = p.compute(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), 0, 1);
    return !(relative_error(gpu, cpu) <= 1e-4); // if it is no number, what follows fails
}

static void products_of_few_rows_are_right_and_rows_do_not_matter() {
    for (const ggml_type type : TYPES) {
        const int            failed_before = g_n_failed;
        std::vector<int64_t> n_values      = { 256, 1536, 4096, 12288 };
        if (ggml_blck_size(type) == 32) { // rows need not begin with a word, nor columns with a group of four blocks
            n_values.insert(n_values.end(), { 32, 1120 });
        }
        for (const int64_t n : n_values) {
            for (const int64_t n_out : { 19, 77, 301, 5001 }) {
                for (const int64_t n_rows : { 1, 2, 3, 4, 5, 6, 7, 8 }) {
                    if (n * n_out < 2000000) {
                        check(random_product(type, n, n_out, n_rows, 0, fused::NOTHING));
                        check(random_product(type, n, n_out, n_rows, 0, fused::BIAS));
                    }
                }
            }
        }
        for (const int64_t n_rows : { 1, 4 }) {
            check(random_product(type, 1536, 5001, n_rows, 0, fused::NOTHING));
            check(random_product(type, 768, 77, n_rows, 6, fused::NOTHING));
            check(random_product(type, 1536, 77, n_rows, 6, fused::NOTHING));
        }
        if (g_n_failed != failed_before) {
            std::printf("%s is wrong\n", ggml_type_name(type));
        }
    }
}

int main() {
    setenv("GGML_VK_FORCE_MMVQ", "1", 1); // on any device, and for any number of rows
    if (!find_gpu("Vulkan")) {
        return SKIPPED;
    }
    if (!multiplies_integers()) {
        std::puts("the compiler of shaders had no products of integers (GL_EXT_integer_dot_product)");
        return SKIPPED;
    }
    RUN(products_of_few_rows_are_right_and_rows_do_not_matter);
    return g_n_failed > 0;
}
