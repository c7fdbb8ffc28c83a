// The CUDA backend against the CPU backend. Without a GPU there is nothing to test. test-cuda small: fewer shapes, for
// compute-sanitizer; test-cuda 3 16: the fourth of sixteen parts of the tests.

#include "check.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "gpu-products.h"
#include "random-values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

static bool g_small = false;

// sizes to test: small, the first and the last
static std::vector<int64_t> sizes(const std::vector<int64_t> & all) {
    return g_small ? std::vector<int64_t>{ all.front(), all.back() } : all;
}

// types that have kernels for few rows
static constexpr ggml_type TYPES[] = { GGML_TYPE_Q8_0,  GGML_TYPE_Q5_0,  GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL,
                                       GGML_TYPE_MXFP4, GGML_TYPE_Q3_K,  GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                       GGML_TYPE_Q6_K,  GGML_TYPE_IQ4_XS };

static void products_are_right_and_rows_do_not_matter() {
    for (const int64_t n_values : sizes({ 64, 192, 512, 1408, 4096, 12288, 18432 })) {
        for (const int64_t n_out : sizes({ 1, 77, 1024, 5001 })) {
            for (const int64_t n_rows : sizes({ 1, 2, 3, 4, 5, 6, 8, 9, 16 })) {
                for (const fused what : { fused::NOTHING, fused::GATE, fused::BIAS, fused::RESIDUAL }) {
                    if (n_values * n_out < 2000000 || (n_rows % 4 == 0 && what != fused::BIAS)) {
                        check(random_product(GGML_TYPE_Q8_0, n_values, n_out, n_rows, 0, what));
                    }
                }
            }
        }
    }
}

// a part of a product: its first rows, with one thing fused
static product part_of(const product & all, size_t n_rows, fused what) {
    product p = all;
    p.rows.resize(n_rows);
    p.experts.resize(all.n_experts ? n_rows : 0);
    p.residual.resize(what == fused::RESIDUAL ? n_rows : 0);
    p.gate.resize(what == fused::GATE ? all.gate.size() : 0);
    p.bias.resize(what == fused::BIAS ? all.bias.size() : 0);
    return p;
}

// with all that can be fused: quantizing takes longer than all products
static product whole_product(ggml_type type, int64_t n_values, int64_t n_out, int64_t n_experts, int64_t n_rows = 8) {
    product p = random_product(type, n_values, n_out, n_rows, n_experts, fused::GATE);
    p.bias    = random_values(n_out);
    for (size_t i = 0; i < p.rows.size(); ++i) {
        p.residual.push_back(random_values(n_out));
    }
    return p;
}

static void products_of_all_types_are_right_and_rows_do_not_matter() {
    for (const ggml_type type : TYPES) {
        const int failed_before = g_n_failed;
        for (const int64_t n_values : sizes({ 256, 768, 2304, 4096, 10240, 18688 })) {
            for (const int64_t n_out : sizes({ 1, 77, 301 })) {
                if (n_values * n_out > 2000000) {
                    continue;
                }
                const product all = whole_product(type, n_values, n_out, 0);
                for (const int64_t n_rows : sizes({ 1, 2, 3, 4, 5, 6, 7, 8 })) {
                    for (const fused what : { fused::NOTHING, fused::GATE, fused::BIAS, fused::RESIDUAL }) {
                        if ((n_rows + (int) what + n_values / 256) % 2 == 0) {
                            check(part_of(all, n_rows, what));
                        }
                    }
                }
            }
        }
        const product all = whole_product(type, 2048, 5001, 0);
        check(part_of(all, 1, fused::GATE));
        check(part_of(all, 4, fused::NOTHING));
        if (g_n_failed != failed_before) {
            std::printf("%s is wrong\n", ggml_type_name(type));
        }
    }
}

// with enough steps for Hopper to take 128 rows at a time
static void products_of_many_steps_are_right() {
    for (const ggml_type type : TYPES) {
        const product all = whole_product(type, 4096, 6001, 0, 300);
        for (const int64_t n_rows : { 129, 300 }) {
            check(part_of(all, n_rows, fused::NOTHING));
            check(part_of(all, n_rows, fused::GATE));
        }
    }
}

static void experts_are_right_and_rows_do_not_matter() {
    for (const ggml_type type : TYPES) {
        const int failed_before = g_n_failed;
        for (const int64_t n_values : { 512, 1536, 4096 }) {
            const product all = whole_product(type, n_values, n_values == 1536 ? 301 : 77, 7);
            for (const int64_t n_rows : sizes({ 1, 2, 4, 7, 8 })) {
                for (const fused what : { fused::NOTHING, fused::GATE }) {
                    check(part_of(all, n_rows, what));
                }
            }
        }
        if (g_n_failed != failed_before) {
            std::printf("experts of %s are wrong\n", ggml_type_name(type));
        }
    }
    for (const int64_t n_rows : sizes({ 1, 2, 4, 7, 8 })) { // which other types cannot have
        check(random_product(GGML_TYPE_Q8_0, 1408, 77, n_rows, 7, fused::GATE));
    }
}

