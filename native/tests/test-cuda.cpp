// The CUDA backend against the CPU backend. Without a GPU there is nothing to test.

#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "random-values.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

static constexpr int SKIPPED = 77; // for CTest

static ggml_backend_dev_t g_gpu = nullptr;

enum class fused { NOTHING, GATE, BIAS, RESIDUAL };

struct product {
    int64_t                           n_values;
    int64_t                           n_out;
    int64_t                           n_experts; // 0: a plain product
    std::vector<uint8_t>              matrix;
    std::vector<uint8_t>              gate;      // empty: none
    std::vector<std::vector<float>>   rows;
    std::vector<std::vector<int32_t>> experts;   // of each row
    std::vector<float>                bias;      // empty: none
    std::vector<std::vector<float>>   residual;  // of each row; empty: none

    // of the rows [begin, end)
    std::vector<float> compute(ggml_backend_dev_t device, size_t begin, size_t end) const {
        const int64_t    n        = end - begin;
        const int64_t    n_places = n_experts ? experts[0].size() : 1;
        ggml_backend_ptr backend{ ggml_backend_dev_init(device, nullptr) };
        ggml_context_ptr weights_ctx{ ggml_init({ 1 << 16, nullptr, true }) };
        ggml_context_ptr ctx{ ggml_init({ 1 << 16, nullptr, true }) };

        const auto new_weights = [&] {
            return n_experts ? ggml_new_tensor_3d(weights_ctx.get(), GGML_TYPE_Q8_0, n_values, n_out, n_experts) :
                               ggml_new_tensor_2d(weights_ctx.get(), GGML_TYPE_Q8_0, n_values, n_out);
        };
        ggml_tensor * matrix_tensor = new_weights();
        ggml_tensor * gate_tensor   = new_weights();
        ggml_tensor * rows_tensor   = n_experts ? ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, n_values, 1, n) :
                                                  ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_values, n);
        ggml_tensor * ids           = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, n_places, n);
        ggml_tensor * bias_tensor   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n_out);
        ggml_tensor * rest_tensor   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_out, n);

        const auto multiply = [&](ggml_tensor * weights) {
            return n_experts ? ggml_mul_mat_id(ctx.get(), weights, rows_tensor, ids) :
                               ggml_mul_mat(ctx.get(), weights, rows_tensor);
        };
        ggml_tensor * out = multiply(matrix_tensor);
        if (!gate.empty()) {
            out = ggml_swiglu_split(ctx.get(), multiply(gate_tensor), out);
        }
        if (!bias.empty()) {
            out = ggml_add(ctx.get(), out, bias_tensor);
        }
        if (!residual.empty()) {
            out = ggml_add(ctx.get(), out, rest_tensor);
        }
        ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 16, false);
        ggml_build_forward_expand(gf, out);
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        }

        ggml_backend_buffer_ptr weights_buf{ ggml_backend_alloc_ctx_tensors(weights_ctx.get(), backend.get()) };
        ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) };
        ggml_backend_buffer_set_usage(weights_buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_tensor_set(matrix_tensor, matrix.data(), 0, matrix.size());
        ggml_backend_tensor_set(gate_tensor, gate.data(), 0, gate.size());
        for (int64_t i = 0; i < n; ++i) {
            const size_t size = n_values * sizeof(float);
            ggml_backend_tensor_set(rows_tensor, rows[begin + i].data(), i * size, size);
            if (!residual.empty()) {
                ggml_backend_tensor_set(rest_tensor, residual[begin + i].data(), i * n_out * sizeof(float),
                                        n_out * sizeof(float));
            }
            if (n_experts) {
                ggml_backend_tensor_set(ids, experts[begin + i].data(), i * ids->nb[1], ids->nb[1]);
            }
        }
        ggml_backend_tensor_set(bias_tensor, bias.data(), 0, bias.size() * sizeof(float));
        CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS);
        std::vector<float> res(ggml_nelements(out));
        ggml_backend_tensor_get(out, res.data(), 0, ggml_nbytes(out));
        return res;
    }
};

static product random_product(int64_t n_values, int64_t n_out, int64_t n_rows, int64_t n_experts, fused what) {
    product p{ n_values, n_out, n_experts, {}, {}, {}, {}, {}, {} };
    p.matrix = random_q8_0(std::max<int64_t>(n_experts, 1) * n_out, n_values);
    if (what == fused::GATE) {
        p.gate = random_q8_0(std::max<int64_t>(n_experts, 1) * n_out, n_values);
    }
    if (what == fused::BIAS) {
        p.bias = random_values(n_out);
    }
    for (int64_t i = 0; i < n_rows; ++i) {
        if (what == fused::RESIDUAL) {
            p.residual.push_back(random_values(n_out));
        }
        p.rows.push_back(random_values(n_values));
        if (n_experts) { // the first one is every row's
            p.experts.push_back(
                { 1, (int32_t) ((2 + i) % n_experts), (int32_t) ((2 + i / 2 + n_experts / 2) % n_experts) });
        }
    }
    return p;
}

