// Products of quantized matrices on a GPU, and those of the CPU that they are compared with.

#pragma once

#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "random-values.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

static constexpr int SKIPPED = 77; // for CTest

static ggml_backend_dev_t g_gpu = nullptr;

// what nodes are marked with
static int32_t g_marks = GGML_TENSOR_FLAG_SINGLE_ROWS;

// whether a backend has a GPU, which is then what is tested
static bool find_gpu(const char * backend) {
    ggml_backend_load_all();
    ggml_backend_reg_t reg = ggml_backend_reg_by_name(backend);
    g_gpu                  = reg && ggml_backend_reg_dev_count(reg) ? ggml_backend_reg_dev_get(reg, 0) : nullptr;
    if (!g_gpu) {
        std::printf("%s has no GPU\n", backend);
    }
    return g_gpu;
}

// A graph on a device, whose nodes are marked as those of passes in which the number of rows must not matter.
class graph {
    ggml_backend_ptr        backend;
    ggml_context_ptr        weights_ctx{ ggml_init({ 1 << 16, nullptr, true }) };
    ggml_context_ptr        nodes_ctx{ ggml_init({ 1 << 16, nullptr, true }) };
    ggml_backend_buffer_ptr weights_buf;
    ggml_backend_buffer_ptr nodes_buf;
    ggml_cgraph *           gf = ggml_new_graph_custom(nodes_ctx.get(), 32, false);

  public:
    explicit graph(ggml_backend_dev_t device) : backend(ggml_backend_dev_init(device, nullptr)) {}

    ggml_context * weights() const { return weights_ctx.get(); }

    ggml_context * nodes() const { return nodes_ctx.get(); }

    // what is computed, in this order; then values can be set
    void build(const std::vector<ggml_tensor *> & results) {
        for (auto * result : results) {
            ggml_build_forward_expand(gf, result);
        }
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            ggml_graph_node(gf, i)->flags |= g_marks;
        }
        if (ggml_get_first_tensor(weights())) {
            weights_buf.reset(ggml_backend_alloc_ctx_tensors(weights(), backend.get()));
            ggml_backend_buffer_set_usage(weights_buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        }
        nodes_buf.reset(ggml_backend_alloc_ctx_tensors(nodes(), backend.get()));
    }

    void compute() { CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS); }
};

// from the beginning, or from that row on
template <typename T> static void set(ggml_tensor * tensor, const std::vector<T> & values, int64_t row = 0) {
    ggml_backend_tensor_set(tensor, values.data(), row * tensor->nb[1], values.size() * sizeof(T));
}

template <typename T> static std::vector<T> get(const ggml_tensor * tensor) {
    std::vector<T> values(ggml_nelements(tensor));
    ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
    return values;
}

enum class fused { NOTHING, GATE, BIAS, RESIDUAL };

static std::vector<float> unquantized(ggml_type type, const std::vector<uint8_t> & weights) {
    std::vector<float> res(weights.size() / ggml_type_size(type) * ggml_blck_size(type));
    ggml_get_type_traits(type)->to_float(weights.data(), res.data(), res.size());
    return res;
}

// which 8 bits for each do not change
static std::vector<float> random_row(int64_t n_values) {
    return unquantized(GGML_TYPE_Q8_0, random_q8_0(1, n_values));
}

struct product {
    ggml_type                         type;
    int64_t                           n_values;
    int64_t                           n_out;
    int64_t                           n_experts; // 0: a plain product
    std::vector<uint8_t>              matrix;
    std::vector<uint8_t>              gate;      // empty: none
    std::vector<std::vector<float>>   rows;
    std::vector<std::vector<int32_t>> experts;   // of each row
    std::vector<float>                bias;      // empty: none
    std::vector<std::vector<float>>   residual;  // of each row; empty: none
    bool                              by_place;  // each expert of a row multiplies another one: of as many that follow