// By groups of those that have the same expert, on tensor cores: up to 16 tokens what the kernel for few rows gives, of more
// halves may have been multiplied.
static void experts_of_more_rows_are_those_of_few() {
    for (const ggml_type type : TYPES) {
        const int64_t n_block = ggml_blck_size(type) == 32 ? 64 : 256;
        for (const int64_t n_values : { (int64_t) 512, 2048 + 3 * n_block }) {
            for (const int64_t n_experts : { 7, 40 }) {
                for (const int64_t n_rows : { 5, 16, 41, 100, 300, 515 }) {
                    for (const fused what : { fused::NOTHING, fused::GATE }) {
                        product            p = random_product(type, n_values, 45, n_rows, n_experts, what);
                        std::vector<float> few;
                        p.by_place = what == fused::NOTHING;
                        for (int64_t i = 0; i < std::min<int64_t>(n_rows, 16); i += 4) {
                            const auto part = p.compute(g_gpu, i, std::min(i + 4, n_rows));
                            few.insert(few.end(), part.begin(), part.end());
                        }
                        auto found = p.compute(g_gpu, 0, n_rows);
                        found.resize(few.size()); // of the first rows
                        const bool is_same = n_rows <= 16 ? found == few : relative_error(found, few) < 1e-2;
                        if (!is_same) {
                            std::printf("experts of %s: %d values, %d rows, %d experts\n", ggml_type_name(type),
                                        (int) n_values, (int) n_rows, (int) n_experts);
                        }
                        CHECK(is_same);
                    }
                }
            }
        }
    }
}

// Up to 16 rows give what each alone gives; from 17 to 64 each gives the same bits, wherever it is and however many there
// are.
static void more_rows_are_right_and_do_not_matter() {
    static constexpr int64_t N_ROWS = 600;
    for (const ggml_type type : TYPES) {
        const int failed_before = g_n_failed;
        for (const int64_t n_values : sizes({ 256, 2304, 4096, 12288 })) {
            const int64_t n_out = n_values == 4096 ? 301 : 77;
            const product all   = whole_product(type, n_values, n_out, 0, N_ROWS);
            for (const int64_t n_rows : sizes({ 9, 16, 17, 32, 33, 64, 65, 129, N_ROWS })) {
                for (const fused what : { fused::NOTHING, fused::GATE, fused::BIAS, fused::RESIDUAL }) {
                    const product part = part_of(all, n_rows, what);
                    check(part);
                    const auto first = part.compute(g_gpu, 0, 17);
                    CHECK(n_rows <= 16 || n_rows > 64 ||
                          std::equal(first.begin(), first.end(), part.compute(g_gpu, 0, n_rows).begin()));
                }
            }
        }
        if (g_n_failed != failed_before) {
            std::printf("more rows of %s are wrong\n", ggml_type_name(type));
        }
    }
}

static void routers_are_right_and_rows_do_not_matter() {
    const auto matrix = random_values(40 * 256);
    const auto rows   = random_values(16 * 256);

    std::vector<float> together;
    std::vector<float> alone;
    for (const int64_t n_rows : { 16, 1 }) {
        for (int64_t first = 0; first < 16; first += n_rows) {
            graph         gf(g_gpu);
            ggml_tensor * weights = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_F32, 256, 40);
            ggml_tensor * input   = ggml_new_tensor_2d(gf.nodes(), GGML_TYPE_F32, 256, n_rows);
            ggml_tensor * out     = ggml_mul_mat(gf.nodes(), weights, input);
            gf.build({ out });
            set(weights, matrix);
            ggml_backend_tensor_set(input, rows.data() + first * 256, 0, ggml_nbytes(input));
            gf.compute();
            const auto res = get<float>(out);
            auto &     all = n_rows == 16 ? together : alone;
            all.insert(all.end(), res.begin(), res.end());
        }
    }
    CHECK(together == alone);
    for (int64_t row = 0; row < 16; ++row) {
        for (int64_t i = 0; i < 40; ++i) {
            double expected = 0.0;
            for (int64_t k = 0; k < 256; ++k) {
                expected += (double) matrix[i * 256 + k] * rows[row * 256 + k];
            }
            CHECK(std::fabs(together[row * 40 + i] - expected) < 1e-5);
        }
    }
}

// What two products make of one RMS norm, of rows [begin, end): the activations are quantized once, by the norm itself. A
// gated result may be where the norm's was.
struct norm_with_products {
    static constexpr int64_t N_OUT = 77;

    int64_t                         n_values;
    bool                            is_gated;
    std::vector<std::vector<float>> rows;
    std::vector<float>              weights     = random_values(n_values);
    std::vector<uint8_t>            matrices[2] = { random_q8_0(N_OUT, n_values), random_q8_0(N_OUT, n_values) };

    std::vector<float> compute(ggml_backend_dev_t device, size_t begin, size_t end) const {
        graph         gf(device);
        auto *        ctx     = gf.nodes();
        ggml_tensor * input   = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, end - begin);
        ggml_tensor * factors = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_values);
        ggml_tensor * norm    = ggml_mul(ctx, ggml_rms_norm(ctx, input, 1e-6f), factors);

        std::vector<ggml_tensor *> q8_0;
        std::vector<ggml_tensor *> products;
        for (size_t i = 0; i < 2; ++i) {
            q8_0.push_back(ggml_new_tensor_2d(gf.weights(), GGML_TYPE_Q8_0, n_values, N_OUT));
            products.push_back(ggml_mul_mat(ctx, q8_0[i], norm));
        }
        if (is_gated) {
            products = { ggml_swiglu_split(ctx, products[0], products[1]) };
        }
        gf.build(products);
        set(factors, weights);
        for (size_t i = 0; i < 2; ++i) {
            set(q8_0[i], matrices[i]);
        }
        for (size_t i = begin; i < end; ++i) {
            set(input, rows[i], i - begin);
        }
        gf.compute();

        std::vector<float> res; // of each row: both products
        for (size_t i = 0; i < end - begin; ++i) {
            for (const auto * product : products) {
                const auto values = get<float>(product);
                res.insert(res.end(), values.begin() + i * N_OUT, values.begin() + (i + 1) * N_OUT);
            }
        }
        return res;
    }
};

