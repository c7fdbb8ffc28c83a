#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"
#include "scalar-few-rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

static constexpr int64_t N_THREADS = 3;

static void set_quantized(ggml_tensor * tensor) {
    const auto data = random_quantized(tensor->type, ggml_nrows(tensor), tensor->ne[0]);
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
}

static std::vector<float> compute(ggml_context * ctx, ggml_backend_t backend, ggml_tensor * node) {
    ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32, false);
    ggml_build_forward_expand(gf, node);
    CHECK_EQUAL(ggml_backend_graph_compute(backend, gf), GGML_STATUS_SUCCESS);

    std::vector<float> res(ggml_nelements(node));
    ggml_backend_tensor_get(node, res.data(), 0, ggml_nbytes(node));
    return res;
}

struct product {
    ggml_context_ptr        ctx{ ggml_init({ 1 << 20, nullptr, true }) };
    ggml_backend_ptr        backend{ ggml_backend_cpu_init() };
    ggml_backend_buffer_ptr buf;

    product() { ggml_backend_cpu_set_n_threads(backend.get(), N_THREADS); }

    void alloc() { buf.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get())); }

    std::vector<float> result(ggml_tensor * node) { return compute(ctx.get(), backend.get(), node); }
};

static const std::vector<ggml_type> TYPES = {
    GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,   GGML_TYPE_Q6_K,  GGML_TYPE_IQ4_XS,
    GGML_TYPE_Q4_0, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
};

// a matrix, rows, and what is computed of them; memory ends where they do, so that the sanitizers see what is read
struct kernel_case {
    ggml_type                                type;
    int64_t                                  n_values, n_out;
    std::vector<uint8_t>                     matrix;
    std::vector<std::vector<block_q8_K>>     rows_256;
    std::vector<std::vector<few_rows_block>> rows_32;

    kernel_case(ggml_type type, int64_t n_values, int64_t n_out, int64_t n_rows) :
        type(type), n_values(n_values), n_out(n_out), matrix(random_quantized(type, n_out, n_values)) {
        for (int64_t i = 0; i < n_rows; ++i) {
            const auto values = random_values(n_values);
            if (ggml_blck_size(type) == QK_K) {
                rows_256.emplace_back(n_values / QK_K);
                ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float(values.data(), rows_256.back().data(), n_values);
                continue;
            }
            rows_32.emplace_back();
            for (int64_t b = 0; b < n_values / 32; ++b) {
                few_rows_block row = { 0.01f * (b + 1), 0, {} };
                for (int k = 0; k < 32; ++k) {
                    row.values[k] = (int8_t) std::lround(127 * values[32 * b + k]);
                    row.sum += row.values[k];
                }
                rows_32.back().push_back(row);
            }
        }
    }

    std::vector<float> result(few_rows_kernel kernel, int64_t first_row, int64_t n_rows, int64_t begin) const {
        std::vector<float>        res(n_rows * n_out, NAN);
        std::vector<const void *> in;
        std::vector<float *>      out;
        for (int64_t i = 0; i < n_rows; ++i) {
            const int64_t row = first_row + i;
            in.push_back(rows_32.empty() ? (const void *) rows_256[row].data() : rows_32[row].data());
            out.push_back(res.data() + i * n_out);
        }
        kernel({ (const char *) matrix.data(), ggml_row_size(type, n_values), begin, n_out, n_values, n_rows, in.data(),
                 out.data() });
        return res;
    }

    // by llama.cpp's own description of the type, in doubles
    double expected(int64_t row, int64_t i) const {
        std::vector<float> weights(n_values);
        ggml_get_type_traits(type)->to_float(matrix.data() + i * ggml_row_size(type, n_values), weights.data(),
                                             n_values);
        double sum = 0.0;
        for (int64_t k = 0; k < n_values; ++k) {
            sum += (double) weights[k] *
                   (rows_32.empty() ? (double) rows_256[row][k / QK_K].d * rows_256[row][k / QK_K].qs[k % QK_K] :
                                      (double) rows_32[row][k / 32].d * rows_32[row][k / 32].values[k % 32]);
        }
        return sum;
    }
};

