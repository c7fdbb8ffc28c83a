// What is marked with GGML_TENSOR_FLAG_INVARIANT, on the CUDA backend: a row has the same bits in every pass. Without a GPU
// there is nothing to test.

#include "gpu-products.h"

#include <utility>
#include <vector>

static constexpr int64_t N_ROWS = 512;

// rows that are computed together, from the first of each pair on; all of these are compared with those of one pass
static const std::vector<std::pair<int64_t, int64_t>> PASSES{ { 0, 1 },   { 511, 1 },  { 3, 4 },   { 5, 9 },
                                                              { 40, 17 }, { 100, 33 }, { 60, 64 }, { 7, 300 } };

// compute(begin, n): what the rows [begin, begin + n) give, one after the other
template <class F> static bool rows_are_the_same(F compute) {
    const auto   all  = compute(0, N_ROWS);
    const size_t size = all.size() / N_ROWS;
    bool         res  = !std::isnan(all[0]);
    for (const auto & [begin, n] : PASSES) {
        const auto part = compute(begin, n);
        res &= part.size() == n * size && std::equal(part.begin(), part.end(), all.begin() + begin * size);
    }
    return res;
}

static bool rows_are_the_same(const product & p) {
    return rows_are_the_same([&](int64_t begin, int64_t n) { return p.compute(g_gpu, begin, begin + n); });
}

// some types have kernels of our own; 1408 and 192 are no multiple of 256, which these want
static void products_are_the_same() {
    for (const ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
                                  GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        for (const fused what : { fused::NOTHING, fused::GATE, fused::BIAS, fused::RESIDUAL }) {
            const int64_t n_values = what == fused::GATE ? 2304 : 4096;
            if (!rows_are_the_same(random_product(type, n_values, 301, N_ROWS, 0, what))) {
                std::printf("%s, %d fused\n", ggml_type_name(type), (int) what);
                CHECK(false);
            }
        }
        const product experts = random_product(type, 512, 77, N_ROWS, 7, fused::GATE);
        if (!rows_are_the_same(experts)) {
            std::printf("experts of %s\n", ggml_type_name(type));
            CHECK(false);
        }
    }
    CHECK(rows_are_the_same(random_product(GGML_TYPE_Q8_0, 1408, 77, N_ROWS, 0, fused::GATE)));
    CHECK(rows_are_the_same(random_product(GGML_TYPE_Q8_0, 192, 77, N_ROWS, 7, fused::NOTHING)));
    CHECK(rows_are_the_same(random_product(GGML_TYPE_Q4_1, 512, 77, N_ROWS, 0, fused::BIAS)));
    CHECK(rows_are_the_same(random_product(GGML_TYPE_Q4_1, 512, 80, N_ROWS, 7, fused::GATE)));
}

// of what a norm gives, which leaves it quantized for kernels of our own: others want more of it
static void products_of_norms_are_the_same() {
    for (const ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q4_1, GGML_TYPE_Q5_1 }) {
        const auto matrix = random_quantized(type, 160, 1024);
        const auto gate   = random_quantized(type, 160, 1024);
        const auto factor = random_values(1024);
        const auto rows   = random_values(N_ROWS * 1024);
        CHECK(rows_are_the_same([&](int64_t begin, int64_t n) {
            graph         gf(g_gpu);
            auto *        ctx     = gf.nodes();
            ggml_tensor * weights = ggml_new_tensor_2d(gf.weights(), type, 1024, 160);
            ggml_tensor * gates   = ggml_new_tensor_2d(gf.weights(), type, 1024, 160);
            ggml_tensor * factors = ggml_new_tensor_1d(gf.weights(), GGML_TYPE_F32, 1024);
            ggml_tensor * input   = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1024, n);
            ggml_tensor * norm    = ggml_mul(ctx, ggml_rms_norm(ctx, input, 1e-5f), factors);
            ggml_tensor * up      = ggml_mul_mat(ctx, weights, norm);
            ggml_tensor * out     = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, gates, norm), up);
            gf.build({ out });
            set(weights, matrix);
            set(gates, gate);
            set(factors, factor);
            set(input, std::vector<float>(rows.begin() + begin * 1024, rows.begin() + (begin + n) * 1024));
            gf.compute();
            return get<float>(out);
        }));
    }
}