static void products_of_one_norm_are_right_and_rows_do_not_matter() {
    for (const int64_t n_values : { 512, 1024, 1408, 4096, 16384 }) { // 1408: not a whole number of blocks' padding
        for (const int64_t n_rows : { 1, 2, 4, 5, 8, 12, 64, 100 }) {
            if (n_rows > 8 && n_values % 256 != 0) {
                continue; // for llama.cpp's kernels
            }
            for (const bool is_gated : { false, true }) {
                norm_with_products p{ n_values, is_gated, {} };
                for (int64_t i = 0; i < n_rows; ++i) {
                    p.rows.push_back(random_values(n_values));
                }
                check(p);
            }
        }
    }
}

// What a product makes of gated values, of rows [begin, end): they are quantized by the gate's kernel. A row of `rows` has
// the values, then the gates: one of each head or of each value.
struct gated_product {
    static constexpr int64_t N_HEADS = 8;
    static constexpr int64_t N_OUT   = 77;

    int64_t                         n_values;
    int64_t                         n_gates;
    std::vector<std::vector<float>> rows;
    std::vector<uint8_t>            matrix = random_q8_0(N_OUT, n_values);

    std::vector<float> compute(ggml_backend_dev_t device, size_t begin, size_t end) const {
        const int64_t n_rows = end - begin;
        graph         gf(device);
        auto *        ctx     = gf.nodes();
        ggml_tensor * values  = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_values / N_HEADS, N_HEADS, n_rows);
        ggml_tensor * gates   = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_gates, n_rows);
        ggml_tensor * sigmoid = ggml_reshape_3d(ctx, ggml_sigmoid(ctx, gates), n_gates / N_HEADS, N_HEADS, n_rows);
        ggml_tensor * gated   = ggml_reshape_2d(ctx, ggml_mul(ctx, values, sigmoid), n_values, n_rows);
        ggml_tensor * weights = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_Q8_0, n_values, N_OUT);
        ggml_tensor * product = ggml_mul_mat(ctx, weights, gated);
        gf.build({ product });
        set(weights, matrix);
        for (size_t i = begin; i < end; ++i) {
            const auto & row = rows[i];
            set(values, std::vector<float>(row.begin(), row.begin() + n_values), (i - begin) * N_HEADS);
            set(gates, std::vector<float>(row.begin() + n_values, row.end()), i - begin);
        }
        gf.compute();
        return get<float>(product);
    }
};

static void products_of_gated_values_are_right_and_rows_do_not_matter() {
    for (const int64_t n_values : { 512, 2048, 1280 }) { // 1280: not a whole number of blocks' padding
        for (const int64_t n_gates : { gated_product::N_HEADS, n_values }) {
            for (const int64_t n_rows : { 1, 3, 8, 12, 100 }) {
                gated_product p{ n_values, n_gates, {} };
                for (int64_t i = 0; i < n_rows; ++i) {
                    p.rows.push_back(random_values(n_values + n_gates));
                }
                check(p);
            }
        }
    }
}

// Products of the same rows are computed together, also where the scheduler finds other nodes between them.
static void products_of_the_same_rows_are_those_of_each_alone() {
    static constexpr int64_t N_VALUES = 2048;

    const std::vector<int64_t> n_out{ 1024, 77, 256, 5, 300 };
    for (const ggml_type first : TYPES) {
        const auto type_of = [&](size_t i) {
            return i == 3 ? GGML_TYPE_Q6_K : first; // concurrent with those before it
        };
        std::vector<std::vector<uint8_t>> matrices;
        for (size_t i = 0; i < n_out.size(); ++i) {
            matrices.push_back(random_quantized(type_of(i), n_out[i], N_VALUES));
        }
        for (const int64_t n_rows : sizes({ 1, 2, 4, 7, 8, 20 })) {
            const auto input   = random_values(N_VALUES * n_rows);
            const auto compute = [&](size_t begin, size_t end) {
                graph                      gf(g_gpu);
                ggml_tensor *              rows = ggml_new_tensor_2d(gf.nodes(), GGML_TYPE_F32, N_VALUES, n_rows);
                std::vector<ggml_tensor *> weights;
                std::vector<ggml_tensor *> biases;
                std::vector<ggml_tensor *> products;
                for (size_t i = begin; i < end; ++i) {
                    weights.push_back(ggml_new_tensor_2d(gf.weights(), type_of(i), N_VALUES, n_out[i]));
                    biases.push_back(ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, n_out[i]));
                    products.push_back(ggml_mul_mat(gf.nodes(), weights.back(), rows));
                    if (i % 3 != 1) {
                        products.back() = ggml_add(gf.nodes(), products.back(), biases.back());
                    }
                }
                gf.build(products);
                for (size_t i = begin; i < end; ++i) {
                    set(weights[i - begin], matrices[i]);
                    set(biases[i - begin], std::vector<float>(n_out[i], (float) i));
                }
                set(rows, input);
                gf.compute();
                std::vector<std::vector<float>> res;
                for (const auto * product : products) {
                    res.push_back(get<float>(product));
                }
                return res;
            };
            const auto together = compute(0, n_out.size());
            for (size_t i = 0; i < n_out.size(); ++i) {
                const auto alone = compute(i, i + 1)[0];
                for (size_t k = 0; k < alone.size(); ++k) { // more rows: with others, sums are divided otherwise
                    CHECK(std::fabs(together[i][k] - alone[k]) <= (n_rows <= 16 ? 0.0f : 1e-3f));
                }
            }
        }
    }
}