static bool same(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

static void the_scalar_kernel_computes_the_product() {
    for (const ggml_type type : TYPES) {
        const kernel_case of(type, 2 * QK_K, 5, 3);
        const auto        res = of.result(few_rows_find_kernel<scalar_vector>(type), 0, 3, 0);
        for (int64_t i = 0; i < (int64_t) res.size(); ++i) {
            CHECK(std::fabs(res[i] - of.expected(i / of.n_out, i % of.n_out)) < 1e-3);
        }
    }
}

// all instruction sets of this machine
static std::vector<few_rows_kernel> kernels(ggml_type type) {
    std::vector<few_rows_kernel> res;
#if defined(__x86_64__)
    if (ggml_cpu_has_avx2() && ggml_cpu_has_fma() && ggml_cpu_has_f16c()) {
        res.push_back(few_rows_kernel_avx2(type));
    }
    if (ggml_cpu_has_avx512_vnni()) {
        res.push_back(few_rows_kernel_avx512(type));
    }
#endif
    return res;
}

static void every_instruction_set_computes_what_the_scalar_kernel_does() {
    for (const ggml_type type : TYPES) {
        for (const int64_t n_values : { QK_K, 3 * QK_K }) {
            for (const int64_t n_out : { 1, 8, 37 }) {
                const kernel_case of(type, n_values, n_out, N_ROWS_TOGETHER);
                const auto expected = of.result(few_rows_find_kernel<scalar_vector>(type), 0, N_ROWS_TOGETHER, 0);
                for (const few_rows_kernel kernel : kernels(type)) {
                    CHECK(same(of.result(kernel, 0, N_ROWS_TOGETHER, 0), expected));
                }
            }
        }
    }
}

static void a_row_is_the_same_among_any_number_of_others() {
    for (const ggml_type type : TYPES) {
        const kernel_case of(type, 2 * QK_K, 35, N_ROWS_TOGETHER);
        for (const few_rows_kernel kernel : kernels(type)) {
            const auto all = of.result(kernel, 0, N_ROWS_TOGETHER, 0);
            for (int64_t n_rows = 1; n_rows <= 16; ++n_rows) {
                const auto some = of.result(kernel, 3, n_rows, 0);
                CHECK(same(some, { all.begin() + 3 * of.n_out, all.begin() + (3 + n_rows) * of.n_out }));
            }
            const auto part = of.result(kernel, 0, 1, 5); // another place in a tile
            CHECK(same({ part.begin() + 5, part.end() }, { all.begin() + 5, all.begin() + of.n_out }));
        }
    }
}

static ggml_tensor * marked(ggml_tensor * node) {
    node->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    return node;
}

static void set_random(ggml_tensor * tensor) {
    const auto values = random_values(ggml_nelements(tensor));
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

static void rows_together_are_rows_one_by_one() {
    for (const ggml_type type : TYPES) {
        for (const int64_t n_out : { 1, 32, 130 }) {
            for (const int64_t n_rows : { 1, 2, 7, 16, 33, 70 }) {
                product                    p;
                ggml_context *             ctx     = p.ctx.get();
                ggml_tensor *              weights = ggml_new_tensor_2d(ctx, type, 2 * QK_K, n_out);
                ggml_tensor *              rows    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 2 * QK_K, n_rows);
                ggml_tensor *              all     = marked(ggml_mul_mat(ctx, weights, rows));
                ggml_tensor *              plain   = ggml_mul_mat(ctx, weights, rows);
                std::vector<ggml_tensor *> single;
                for (int64_t i = 0; i < n_rows; ++i) {
                    ggml_tensor * row = ggml_view_1d(ctx, rows, 2 * QK_K, i * rows->nb[1]);
                    single.push_back(marked(ggml_mul_mat(ctx, weights, row)));
                }
                p.alloc();
                set_quantized(weights);
                set_random(rows);

                std::vector<float> expected;
                for (auto * node : single) {
                    const auto row = p.result(node);
                    expected.insert(expected.end(), row.begin(), row.end());
                }
                const auto res = p.result(all);
                CHECK(same(res, expected));
                const auto by_llama_cpp = p.result(plain);
                for (size_t i = 0; i < res.size(); ++i) {
                    CHECK(std::fabs(res[i] - by_llama_cpp[i]) < 0.05); // roundings of activations may differ
                }
            }
        }
    }
}

static void experts_are_products_with_their_matrices() {
    constexpr int64_t N_EXPERTS = 5;
    constexpr int64_t N_OUT     = 70;
    for (const ggml_type type : TYPES) {
        for (const int64_t n_rows : { 1, 2, 5, 40 }) {
            for (const int64_t n_places : { 1, 2 }) { // activations of their own for each of a row's experts, or not
                product        p;
                ggml_context * ctx     = p.ctx.get();
                ggml_tensor *  weights = ggml_new_tensor_3d(ctx, type, QK_K, N_OUT, N_EXPERTS);
                ggml_tensor *  rows    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, QK_K, n_places, n_rows);
                ggml_tensor *  ids     = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, n_rows);
                ggml_tensor *  all     = marked(ggml_mul_mat_id(ctx, weights, rows, ids));

                std::vector<int32_t>       experts;
                std::vector<ggml_tensor *> single;
                for (int64_t i = 0; i < 2 * n_rows; ++i) {
                    experts.push_back(i * i % 7 % N_EXPERTS);
                    ggml_tensor * matrix =
                        ggml_view_2d(ctx, weights, QK_K, N_OUT, weights->nb[1], experts.back() * weights->nb[2]);
                    ggml_tensor * row =
                        ggml_view_1d(ctx, rows, QK_K, i / 2 * rows->nb[2] + i % 2 % n_places * rows->nb[1]);
                    single.push_back(marked(ggml_mul_mat(ctx, matrix, row)));
                }
                p.alloc();
                set_quantized(weights);
                set_random(rows);
                ggml_backend_tensor_set(ids, experts.data(), 0, ggml_nbytes(ids));

                std::vector<float> expected;
                for (auto * node : single) {
                    const auto row = p.result(node);
                    expected.insert(expected.end(), row.begin(), row.end());
                }
                CHECK(same(p.result(all), expected));
            }
        }
    }
}