static void check(const product & p) {
    const size_t n_rows   = p.rows.size();
    const auto   together = p.compute(g_gpu, 0, n_rows);

    std::vector<float> alone;
    for (size_t i = 0; i < n_rows; ++i) {
        const auto row = p.compute(g_gpu, i, i + 1);
        alone.insert(alone.end(), row.begin(), row.end());
    }
    CHECK(together == alone);

    const auto cpu = p.compute(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), 0, n_rows);

    double error = 0.0;
    double scale = 0.0;
    for (size_t i = 0; i < cpu.size(); ++i) {
        error = std::max(error, (double) std::fabs(together[i] - cpu[i]));
        scale = std::max(scale, (double) std::fabs(cpu[i]));
    }
    CHECK(error < 2e-3 * scale); // activations are rounded to 8 bits there and here, sometimes to different ones
}

static void products_are_right_and_rows_do_not_matter() {
    for (const int64_t n_values : { 64, 192, 512, 1408, 4096, 12288, 18432 }) {
        for (const int64_t n_out : { 1, 77, 1024, 5001 }) {
            for (const int64_t n_rows : { 1, 2, 3, 4, 5, 6, 7, 8 }) {
                for (const fused what : { fused::NOTHING, fused::GATE, fused::BIAS, fused::RESIDUAL }) {
                    if (n_values * n_out < 2000000 || (n_rows % 4 == 0 && what != fused::BIAS)) {
                        check(random_product(n_values, n_out, n_rows, 0, what));
                    }
                }
            }
        }
    }
}

static void experts_are_right_and_rows_do_not_matter() {
    for (const int64_t n_values : { 64, 512, 1408, 4096 }) {
        for (const int64_t n_out : { 77, 1024 }) {
            for (const int64_t n_rows : { 1, 2, 4, 7, 8 }) {
                for (const fused what : { fused::NOTHING, fused::GATE }) {
                    check(random_product(n_values, n_out, n_rows, 7, what));
                }
            }
        }
    }
}

static void routers_are_right_and_rows_do_not_matter() {
    const auto matrix = random_values(40 * 256);
    const auto rows   = random_values(8 * 256);

    std::vector<float> together;
    std::vector<float> alone;
    for (const int64_t n_rows : { 8, 1 }) {
        for (int64_t first = 0; first < 8; first += n_rows) {
            ggml_backend_ptr backend{ ggml_backend_dev_init(g_gpu, nullptr) };
            ggml_context_ptr ctx{ ggml_init({ 1 << 16, nullptr, true }) };
            ggml_tensor *    weights = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 256, 40);
            ggml_tensor *    input   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 256, n_rows);
            ggml_tensor *    out     = ggml_mul_mat(ctx.get(), weights, input);
            ggml_cgraph *    gf      = ggml_new_graph_custom(ctx.get(), 4, false);
            ggml_build_forward_expand(gf, out);
            out->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
            ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) };
            ggml_backend_tensor_set(weights, matrix.data(), 0, ggml_nbytes(weights));
            ggml_backend_tensor_set(input, rows.data() + first * 256, 0, ggml_nbytes(input));
            CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS);
            std::vector<float> res(ggml_nelements(out));
            ggml_backend_tensor_get(out, res.data(), 0, ggml_nbytes(out));
            auto & all = n_rows == 8 ? together : alone;
            all.insert(all.end(), res.begin(), res.end());
        }
    }
    CHECK(together == alone);
    for (int64_t row = 0; row < 8; ++row) {
        for (int64_t i = 0; i < 40; ++i) {
            double expected = 0.0;
            for (int64_t k = 0; k < 256; ++k) {
                expected += (double) matrix[i * 256 + k] * rows[row * 256 + k];
            }
            CHECK(std::fabs(together[row * 40 + i] - expected) < 1e-5);
        }
    }
}

static void the_first_of_the_highest_is_found() {
    for (const int64_t n : { 100, 16384, 152064 }) {
        ggml_backend_ptr backend{ ggml_backend_dev_init(g_gpu, nullptr) };
        ggml_context_ptr ctx{ ggml_init({ 1 << 16, nullptr, true }) };
        ggml_tensor *    rows = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n, 3);
        ggml_tensor *    best = ggml_argmax(ctx.get(), rows);
        ggml_cgraph *    gf   = ggml_new_graph_custom(ctx.get(), 4, false);
        ggml_build_forward_expand(gf, best);
        best->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) };

        auto values                   = random_values(3 * n);
        values[n / 2]                 = 3.0f;
        values[n + n - 1]             = 3.0f;
        values[2 * n + n / 3]         = 3.0f;
        values[2 * n + n / 3 * 2 + 1] = n < 16384 ? 0.0f : 3.0f; // of short rows any of them may be
        values[0]                     = -INFINITY;
        ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));
        CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS);
        std::vector<int32_t> found(3);
        ggml_backend_tensor_get(best, found.data(), 0, ggml_nbytes(best));
        CHECK(found == std::vector<int32_t>({ (int32_t) (n / 2), (int32_t) (n - 1), (int32_t) (n / 3) }));
    }
}

int main() {
    ggml_backend_load_all();
    g_gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!g_gpu) {
        std::puts("no GPU");
        return SKIPPED;
    }
    RUN(products_are_right_and_rows_do_not_matter);
    RUN(experts_are_right_and_rows_do_not_matter);
    RUN(routers_are_right_and_rows_do_not_matter);
    RUN(the_first_of_the_highest_is_found);
    return g_n_failed > 0;
}