static void products_of_the_same_rows_are_moved_together() {
    static constexpr int64_t N_VALUES = 1024;

    const auto       matrix_a = random_q8_0(256, N_VALUES);
    const auto       matrix_b = random_q8_0(64, N_VALUES);
    const auto       input    = random_values(2 * N_VALUES);
    ggml_backend_ptr gpu{ ggml_backend_dev_init(g_gpu, nullptr) };
    ggml_backend_ptr cpu{ ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    ggml_context_ptr weights{ ggml_init({ 1 << 16, nullptr, true }) };
    ggml_context_ptr nodes{ ggml_init({ 1 << 16, nullptr, true }) };
    auto *           ctx = nodes.get();

    ggml_tensor * a    = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, N_VALUES, 256);
    ggml_tensor * b    = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, N_VALUES, 64);
    ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_VALUES, 2);
    ggml_set_input(rows);
    ggml_tensor * first  = ggml_mul_mat(ctx, a, rows);
    ggml_tensor * square = ggml_sqr(ctx, first);
    ggml_tensor * second = ggml_mul_mat(ctx, b, rows);
    ggml_set_output(square);
    ggml_set_output(second);
    ggml_cgraph * gf = ggml_new_graph_custom(ctx, 16, false);
    ggml_build_forward_expand(gf, square);
    ggml_build_forward_expand(gf, second);
    first->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    second->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    ggml_backend_buffer_ptr buffer{ ggml_backend_alloc_ctx_tensors(weights.get(), gpu.get()) };
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    set(a, matrix_a);
    set(b, matrix_b);

    ggml_backend_t         backends[] = { gpu.get(), cpu.get() };
    ggml_backend_sched_ptr sched{ ggml_backend_sched_new(backends, nullptr, 2, 64, false, true) };
    CHECK(ggml_backend_sched_alloc_graph(sched.get(), gf));
    CHECK(ggml_graph_node(gf, 0) == first && ggml_graph_node(gf, 1) == second && ggml_graph_node(gf, 2) == square);
    set(rows, input);
    CHECK_EQUAL(ggml_backend_sched_graph_compute(sched.get(), gf), GGML_STATUS_SUCCESS);

    const product all{ GGML_TYPE_Q8_0, N_VALUES, 256, 0, matrix_a, {}, {}, {}, {}, {} };
    product       of_a = all;
    product       of_b = all;
    of_b.matrix        = matrix_b;
    of_b.n_out         = 64;
    for (auto * p : { &of_a, &of_b }) {
        p->rows = { { input.begin(), input.begin() + N_VALUES }, { input.begin() + N_VALUES, input.end() } };
    }
    auto squares = of_a.compute(g_gpu, 0, 2);
    std::transform(squares.begin(), squares.end(), squares.begin(), [](float value) { return value * value; });
    CHECK(get<float>(square) == squares);
    CHECK(get<float>(second) == of_b.compute(g_gpu, 0, 2));
}

// The memory of a product's activations gets other values, and they are multiplied again, in passes of one graph: the
// first eight launch its kernels, the ninth records it.
static void activations_that_change_are_quantized_again() {
    static constexpr int64_t N_VALUES = 1024;
    static constexpr int64_t N_OUT    = 77;

    const auto matrix = random_q8_0(N_OUT, N_VALUES);
    for (const int64_t n_rows : { 1, 4, 20 }) {
        graph         gf(g_gpu);
        auto *        ctx     = gf.nodes();
        ggml_tensor * weights = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_Q8_0, N_VALUES, N_OUT);
        ggml_tensor * input   = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_VALUES, n_rows);
        ggml_tensor * before  = ggml_mul_mat(ctx, weights, input);
        ggml_tensor * after   = ggml_mul_mat(ctx, weights, ggml_scale_inplace(ctx, input, -2.0f));
        gf.build({ before, after });
        set(weights, matrix);
        for (int pass = 0; pass < 12; ++pass) {
            const auto values = random_values(N_VALUES * n_rows);
            set(input, values);
            gf.compute();

            auto expected = get<float>(before);
            for (auto & value : expected) {
                value *= -2.0f; // and so is its scale, exactly
            }
            CHECK(get<float>(after) == expected);
            CHECK(std::any_of(expected.begin(), expected.end(), [](float value) { return value != 0.0f; }));
        }
    }
}

static void the_first_of_the_highest_is_found() {
    for (const int64_t n : { 100, 16384, 152064 }) {
        graph         gf(g_gpu);
        ggml_tensor * rows = ggml_new_tensor_2d(gf.nodes(), GGML_TYPE_F32, n, 3);
        ggml_tensor * best = ggml_argmax(gf.nodes(), rows);
        gf.build({ best });

        auto values                   = random_values(3 * n);
        values[n / 2]                 = 3.0f;
        values[n + n - 1]             = 3.0f;
        values[2 * n + n / 3]         = 3.0f;
        values[2 * n + n / 3 * 2 + 1] = n < 16384 ? 0.0f : 3.0f; // of short rows any of them may be
        values[0]                     = -INFINITY;
        set(rows, values);
        gf.compute();
        CHECK(get<int32_t>(best) == std::vector<int32_t>({ (int32_t) (n / 2), (int32_t) (n - 1), (int32_t) (n / 3) }));

        set(rows, std::vector<float>(3 * n, NAN)); // there has to be a place even so
        gf.compute();
        CHECK(get<int32_t>(best) == std::vector<int32_t>({ 0, 0, 0 }));
    }
}