    // of the rows [begin, end). The CPU has the weights as floats, and so rounds nothing.
    std::vector<float> compute(ggml_backend_dev_t device, size_t begin, size_t end) const {
        const int64_t   n        = end - begin;
        const int64_t   n_places = n_experts ? experts[0].size() : 1;
        const bool      is_exact = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        const ggml_type kind     = is_exact ? GGML_TYPE_F32 : type;
        graph           gf(device);
        auto *          ctx = gf.nodes();

        const auto new_weights = [&] {
            return n_experts ? ggml_new_tensor_3d(gf.weights(), kind, n_values, n_out, n_experts) :
                               ggml_new_tensor_2d(gf.weights(), kind, n_values, n_out);
        };
        ggml_tensor * matrix_tensor = new_weights();
        ggml_tensor * gate_tensor   = new_weights();
        const int64_t n_rows        = by_place ? n_places : 1; // of each
        ggml_tensor * rows_tensor   = n_experts ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_values, n_rows, n) :
                                                  ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, n);
        ggml_tensor * all_ids       = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_places + 3, n); // as a router has them
        ggml_tensor * ids           = ggml_view_2d(ctx, all_ids, n_places, n, all_ids->nb[1], 0);
        ggml_tensor * bias_tensor   = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_out);
        ggml_tensor * rest_tensor   = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_out, n);

        const auto multiply = [&](ggml_tensor * weights) {
            return n_experts ? ggml_mul_mat_id(ctx, weights, rows_tensor, ids) :
                               ggml_mul_mat(ctx, weights, rows_tensor);
        };
        ggml_tensor * out = multiply(matrix_tensor);
        if (!gate.empty()) {
            out = ggml_swiglu_split(ctx, multiply(gate_tensor), out);
        }
        if (!bias.empty()) {
            out = ggml_add(ctx, out, bias_tensor);
        }
        if (!residual.empty()) {
            out = ggml_add(ctx, out, rest_tensor);
        }
        gf.build({ out });
        const auto set_weights = [&](ggml_tensor * tensor, const std::vector<uint8_t> & weights) {
            is_exact ? set(tensor, unquantized(type, weights)) : set(tensor, weights);
        };
        set_weights(matrix_tensor, matrix);
        set_weights(gate_tensor, gate);
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t k = 0; k < n_rows; ++k) {
                ggml_backend_tensor_set(rows_tensor, rows[(begin + i + k) % rows.size()].data(),
                                        (i * n_rows + k) * n_values * sizeof(float), n_values * sizeof(float));
            }
            if (!residual.empty()) {
                set(rest_tensor, residual[begin + i], i);
            }
            if (n_experts) {
                set(ids, experts[begin + i], i);
            }
        }
        set(bias_tensor, bias);
        gf.compute();
        return get<float>(out);
    }
};

static product random_product(ggml_type type, int64_t n_values, int64_t n_out, int64_t n_rows, int64_t n_experts,
                              fused what) {
    product p{ type, n_values, n_out, n_experts, {}, {}, {}, {}, {}, {}, false };
    p.matrix = random_quantized(type, std::max<int64_t>(n_experts, 1) * n_out, n_values);
    if (what == fused::GATE) {
        p.gate = random_quantized(type, std::max<int64_t>(n_experts, 1) * n_out, n_values);
    }
    if (what == fused::BIAS) {
        p.bias = random_values(n_out);
    }
    for (int64_t i = 0; i < n_rows; ++i) {
        if (what == fused::RESIDUAL) {
            p.residual.push_back(random_values(n_out));
        }
        p.rows.push_back(random_row(n_values));
        if (n_experts) { // the first one is every row's
            p.experts.push_back(
                { 1, (int32_t) ((2 + i) % n_experts), (int32_t) ((2 + i / 2 + n_experts / 2) % n_experts) });
        }
    }
    return p;
}

// what a product's rows have, in another order
template <typename T> static void rotate(T & p, size_t n) {
    const auto one = [&](auto & values) {
        if (!values.empty()) {
            std::rotate(values.begin(), values.begin() + n, values.end());
        }
    };
    one(p.rows);
    if constexpr (std::is_same_v<T, product>) {
        one(p.experts);
        one(p.residual);
    }
}

// the largest difference as a share of the largest value that was expected; no number if a result is none
static double relative_error(const std::vector<float> & results, const std::vector<float> & expected) {
    double error = 0.0;
    double scale = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
        if (std::isnan(results[i])) {
            return NAN;
        }
        error = std::max(error, (double) std::fabs(results[i] - expected[i]));
        scale = std::max(scale, (double) std::fabs(expected[i]));
    }
    return error / scale;
}

// of a product, or of several
template <typename T> static void check(const T & p) {
    const size_t n_rows   = p.rows.size();
    const bool   is_few   = n_rows <= 16;
    const auto   together = p.compute(g_gpu, 0, n_rows);

    std::vector<float> others; // the same rows, alone, or next to others
    for (size_t i = 0; is_few && i < n_rows; ++i) {
        const auto row = p.compute(g_gpu, i, i + 1);
        others.insert(others.end(), row.begin(), row.end());
    }
    if (!is_few) {
        T rotated = p;
        rotate(rotated, 5);
        others = rotated.compute(g_gpu, 0, n_rows);
        std::rotate(others.begin(), others.end() - 5 * (others.size() / n_rows), others.end());
    }
    CHECK(n_rows > 64 || together == others);

    const auto cpu = p.compute(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), 0, n_rows);
    // activations are rounded to 8 bits there, and here if they are few, sometimes to different ones
    CHECK(relative_error(together, cpu) < (is_few ? 2e-3 : 2e-2));
}