// of what is not quantized, such as routers
static void products_of_floats_are_the_same() {
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        const auto           floats = random_values(160 * 512);
        std::vector<uint8_t> matrix(ggml_row_size(type, floats.size()));
        ggml_quantize_chunk(type, floats.data(), matrix.data(), 0, 160, 512, nullptr);
        const auto rows = random_values(N_ROWS * 512);
        CHECK(rows_are_the_same([&](int64_t begin, int64_t n) {
            graph         gf(g_gpu);
            ggml_tensor * weights = ggml_new_tensor_2d(gf.weights(), type, 512, 160);
            ggml_tensor * input   = ggml_new_tensor_2d(gf.nodes(), GGML_TYPE_F32, 512, n);
            ggml_tensor * out     = ggml_mul_mat(gf.nodes(), weights, input);
            gf.build({ out });
            set(weights, matrix);
            set(input, std::vector<float>(rows.begin() + begin * 512, rows.begin() + (begin + n) * 512));
            gf.compute();
            return get<float>(out);
        }));
    }
}

// What rows of a sequence find in its stream: [begin, begin + n), of which each sees one cell more than the one before.
// Beside it are n_streams - 1 others, and all have n_cells.
struct attention {
    ggml_type            type;
    int64_t              n_head_values;
    int64_t              n_heads;
    std::vector<uint8_t> keys   = random_quantized(type, 2 * 2048, n_head_values);
    std::vector<uint8_t> values = random_quantized(type, 2 * 2048, n_head_values);
    std::vector<float>   q      = random_values(N_ROWS * n_heads * n_head_values);

    std::vector<float> compute(int64_t begin, int64_t n, int64_t n_cells, int64_t n_streams) const {
        graph         gf(g_gpu);
        auto *        ctx  = gf.nodes();
        ggml_tensor * k    = ggml_new_tensor_4d(gf.weights(), type, n_head_values, 2, n_cells, n_streams);
        ggml_tensor * v    = ggml_new_tensor_4d(gf.weights(), type, n_head_values, 2, n_cells, n_streams);
        ggml_tensor * rows = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, n_head_values, n_heads, n, n_streams);
        ggml_tensor * mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, n_cells, n, 1, n_streams);
        ggml_tensor * out =
            ggml_flash_attn_ext(ctx, ggml_permute(ctx, rows, 0, 2, 1, 3), ggml_permute(ctx, k, 0, 2, 1, 3),
                                ggml_permute(ctx, v, 0, 2, 1, 3), mask, 0.2f, 0.0f, 0.0f);
        gf.build({ out });
        std::vector<ggml_fp16_t> hidden;
        for (int64_t i = 0; i < n * n_cells; ++i) {
            hidden.push_back(ggml_fp32_to_fp16(i % n_cells <= begin + i / n_cells ? 0.0f : -INFINITY));
        }
        const size_t row_size = n_heads * n_head_values;
        for (int64_t stream = 0; stream < n_streams; ++stream) { // all have the same
            ggml_backend_tensor_set(k, keys.data(), stream * k->nb[3], k->nb[3]);
            ggml_backend_tensor_set(v, values.data(), stream * v->nb[3], v->nb[3]);
            ggml_backend_tensor_set(mask, hidden.data(), stream * mask->nb[3], mask->nb[3]);
            ggml_backend_tensor_set(rows, q.data() + begin * row_size, stream * rows->nb[3], rows->nb[3]);
        }
        gf.compute();
        const auto res = get<float>(out);
        return { res.begin(), res.begin() + n * row_size };
    }
};

static void attention_is_the_same() {
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        for (const int64_t n_head_values : { 64, 128, 256 }) {
            for (const int64_t n_heads : { 2, 8, 16, 24 }) {
                const attention a{ type, n_head_values, n_heads };
                CHECK(rows_are_the_same([&](int64_t begin, int64_t n) {
                    const int64_t n_cells = n == N_ROWS ? 2048 : begin + n <= 256 ? 256 : 1024;
                    return a.compute(begin, n, n_cells, n % 2 ? 1 : 3);
                }));
            }
        }
    }
}

int main() {
    if (!find_gpu("CUDA")) {
        return SKIPPED;
    }
    g_marks |= GGML_TENSOR_FLAG_INVARIANT;
    RUN(products_are_the_same);
    RUN(products_of_norms_are_the_same);
    RUN(products_of_floats_are_the_same);
    RUN(attention_is_the_same);
    return g_n_failed > 0;
}