static void the_highest_comes_with_its_probability() {
    for (const int64_t n : { 100, 1024, 8193, 152064 }) {
        for (const int64_t n_rows : { 1, 3 }) {
            for (const bool bars : { false, true }) {
                graph         gf(g_gpu);
                auto *        ctx    = gf.nodes();
                ggml_tensor * logits = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n_rows);
                ggml_tensor * bias   = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
                ggml_tensor * best   = ggml_argmax(ctx, bars ? ggml_add(ctx, logits, bias) : logits);
                ggml_tensor * all    = ggml_soft_max(ctx, logits);
                ggml_tensor * prob =
                    ggml_get_rows(ctx, ggml_reshape_3d(ctx, all, 1, n, n_rows), ggml_reshape_2d(ctx, best, 1, n_rows));
                gf.build({ best, prob });

                auto values = random_values(n * n_rows);
                for (auto & value : values) {
                    value *= 10.0f;
                }
                values[n / 2]      = 14.0f;
                values[n / 3]      = 15.0f;
                values[n - 1]      = -INFINITY;
                auto bias_values   = std::vector<float>(n, 0.0f);
                bias_values[n / 3] = -INFINITY;
                set(logits, values);
                set(bias, bias_values);
                set(all, std::vector<float>(n * n_rows, -1.0f));
                gf.compute();
                CHECK_EQUAL(get<float>(all)[0], -1.0f); // not computed

                const auto place = get<int32_t>(best);
                const auto found = get<float>(prob);
                for (int64_t row = 0; row < n_rows; ++row) {
                    const float * first    = values.data() + row * n;
                    int64_t       expected = 0;
                    double        sum      = 0.0;
                    for (int64_t i = 0; i < n; ++i) {
                        const bool is_barred = bars && i == n / 3;
                        expected             = !is_barred && first[i] > first[expected] ? i : expected;
                        sum += std::exp((double) first[i]);
                    }
                    CHECK_EQUAL(place[row], expected);
                    CHECK(std::fabs(found[row] / (std::exp((double) first[expected]) / sum) - 1.0) < 1e-5);
                }
            }
        }
    }
}

// what one query after another makes of the same keys and values, three times over
static std::vector<float> attend(ggml_backend_dev_t device, int64_t n_head_values,
                                 const std::vector<std::vector<float>> & queries, const std::vector<ggml_fp16_t> & kv) {
    graph         gf(device);
    auto *        ctx       = gf.nodes();
    ggml_tensor * keys      = ggml_new_tensor_3d(gf.weights(), GGML_TYPE_F16, n_head_values, 256, 2);
    ggml_tensor * values    = ggml_new_tensor_3d(gf.weights(), GGML_TYPE_F16, n_head_values, 256, 2);
    ggml_tensor * query     = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_head_values, 4, 1);
    ggml_tensor * positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
    ggml_tensor * out       = query;
    for (int i = 0; i < 3; ++i) {
        out = ggml_rope(ctx, ggml_scale(ctx, out, 2.0f), positions, n_head_values, GGML_ROPE_TYPE_NEOX);
        out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, out, 0, 2, 1, 3), keys, values, nullptr, 1.0f, 0.0f, 0.0f);
    }
    gf.build({ out });
    set(keys, kv);
    set(values, kv);
    set(positions, std::vector<int32_t>{ 7 });

    std::vector<float> res;
    for (const auto & values_of_query : queries) {
        set(query, values_of_query);
        gf.compute();
        const auto result = get<float>(out);
        res.insert(res.end(), result.begin(), result.end());
    }
    return res;
}

// kernels may begin before those ahead of them have ended, and must not read what these write
static void attention_waits_for_its_queries() {
    for (const int64_t n_head_values : { 64, 128, 256 }) {
        std::vector<std::vector<float>> queries(g_small ? 2 : 20);
        for (auto & query : queries) {
            query = random_values(n_head_values * 4);
        }
        const auto               floats = random_values(n_head_values * 256 * 2);
        std::vector<ggml_fp16_t> kv(floats.size());
        ggml_fp32_to_fp16_row(floats.data(), kv.data(), kv.size());

        const auto gpu = attend(g_gpu, n_head_values, queries, kv);
        const auto cpu = attend(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), n_head_values, queries, kv);
        for (size_t i = 0; i < cpu.size(); ++i) {
            CHECK(std::fabs(gpu[i] - cpu[i]) < 0.02);
        }
    }
}

// Heads of rows, normalized where there are weights, rotated, and stored as halves in a cache in the places of `at` where
// that is not empty.
static std::vector<float> rotated(ggml_backend_dev_t device, int64_t n_values, int64_t n_heads,
                                  const std::vector<float> & values, const std::vector<float> & weights,
                                  const std::vector<int64_t> & at) {
    const int64_t n_rows = (int64_t) values.size() / (n_values * n_heads);

    graph         gf(device);
    auto *        ctx    = gf.nodes();
    ggml_tensor * factor = ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, n_values);
    ggml_tensor * cache  = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_F16, n_values * n_heads, 2 * n_rows);
    ggml_tensor * x      = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_values, n_heads, n_rows);
    ggml_tensor * pos    = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_rows);
    ggml_tensor * places = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, n_rows);
    ggml_tensor * out    = weights.empty() ? x : ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), factor);
    out = ggml_rope_ext(ctx, out, pos, nullptr, n_values, GGML_ROPE_TYPE_NEOX, 0, 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    if (!at.empty()) {
        out = ggml_set_rows(ctx, cache, ggml_reshape_2d(ctx, out, n_values * n_heads, n_rows), places);
    }
    gf.build({ out });
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < n_rows; ++i) {
        positions.push_back(7 * i + 3);
    }
    set(x, values);
    if (!weights.empty()) {
        set(factor, weights);
    }
    set(pos, positions);
    if (at.empty()) {
        gf.compute();
        return get<float>(out);
    }
    set(places, at);
    set(cache, std::vector<ggml_fp16_t>(2 * n_rows * n_values * n_heads, 0));
    gf.compute();
    const auto         halves = get<ggml_fp16_t>(cache);
    std::vector<float> res(halves.size());
    ggml_fp16_to_fp32_row(halves.data(), res.data(), res.size());
    return res;
}