// What a row sees of the cache: all of it; what lies before it; a window that moves with it; nothing.
static float mask_value(int64_t row, int64_t cell, int64_t n_cache, int64_t n_rows) {
    constexpr float HIDDEN = -INFINITY;
    switch (row % 4) {
        case 0:
            return 0.0f;
        case 1:
            return cell <= n_cache - n_rows + row ? 0.0f : HIDDEN;
        case 2:
            return cell > row && cell < row + 40 ? 0.0f : HIDDEN;
        default:
            return HIDDEN;
    }
}

static void attention_of_several_rows_is_that_of_each() {
    struct shape {
        int64_t n_key_values, n_values, n_key_heads, n_heads, n_cache, n_streams;
    };

    // below 512 cells llama.cpp does not sum them in parts
    for (const shape & of : std::vector<shape>{
             { 64, 64, 2, 8, 300, 1 },
             { 64, 64, 2, 6, 511, 1 },
             { 128, 128, 1, 5, 40, 2 },
             { 192, 128, 1, 1, 129, 1 },
             { 256, 512, 2, 2, 128, 1 },
             { 80, 80, 1, 2, 30, 1 },
         }) {
        for (const int64_t n_rows : { 1, 2, 4, 8, 16, 20 }) {
            product        p;
            ggml_context * ctx     = p.ctx.get();
            const auto     n       = of.n_streams;
            ggml_tensor *  queries = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, of.n_key_values, of.n_heads, n_rows, n);
            ggml_tensor * keys = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, of.n_key_values, of.n_key_heads, of.n_cache, n);
            ggml_tensor * values = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, of.n_values, of.n_key_heads, of.n_cache, n);
            ggml_tensor * mask   = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, of.n_cache, n_rows, 1, n);

            // rows [row, row + n_together) of streams [stream, stream + n_apart)
            const auto attention = [&](int64_t row, int64_t n_together, int64_t stream, int64_t n_apart) {
                const auto part = [&](ggml_tensor * tensor, int64_t n_second, int64_t second) {
                    const auto & nb = tensor->nb;
                    return ggml_view_4d(ctx, tensor, tensor->ne[0], n_second, tensor->ne[2], n_apart, nb[1], nb[2],
                                        nb[3], second * nb[1] + stream * nb[3]);
                };
                ggml_tensor * q = part(ggml_permute(ctx, queries, 0, 2, 1, 3), n_together, row);
                ggml_tensor * k = part(ggml_permute(ctx, keys, 0, 2, 1, 3), of.n_cache, 0);
                ggml_tensor * v = part(ggml_permute(ctx, values, 0, 2, 1, 3), of.n_cache, 0);
                return ggml_flash_attn_ext(ctx, q, k, v, part(mask, n_together, row), 0.125f, 0.0f, 0.0f);
            };
            ggml_tensor * marked = attention(0, n_rows, 0, n);
            marked->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
            std::vector<ggml_tensor *> single;
            for (int64_t stream = 0; stream < n; ++stream) {
                for (int64_t row = 0; row < n_rows; ++row) {
                    single.push_back(attention(row, 1, stream, 1));
                }
            }
            p.alloc();

            const auto set = [](ggml_tensor * tensor, std::vector<float> data) {
                if (tensor->type == GGML_TYPE_F32) {
                    ggml_backend_tensor_set(tensor, data.data(), 0, ggml_nbytes(tensor));
                    return;
                }
                std::vector<ggml_fp16_t> rounded(data.size());
                ggml_fp32_to_fp16_row(data.data(), rounded.data(), data.size());
                ggml_backend_tensor_set(tensor, rounded.data(), 0, ggml_nbytes(tensor));
            };
            for (auto * tensor : { queries, keys, values }) {
                set(tensor, random_values(ggml_nelements(tensor)));
            }
            std::vector<float> seen;
            for (int64_t stream = 0; stream < n; ++stream) {
                for (int64_t row = 0; row < n_rows; ++row) {
                    for (int64_t cell = 0; cell < of.n_cache; ++cell) {
                        seen.push_back(mask_value(row + stream, cell, of.n_cache, n_rows));
                    }
                }
            }
            set(mask, seen);

            std::vector<float> expected;
            for (auto * node : single) {
                const auto row = p.result(node);
                expected.insert(expected.end(), row.begin(), row.end());
            }
            CHECK(p.result(marked) == expected);
        }
    }
}

