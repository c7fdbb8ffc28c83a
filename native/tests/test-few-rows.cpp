#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"

#include <vector>

static constexpr int64_t N_THREADS = 3;

static void set_q8_0(ggml_tensor * tensor) {
    const auto data = random_q8_0(ggml_nrows(tensor), tensor->ne[0]);
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
}

static std::vector<float> compute(ggml_context * ctx, ggml_backend_t backend, ggml_tensor * node) {
    ggml_cgraph * gf = ggml_new_graph_custom(ctx, 8, false);
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

int main() {
    RUN(rows_together_are_rows_one_by_one);
    RUN(experts_are_what_they_are_without_the_mark);
    return g_n_failed > 0;
}