static void rotated_heads_are_right() {
    const auto cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    for (const int64_t n_values : { 64, 96, 128, 192, 256 }) {
        for (const int64_t n_rows : sizes({ 1, 4, 16, 65 })) {
            const auto           values = random_values(n_values * 5 * n_rows);
            std::vector<int64_t> places;
            for (int64_t i = 0; i < n_rows; ++i) {
                places.push_back(2 * n_rows - 1 - i);
            }
            for (const auto & weights : { std::vector<float>(), random_values(n_values) }) {
                for (const auto & at : { std::vector<int64_t>(), places }) {
                    const auto expected = rotated(cpu, n_values, 5, values, weights, at);
                    const auto found    = rotated(g_gpu, n_values, 5, values, weights, at);
                    double     worst    = 0;
                    for (size_t i = 0; i < expected.size(); ++i) {
                        worst = std::max(worst, std::fabs((double) expected[i] - found[i]));
                    }
                    CHECK(worst < 5e-3); // angles of some hundred, by powf and by one factor after the other
                }
            }
        }
    }
}

// Queries as they are rotated, and a cache's keys and values, all of which a layer computes from rows of activations.
// kinds: of the rotation, and how many values of a head are rotated
static std::vector<float> attended(ggml_backend_dev_t device, std::array<int64_t, 2> shape, bool is_normalized,
                                   std::array<int, 2> kinds, const std::vector<float> & values,
                                   const std::vector<float> & others) {
    const auto [n_values, n_rows] = shape;
    const auto [mode, n_rotated]  = kinds;

    graph                      gf(device);
    auto *                     ctx    = gf.nodes();
    ggml_tensor *              factor = ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, n_values);
    ggml_tensor *              ratios = ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, n_rotated / 2);
    ggml_tensor *              pos    = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_rows);
    ggml_tensor *              places = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, n_rows);
    std::vector<ggml_tensor *> inputs, results;
    for (const int64_t n_heads : { 4, 2, 2 }) {
        ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_values, n_heads, n_rows);
        inputs.push_back(x);
        if (inputs.size() < 3) {
            x = is_normalized ? ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), factor) : x;
            x = ggml_rope_ext(ctx, x, pos, ratios, n_rotated, mode, 512, 1e4f, 0.5f, 0.3f, 1.2f, 32.0f, 1.0f);
        }
        results.push_back(x);
    }
    for (int i : { 1, 2 }) {
        ggml_tensor * cache = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_F16, 2 * n_values, 2 * n_rows);
        ggml_tensor * rows  = ggml_view_2d(ctx, results[i], 2 * n_values, n_rows, results[i]->nb[2], 0);
        results[i]          = ggml_set_rows(ctx, cache, rows, places);
    }
    gf.build(results);

    std::vector<int32_t> positions;
    std::vector<int64_t> at;
    for (int64_t i = 0; i < n_rows; ++i) {
        positions.push_back((int32_t) (7 * i + 3));
        at.push_back(2 * n_rows - 1 - 2 * i);
    }
    const size_t n = n_values * n_rows;
    set(inputs[0], std::vector(values.begin(), values.begin() + 4 * n));
    set(inputs[1], std::vector(values.begin() + 4 * n, values.begin() + 6 * n));
    set(inputs[2], std::vector(values.begin() + 6 * n, values.end()));
    set(factor, std::vector(others.begin(), others.begin() + n_values));
    set(ratios, std::vector<float>(n_rotated / 2, 1.25f));
    set(pos, positions);
    set(places, at);
    for (int i : { 1, 2 }) {
        set(results[i], std::vector<ggml_fp16_t>(4 * n, 0));
    }
    gf.compute();
    std::vector<float> res = get<float>(results[0]);
    for (int i : { 1, 2 }) {
        const auto         halves = get<ggml_fp16_t>(results[i]);
        std::vector<float> floats(halves.size());
        ggml_fp16_to_fp32_row(halves.data(), floats.data(), floats.size());
        res.insert(res.end(), floats.begin(), floats.end());
    }
    return res;
}

static void queries_keys_and_values_go_together() {
    const auto cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    for (const int64_t n_values : sizes({ 64, 128, 256 })) {
        for (const int64_t n_rows : sizes({ 1, 5, 130 })) {
            const auto values = random_values(n_values * 8 * n_rows);
            const auto others = random_values(n_values);
            for (const int mode : { GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX }) {
                for (const bool is_normalized : { false, true }) {
                    for (const int n_rotated : { (int) n_values, 32 }) {
                        const auto run = [&](ggml_backend_dev_t device) {
                            return attended(device, { n_values, n_rows }, is_normalized, { mode, n_rotated }, values,
                                            others);
                        };
                        const auto expected = run(cpu);
                        const auto found    = run(g_gpu);
                        double     worst    = 0;
                        for (size_t i = 0; i < expected.size(); ++i) {
                            worst = std::max(worst, std::fabs((double) expected[i] - found[i]));
                        }
                        CHECK(expected.size() == found.size() && worst < 5e-3);
                    }
                }
            }
        }
    }
}