// and everything it is made of
static void mark(ggml_tensor * node) {
    node->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    for (auto * source : node->src) {
        if (source) {
            mark(source);
        }
    }
}

// Norms with their weights, which are fused, and what comes after them: of all rows, then of the first one alone. Nodes of
// one thread follow those of all threads and come before them.
static void small_nodes_are_what_they_are_without_the_mark() {
    for (const int64_t n_values : { 32, 1024, 1025 }) {
        for (const int64_t n_rows : { 1, 2, 7 }) {
            product        p;
            ggml_context * ctx     = p.ctx.get();
            ggml_tensor *  rows    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, n_rows);
            ggml_tensor *  weights = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_values);

            const auto layer = [&](ggml_tensor * input) {
                ggml_tensor * norm = ggml_mul(ctx, ggml_rms_norm(ctx, input, 1e-6f), weights);
                return ggml_soft_max(ctx, ggml_add(ctx, ggml_scale(ctx, norm, 1.5f), input));
            };
            const auto build = [&] {
                ggml_tensor * all = layer(rows);
                ggml_tensor * one = layer(ggml_view_1d(ctx, all, n_values, 0));
                return layer(ggml_add(ctx, ggml_scale(ctx, all, 2.0f), one));
            };
            ggml_tensor * plain  = build();
            ggml_tensor * marked = build();
            mark(marked);
            p.alloc();
            for (auto * tensor : { rows, weights }) {
                const auto values = random_values(ggml_nelements(tensor));
                ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
            }
            CHECK(p.result(marked) == p.result(plain));
        }
    }
}

int main() {
    RUN(the_scalar_kernel_computes_the_product);
    RUN(every_instruction_set_computes_what_the_scalar_kernel_does);
    RUN(a_row_is_the_same_among_any_number_of_others);
    RUN(rows_together_are_rows_one_by_one);
    RUN(experts_are_products_with_their_matrices);
    RUN(attention_of_several_rows_is_that_of_each);
    RUN(small_nodes_are_what_they_are_without_the_mark);
    return g_n_failed > 0;
}
