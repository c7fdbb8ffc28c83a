#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"

#include <algorithm>
#include <cmath>
#include <vector>

static constexpr int64_t N_THREADS = 3;

static void set_q8_0(ggml_tensor * tensor) {
    const auto data = random_q8_0(ggml_nrows(tensor), tensor->ne[0]);
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

static void rows_together_are_rows_one_by_one() {
    for (const int64_t n_values : { 32, 160, 512 }) {
        for (const int64_t n_out : { 1, 31, 32, 33, 130 }) {
            for (int64_t n_rows = 1; n_rows <= 18; ++n_rows) {
                product                    p;
                ggml_context *             ctx     = p.ctx.get();
                ggml_tensor *              weights = ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, n_values, n_out);
                ggml_tensor *              rows    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, n_rows);
                ggml_tensor *              marked  = ggml_mul_mat(ctx, weights, rows);
                std::vector<ggml_tensor *> single;
                marked->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
                for (int64_t i = 0; i < n_rows; ++i) {
                    single.push_back(ggml_mul_mat(ctx, weights, ggml_view_1d(ctx, rows, n_values, i * rows->nb[1])));
                }
                p.alloc();
                set_q8_0(weights);
                const auto values = random_values(ggml_nelements(rows));
                ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));

                std::vector<float> expected;
                for (auto * node : single) {
                    const auto row = p.result(node);
                    expected.insert(expected.end(), row.begin(), row.end());
                }
                CHECK(p.result(marked) == expected);
            }
        }
    }
}

static void experts_are_what_they_are_without_the_mark() {
    for (const int64_t n_rows : { 1, 2, 5, 20 }) {
        for (const int64_t n_places : { 1, 2 }) { // activations of their own for each of a row's experts, or not
            product        p;
            ggml_context * ctx     = p.ctx.get();
            ggml_tensor *  weights = ggml_new_tensor_3d(ctx, GGML_TYPE_Q8_0, 96, 70, 3);
            ggml_tensor *  rows    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 96, n_places, n_rows);
            ggml_tensor *  ids     = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, n_rows);
            ggml_tensor *  marked  = ggml_mul_mat_id(ctx, weights, rows, ids);
            ggml_tensor *  other   = ggml_mul_mat_id(ctx, weights, rows, ids);
            marked->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
            p.alloc();
            set_q8_0(weights);
            const auto values = random_values(ggml_nelements(rows));
            ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));
            std::vector<int32_t> experts;
            for (int32_t i = 0; i < n_rows; ++i) {
                experts.insert(experts.end(), { i % 3, (i + 1) % 3 });
            }
            ggml_backend_tensor_set(ids, experts.data(), 0, ggml_nbytes(ids));
            CHECK(p.result(marked) == p.result(other));
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
    RUN(rows_together_are_rows_one_by_one);
    RUN(experts_are_what_they_are_without_the_mark);
    RUN(attention_of_several_rows_is_that_of_each);
    RUN(small_nodes_are_what_they_are_without_the_mark);
    return g_n_failed > 0;
}