// What rows, each of which sees one cell more than the one before, find in a cache: random_quantized keys and values of
// two heads, as they are or as F16.
static std::vector<float> attend_cache(ggml_type type, bool as_f16, const std::vector<float> & queries,
                                       const std::vector<uint8_t> & keys, const std::vector<uint8_t> & values,
                                       std::array<int64_t, 3> shape, int64_t n_cells) {
    const auto [n_head_values, n_rows, n_heads] = shape;

    const auto    stored = as_f16 ? GGML_TYPE_F16 : type;
    graph         gf(g_gpu);
    auto *        ctx  = gf.nodes();
    ggml_tensor * k    = ggml_new_tensor_3d(gf.weights(), stored, n_head_values, 2, n_cells);
    ggml_tensor * v    = ggml_new_tensor_3d(gf.weights(), stored, n_head_values, 2, n_cells);
    ggml_tensor * q    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_head_values, n_rows, n_heads);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cells, n_rows);
    ggml_tensor * out  = ggml_flash_attn_ext(ctx, q, ggml_permute(ctx, k, 0, 2, 1, 3), ggml_permute(ctx, v, 0, 2, 1, 3),
                                             mask, 0.2f, 0.0f, 0.0f);
    gf.build({ out });

    for (const auto & [tensor, bytes] : { std::pair{ k, &keys }, { v, &values } }) {
        if (as_f16) {
            const auto               floats = unquantized(type, *bytes);
            std::vector<ggml_fp16_t> halves(floats.size());
            ggml_fp32_to_fp16_row(floats.data(), halves.data(), halves.size());
            set(tensor, halves);
        } else {
            set(tensor, *bytes);
        }
    }
    std::vector<ggml_fp16_t> hidden;
    for (int64_t i = 0; i < n_rows * n_cells; ++i) {
        hidden.push_back(ggml_fp32_to_fp16(i % n_cells < n_cells - n_rows + i / n_cells ? 0.0f : -INFINITY));
    }
    set(mask, hidden);
    set(q, queries);
    gf.compute();
    return get<float>(out);
}

static void attention_reads_quantized_caches() {
    for (const ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0 }) {
        for (const int64_t n_head_values : sizes({ 128, 256 })) {
            for (const int64_t n_cells : sizes({ 256, 2304 })) {
                const auto keys   = random_quantized(type, 2 * n_cells, n_head_values);
                const auto values = random_quantized(type, 2 * n_cells, n_head_values);
                for (const int64_t n_heads : sizes({ 8, 2, 12, 16 })) {
                    for (const int64_t n_rows : sizes({ 1, 2, 3, 4, 5, 8, 16, 64, 65, 17 })) {
                        if (n_rows <= 2 && n_cells < 2048) {
                            continue; // llama.cpp's kernel, which rounds queries to 8 bits
                        }
                        const auto queries = random_values(n_head_values * n_rows * n_heads);
                        const auto attend  = [&](bool as_f16) {
                            return attend_cache(type, as_f16, queries, keys, values, { n_head_values, n_rows, n_heads },
                                                n_cells);
                        };
                        const auto res      = attend(false);
                        const auto expected = attend(true);
                        for (size_t i = 0; i < res.size(); ++i) {
                            CHECK(std::fabs(res[i] - expected[i]) < 1e-3);
                        }
                    }
                }
            }
        }
    }
}

// What rows find in a cache of halves, and a product of that, in one layer after the other, with 8 heads of keys and values.
struct attention_layers {
    int64_t                               n_heads;
    int64_t                               n_cells;
    std::vector<ggml_fp16_t>              kv;
    std::vector<std::vector<ggml_fp16_t>> masks;
    std::vector<std::vector<float>>       queries; // of a layer
    std::vector<size_t>                   mask_of; // a layer, by number
    std::vector<uint8_t>                  matrix;  // Q4_K

    std::vector<std::vector<float>> attend(ggml_backend_dev_t device, int n_passes) const {
        constexpr int64_t N_VALUES = 128;
        const int64_t     n_rows   = (int64_t) masks[0].size() / n_cells;

        graph                      gf(device);
        auto *                     ctx = gf.nodes();
        ggml_tensor *              k   = ggml_new_tensor_3d(gf.weights(), GGML_TYPE_F16, N_VALUES, 8, n_cells);
        ggml_tensor *              v   = ggml_new_tensor_3d(gf.weights(), GGML_TYPE_F16, N_VALUES, 8, n_cells);
        ggml_tensor *              w   = ggml_new_tensor_2d(gf.weights(), GGML_TYPE_Q4_K, N_VALUES * n_heads, N_OUT);
        std::vector<ggml_tensor *> inputs, hidden, outs;
        for (size_t i = 0; i < masks.size(); ++i) {
            hidden.push_back(ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cells, n_rows));
        }
        for (const size_t mask : mask_of) {
            inputs.push_back(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, N_VALUES, n_rows, n_heads));
            outs.push_back(ggml_flash_attn_ext(ctx, inputs.back(), ggml_permute(ctx, k, 0, 2, 1, 3),
                                               ggml_permute(ctx, v, 0, 2, 1, 3), hidden[mask], 0.1f, 0.0f, 0.0f));
            outs.push_back(ggml_mul_mat(ctx, w, ggml_reshape_2d(ctx, outs.back(), N_VALUES * n_heads, n_rows)));
        }
        ggml_tensor * sinks = ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, n_heads);
        ggml_flash_attn_ext_add_sinks(outs[0], sinks);
        gf.build(outs);
        set(k, kv);
        set(v, kv);
        set(w, matrix);
        set(sinks, std::vector<float>(n_heads, 1.5f));
        for (size_t i = 0; i < inputs.size(); ++i) {
            set(inputs[i], queries[i]);
        }
        // what is seen changes from one pass to the next, also after a device has recorded the graph
        for (int pass = n_passes; pass-- > 0;) {
            for (size_t i = 0; i < masks.size(); ++i) {
                set(hidden[i], masks[(i + pass) % masks.size()]);
            }
            gf.compute();
        }
        std::vector<std::vector<float>> res;
        for (ggml_tensor * out : outs) {
            res.push_back(get<float>(out));
        }
        return res;
    }

    static constexpr int64_t N_OUT = 77;
};

// A mask of rows that belong to sequences in turn, n_each to each; each sees some spans of 64 cells, all but the last of
// them whole. The share of spans that belong to a sequence is 1 of n_share.
static std::vector<ggml_fp16_t> mask_of_sequences(int64_t n_rows, int64_t n_cells, int64_t n_each, int n_share) {
    std::vector<ggml_fp16_t> mask(n_rows * n_cells, ggml_fp32_to_fp16(-INFINITY));
    std::vector<int64_t>     spans;
    for (int64_t row = 0; row < n_rows; ++row) {
        if (row % n_each == 0) {
            spans.clear();
            for (int64_t span = 0; span < n_cells / 64; ++span) {
                if (std::rand() % n_share == 0) {
                    spans.push_back(span);
                }
            }
            if (spans.empty()) {
                spans.push_back(std::rand() % (n_cells / 64));
            }
        }
        for (const int64_t span : spans) {
            const int64_t n_seen = span == spans.back() ? 1 + (7 * row) % 64 : 64;
            std::fill_n(mask.begin() + row * n_cells + span * 64, n_seen, ggml_fp32_to_fp16(0.0f));
        }
    }
    return mask;
}

static void attention_passes_over_what_is_hidden() {
    const auto cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    for (const int64_t n_heads : sizes({ 32, 16, 96 })) { // groups of 4, 2 and 12
        const auto matrix = random_quantized(GGML_TYPE_Q4_K, attention_layers::N_OUT, 128 * n_heads);
        for (const int64_t n_cells : sizes({ 1024, 4352 })) {
            for (const int64_t n_rows : sizes({ 3, 12, 16, 17, 64, 130, 520 })) {
                attention_layers of{ n_heads, n_cells, {}, {}, {}, { 0, 1, 0, 2 }, matrix };
                const auto       floats = random_values(128 * 8 * n_cells);
                of.kv.resize(floats.size());
                ggml_fp32_to_fp16_row(floats.data(), of.kv.data(), floats.size());
                of.masks.push_back(mask_of_sequences(n_rows, n_cells, 4, 8));
                of.masks.push_back(mask_of_sequences(n_rows, n_cells, 1, 30));     // of many, one span each
                of.masks.push_back(mask_of_sequences(n_rows, n_cells, n_rows, 1)); // of one that sees all
                for (size_t i = 0; i < of.mask_of.size(); ++i) {
                    of.queries.push_back(random_values(128 * n_rows * n_heads));
                }
                const auto found    = of.attend(g_gpu, 12);
                const auto expected = of.attend(cpu, 1);
                for (size_t i = 0; i < found.size(); ++i) {
                    double worst   = 0.0;
                    double highest = 0.0;
                    for (size_t j = 0; j < found[i].size(); ++j) {
                        const double distance = std::fabs((double) found[i][j] - expected[i][j]);
                        worst                 = std::isnan(distance) ? INFINITY : std::max(worst, distance);
                        highest               = std::max(highest, std::fabs((double) expected[i][j]));
                    }
                    CHECK(worst < (i % 2 == 0 ? 0.01 : 0.02 * highest));
                }
            }
        }
    }
}

int main(int argc, char ** argv) {
    g_small = argc == 2 && std::strcmp(argv[1], "small") == 0;
    if (argc == 3) {
        g_part    = std::atoi(argv[1]);
        g_n_parts = std::max(std::atoi(argv[2]), 1);
    }
    if (!find_gpu("CUDA")) {
        return SKIPPED;
    }
    RUN(products_of_all_types_are_right_and_rows_do_not_matter);
    RUN(more_rows_are_right_and_do_not_matter);
    RUN(products_of_many_steps_are_right);
    RUN(experts_are_right_and_rows_do_not_matter);
    RUN(experts_of_more_rows_are_those_of_few);
    RUN(products_are_right_and_rows_do_not_matter);
    RUN(routers_are_right_and_rows_do_not_matter);
    RUN(products_of_one_norm_are_right_and_rows_do_not_matter);
    RUN(products_of_gated_values_are_right_and_rows_do_not_matter);
    RUN(products_of_the_same_rows_are_those_of_each_alone);
    RUN(products_of_the_same_rows_are_moved_together);
    RUN(activations_that_change_are_quantized_again);
    RUN(the_first_of_the_highest_is_found);
    RUN(the_highest_comes_with_its_probability);
    RUN(rotated_heads_are_right);
    RUN(queries_keys_and_values_go_together);
    RUN(attention_waits_for_its_queries);
    RUN(attention_reads_quantized_caches);
    RUN(attention_passes_over_what_is_hidden);
    return g_n_failed > 0;
}
