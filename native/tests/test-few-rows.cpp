#include "check.h"
#include "cpu-attention.h"
#include "cpu-few-rows-task.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

static constexpr int64_t N_THREADS = 3;

static const ggml_type TYPES[] = {
    GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,   GGML_TYPE_Q5_K,   GGML_TYPE_Q6_K,  GGML_TYPE_Q4_0,
    GGML_TYPE_Q5_0, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_XS, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
};

static void set_quantized(ggml_tensor * tensor) {
    const auto data = random_quantized(tensor->type, ggml_nrows(tensor), tensor->ne[0]);
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
}

static void set_random(ggml_tensor * tensor) {
    const auto values = random_values(ggml_nelements(tensor));
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

// one after the other
static std::vector<float> compute(ggml_context * ctx, ggml_backend_t backend,
                                  const std::vector<ggml_tensor *> & nodes) {
    ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32 * nodes.size(), false);
    for (auto * node : nodes) {
        ggml_build_forward_expand(gf, node);
    }
    CHECK_EQUAL(ggml_backend_graph_compute(backend, gf), GGML_STATUS_SUCCESS);

    std::vector<float> res;
    for (auto * node : nodes) {
        std::vector<float> of_node(ggml_nelements(node));
        ggml_backend_tensor_get(node, of_node.data(), 0, ggml_nbytes(node));
        res.insert(res.end(), of_node.begin(), of_node.end());
    }
    return res;
}

struct product {
    ggml_context_ptr        ctx{ ggml_init({ 1 << 20, nullptr, true }) };
    ggml_backend_ptr        backend{ ggml_backend_cpu_init() };
    ggml_backend_buffer_ptr buf;

    product() { ggml_backend_cpu_set_n_threads(backend.get(), N_THREADS); }

    void alloc() { buf.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get())); }

    // weights that llama.cpp repacks, where it has a layout for them
    ggml_context_ptr        repacked_ctx{ ggml_init({ 1 << 16, nullptr, true }) };
    ggml_backend_buffer_ptr repacked_buf;

    void alloc_repacked() {
        auto * device = ggml_backend_get_device(backend.get());
        auto * types  = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
        for (auto * type = types(device); type && *type; ++type) {
            if (std::string(ggml_backend_buft_name(*type)) == "CPU_REPACK") {
                repacked_buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(repacked_ctx.get(), *type));
            }
        }
        if (!repacked_buf) {
            repacked_buf.reset(ggml_backend_alloc_ctx_tensors(repacked_ctx.get(), backend.get()));
        }
    }

    std::vector<float> results(const std::vector<ggml_tensor *> & nodes) {
        return compute(ctx.get(), backend.get(), nodes);
    }

    std::vector<float> result(ggml_tensor * node) { return results({ node }); }
};

// Whether this build of llama.cpp's kernels rounds as ours do. They have products and sums in C, of Q5_K on x86 and of all
// types on ARM, which GCC fuses when it optimizes in earnest, as ours are. For SVE some have other orders.
static bool rounds_as_ours(ggml_type type) {
    if (ggml_cpu_has_sve() && (type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q8_0)) {
        return false;
    }
#if defined(NDEBUG) && !defined(__clang__)
    GGML_UNUSED(type);
    return true;
#elif defined(__x86_64__)
    return type != GGML_TYPE_Q5_K;
#else
    GGML_UNUSED(type);
    return false;
#endif
}

// the same bits, where llama.cpp's kernels round as ours do
static bool are_alike(ggml_type type, const std::vector<float> & x, const std::vector<float> & y) {
    return x == y || (!rounds_as_ours(type) && std::equal(x.begin(), x.end(), y.begin(), y.end(), [](float a, float b) {
               return std::fabs(a - b) <= 1e-4f * (1.0f + std::fabs(b));
           }));
}

// GCC 12 vectorizes llama.cpp's loop over an odd last block of Q5_0 with products of unsigned bytes, where i8mm has them.
static bool is_compiled_wrongly(ggml_type type, int64_t n_values) {
    return type == GGML_TYPE_Q5_0 && n_values % 64 > 0 && ggml_cpu_has_matmul_int8();
}

// llama.cpp repacks only what its kernels can then take: matrices of whole groups of rows
static bool is_repacked(ggml_type type, int64_t n_out) {
#if defined(__aarch64__)
    switch (type) {
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
            return n_out % 8 == 0 && ggml_cpu_has_dotprod();
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_MXFP4:
            return n_out % 4 == 0 && ggml_cpu_has_dotprod();
        default:
            return false;
    }
#endif
    switch (type) {
        case GGML_TYPE_Q2_K:
            return n_out % 8 == 0 && ggml_cpu_has_avx512();
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_MXFP4:
            return n_out % 8 == 0 && ggml_cpu_has_avx2();
        default:
            return false;
    }
}

// products of the first rows, of more and more: each begins as that of all does, which is returned
static std::vector<float> result_of_the_most_rows(product & p, const std::vector<ggml_tensor *> & products) {
    const auto all = p.result(products.back());
    for (auto * of_some : products) {
        const auto result = p.result(of_some);
        CHECK(std::equal(result.begin(), result.end(), all.begin()));
    }
    return all;
}

static void rows_together_are_llama_cpp_s_single_rows(ggml_type type, int64_t n_values, int64_t n_out, bool repacked) {
    constexpr int64_t N_ROWS   = 18;
    constexpr int64_t N_PROMPT = 70;

    product        p;
    ggml_context * ctx     = p.ctx.get();
    ggml_tensor *  weights = ggml_new_tensor_2d(repacked ? p.repacked_ctx.get() : ctx, type, n_values, n_out);
    ggml_tensor *  rows    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, N_PROMPT);

    std::vector<ggml_tensor *> single;
    std::vector<ggml_tensor *> together; // the first 1, 2, 3, ... rows
    const auto                 add = [&](int64_t n_rows) {
        together.push_back(ggml_mul_mat(ctx, weights, ggml_view_2d(ctx, rows, n_values, n_rows, rows->nb[1], 0)));
        together.back()->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    };
    for (int64_t i = 0; i < N_ROWS; ++i) {
        single.push_back(ggml_mul_mat(ctx, weights, ggml_view_1d(ctx, rows, n_values, i * rows->nb[1])));
        add(i + 1);
    }
    if (FEW_ROWS_ARE_PROMPTS && few_rows_find_kernel(type, repacked)) { // others take llama.cpp's for many rows
        add(N_PROMPT);
    }
    if (repacked) {
        p.alloc_repacked();
    }
    p.alloc();
    set_quantized(weights);
    set_random(rows);
    const auto all = result_of_the_most_rows(p, together);
    CHECK(is_compiled_wrongly(type, n_values) ||
          are_alike(type, { all.begin(), all.begin() + N_ROWS * n_out }, p.results(single)));
}

static void every_type_has_a_kernel() {
    const bool is_arm = ggml_cpu_has_dotprod();
    if (!is_arm && !(ggml_cpu_has_avx2() && ggml_cpu_has_fma())) {
        return;
    }
    for (const ggml_type type : TYPES) {
        const bool has_no_order = type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
        CHECK_EQUAL(!few_rows_find_kernel(type, false), has_no_order);
        CHECK(!is_repacked(type, 8) || few_rows_find_kernel(type, true));
    }
}

static void rows_together_are_rows_one_by_one() {
    for (const ggml_type type : TYPES) {
        for (const int64_t n_values : { 1, 3 }) {
            for (const int64_t n_out : { 1, 31, 40, 130 }) {
                const int64_t n = n_values * std::max<int64_t>(ggml_blck_size(type), 96);
                rows_together_are_llama_cpp_s_single_rows(type, n, n_out, false);
                if (is_repacked(type, n_out)) {
                    rows_together_are_llama_cpp_s_single_rows(type, n, n_out, true);
                }
            }
        }
    }
}

#if defined(__AVX2__) && defined(__F16C__)
// Floats are summed by llama.cpp's kernels: by sgemm if it takes the matrix, whatever the number of rows.
static void rows_of_halves_are_rows_alone(ggml_type type, int64_t n_values, int64_t n_out) {
    product        p;
    ggml_context * ctx     = p.ctx.get();
    ggml_tensor *  weights = ggml_new_tensor_2d(ctx, type, n_values, n_out);
    ggml_tensor *  rows    = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_values, 70);

    const auto first_rows = [&](int64_t n_rows) {
        return ggml_mul_mat(ctx, weights, ggml_view_2d(ctx, rows, n_values, n_rows, rows->nb[1], 0));
    };
    std::vector<ggml_tensor *> together;
    for (const int64_t n_rows : { 1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 70 }) {
        together.push_back(first_rows(n_rows));
        together.back()->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
    ggml_tensor * unmarked = first_rows(70);
    p.alloc();
    set_quantized(weights);
    set_random(rows);
    const auto all      = result_of_the_most_rows(p, together);
    const auto expected = p.result(unmarked);
    CHECK(std::equal(all.begin(), all.end(), expected.begin(), expected.end(),
                     [](float x, float y) { return std::fabs(x - y) <= 1e-3f * (1.0f + std::fabs(y)); }));
}

#endif

static void halves_have_rows_that_do_not_depend_on_their_number() {
#if defined(__AVX2__) && defined(__F16C__)
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (const int64_t n_values : { 96, 100, 256 }) {
            for (const int64_t n_out : { 1, 31, 40, 132 }) {
                rows_of_halves_are_rows_alone(type, n_values, n_out);
            }
        }
    }
#endif
}

// Products with dequantized weights, in doubles: what all of this should be, but for the rounding of activations.
static void a_product_is_what_the_dequantized_weights_give() {
    constexpr int64_t N_VALUES = 512;
    constexpr int64_t N_OUT    = 24;
    for (const ggml_type type : TYPES) {
        product       p;
        ggml_tensor * weights = ggml_new_tensor_2d(p.ctx.get(), type, N_VALUES, N_OUT);
        ggml_tensor * rows    = ggml_new_tensor_2d(p.ctx.get(), GGML_TYPE_F32, N_VALUES, 3);
        ggml_tensor * marked  = ggml_mul_mat(p.ctx.get(), weights, rows);
        marked->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        p.alloc();
        const auto data   = random_quantized(type, N_OUT, N_VALUES);
        const auto values = random_values(3 * N_VALUES);
        ggml_backend_tensor_set(weights, data.data(), 0, data.size());
        ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));

        std::vector<float> matrix(N_OUT * N_VALUES);
        for (int64_t i = 0; i < N_OUT; ++i) {
            ggml_get_type_traits(type)->to_float(data.data() + i * ggml_row_size(type, N_VALUES),
                                                 matrix.data() + i * N_VALUES, N_VALUES);
        }
        const auto result = p.result(marked);
        for (int64_t n = 0; n < 3; ++n) {
            for (int64_t i = 0; i < N_OUT; ++i) {
                double sum = 0.0;
                for (int64_t k = 0; k < N_VALUES; ++k) {
                    sum += (double) matrix[i * N_VALUES + k] * values[n * N_VALUES + k];
                }
                CHECK(std::fabs(result[n * N_OUT + i] - sum) < 0.15);
            }
        }
    }
}

#if defined(__x86_64__)
// Bytes that were quantized in another layout: finite scales.
static void tame_scales(ggml_type type, std::vector<uint8_t> & matrix) {
    const size_t n_of_8 = 8 * ggml_type_size(type);
    for (size_t at = 0; at < matrix.size(); at += n_of_8) {
        if (type == GGML_TYPE_MXFP4) {
            for (size_t k = 0; k < 8; ++k) {
                matrix[at + k] = (at / n_of_8 + k) % 6 < 3 ? k % 3 : 125; // denormal ones too
            }
            continue;
        }
        const auto scales = random_values(type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q4_K ? 16 : 8);
        ggml_fp32_to_fp16_row(scales.data(), (ggml_fp16_t *) &matrix[at], scales.size());
    }
}

#endif

// AVX2 too where the machine would take AVX-512
static void every_instruction_set_gives_the_same_bits() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("avx512vnni")) {
        return;
    }
    constexpr int64_t N_VALUES = 768;
    constexpr int64_t N_OUT    = 24;
    for (const ggml_type type : TYPES) {
        for (const bool repacked : { false, true }) {
            const few_rows_kernel avx2   = few_rows_kernel_avx2(type, repacked);
            const few_rows_kernel avx512 = few_rows_kernel_avx512(type, repacked);
            CHECK_EQUAL(!avx2, !avx512);
            if (!avx2) {
                continue;
            }
            // in the layout of 8 rows these bytes are other weights, but weights they are
            auto matrix = random_quantized(type, N_OUT, N_VALUES);
            if (repacked) {
                tame_scales(type, matrix);
            }
            const ggml_type      with_type = ggml_get_type_traits_cpu(type)->vec_dot_type;
            const size_t         n_bytes   = ggml_row_size(with_type, N_VALUES);
            const auto           values    = random_values(N_ROWS_TOGETHER * N_VALUES);
            std::vector<uint8_t> rows(N_ROWS_TOGETHER * n_bytes);
            for (int64_t n = 0; n < N_ROWS_TOGETHER; ++n) {
                ggml_get_type_traits_cpu(with_type)->from_float(&values[n * N_VALUES], &rows[n * n_bytes], N_VALUES);
            }
            const auto result = [&](few_rows_kernel kernel, int64_t first, int64_t n_rows) {
                std::vector<float> res(n_rows * N_OUT);
                const void *       in[N_ROWS_TOGETHER];
                float *            out[N_ROWS_TOGETHER];
                for (int64_t n = 0; n < n_rows; ++n) {
                    in[n]  = &rows[(first + n) * n_bytes];
                    out[n] = &res[n * N_OUT];
                }
                kernel({ (const char *) matrix.data(), ggml_row_size(type, N_VALUES), 0, N_OUT, N_VALUES, n_rows, in,
                         out });
                return res;
            };
            const auto all = result(avx512, 0, N_ROWS_TOGETHER);
            for (const few_rows_kernel kernel : { avx2, avx512 }) {
                for (int64_t n = 1; n <= N_ROWS_TOGETHER; ++n) {
                    CHECK(result(kernel, N_ROWS_TOGETHER - n, n) ==
                          std::vector<float>(all.end() - n * N_OUT, all.end()));
                }
            }
        }
    }
#endif
}

// Rows together against each alone, without the mark: up to 14 rows share an expert.
static void rows_that_share_experts_are_rows_alone() {
    for (const ggml_type type : TYPES) {
        for (const int64_t n_rows : { 1, 2, 5, 10, 20 }) {
            for (const int64_t n_places : { 1, 2 }) { // activations of their own for each of a row's experts, or not
                for (const bool repacked : { false, true }) {
                    const int64_t n_out    = repacked ? 72 : 70;
                    const int64_t n_values = std::max<int64_t>(ggml_blck_size(type), 96);
                    if (repacked && !is_repacked(type, n_out)) {
                        continue;
                    }
                    product        p;
                    ggml_context * ctx = p.ctx.get();
                    ggml_tensor *  weights =
                        ggml_new_tensor_3d(repacked ? p.repacked_ctx.get() : ctx, type, n_values, n_out, 3);
                    ggml_tensor * rows     = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_values, n_places, n_rows);
                    ggml_tensor * ids      = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, n_rows);
                    ggml_tensor * together = ggml_mul_mat_id(ctx, weights, rows, ids);
                    together->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;

                    std::vector<ggml_tensor *> single;
                    for (int64_t i = 0; i < n_rows; ++i) {
                        ggml_tensor * row =
                            ggml_view_3d(ctx, rows, n_values, n_places, 1, rows->nb[1], rows->nb[2], i * rows->nb[2]);
                        ggml_tensor * row_ids = ggml_view_2d(ctx, ids, 2, 1, ids->nb[1], i * ids->nb[1]);
                        single.push_back(ggml_mul_mat_id(ctx, weights, row, row_ids));
                    }
                    if (repacked) {
                        p.alloc_repacked();
                    }
                    p.alloc();
                    set_quantized(weights);
                    set_random(rows);
                    std::vector<int32_t> experts;
                    for (int32_t i = 0; i < n_rows; ++i) {
                        experts.insert(experts.end(), { i % 3, (i + 1) % 3 });
                    }
                    ggml_backend_tensor_set(ids, experts.data(), 0, ggml_nbytes(ids));
                    CHECK(is_compiled_wrongly(type, n_values) ||
                          are_alike(type, p.result(together), p.results(single)));
                }
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

// Keys and values of a sequence in cells that are out of order, between those of another, against the same in order.
static void check_scattered_cells(ggml_type type) {
    constexpr int64_t N_VALUES = 128;
    constexpr int64_t N_HEADS  = 4;
    constexpr int64_t N_CELLS  = 150;
    constexpr int64_t N_CACHE  = 400;
    constexpr int64_t N_ROWS   = 5;

    // cell i of the sequence; the others' hold what must not be looked at
    std::vector<int32_t> cells;
    for (int32_t i = 0; i < N_CELLS; ++i) {
        cells.push_back((i * 77 + 13) % N_CACHE);
    }
    const auto queries_data = random_values(N_VALUES * N_HEADS * N_ROWS);
    const auto keys_data    = random_quantized(type, N_CELLS, N_VALUES);
    const auto values_data  = random_quantized(type, N_CELLS, N_VALUES);

    const auto result = [&](bool scattered) {
        const int64_t  n_cache = scattered ? N_CACHE : N_CELLS;
        product        p;
        ggml_context * ctx     = p.ctx.get();
        ggml_tensor *  queries = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, N_VALUES, N_ROWS, N_HEADS);
        ggml_tensor *  keys    = ggml_new_tensor_3d(ctx, type, N_VALUES, n_cache, 1);
        ggml_tensor *  values  = ggml_new_tensor_3d(ctx, type, N_VALUES, n_cache, 1);
        ggml_tensor *  mask    = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cache, N_ROWS);
        ggml_tensor *  marked  = ggml_flash_attn_ext(ctx, queries, keys, values, mask, 0.125f, 0.0f, 0.0f);
        marked->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        p.alloc();
        ggml_backend_tensor_set(queries, queries_data.data(), 0, ggml_nbytes(queries));

        const size_t             n_bytes = ggml_row_size(type, N_VALUES);
        std::vector<uint8_t>     k(n_bytes * n_cache, 0x7e);
        std::vector<uint8_t>     v(n_bytes * n_cache, 0x7e);
        std::vector<ggml_fp16_t> seen(n_cache * N_ROWS, ggml_fp32_to_fp16(-INFINITY));
        for (int64_t i = 0; i < N_CELLS; ++i) {
            const int64_t cell = scattered ? cells[i] : i;
            std::copy_n(keys_data.data() + i * n_bytes, n_bytes, k.data() + cell * n_bytes);
            std::copy_n(values_data.data() + i * n_bytes, n_bytes, v.data() + cell * n_bytes);
            for (int64_t row = 0; row < N_ROWS; ++row) {
                if (i < N_CELLS - N_ROWS + row + 1) {
                    seen[row * n_cache + cell] = ggml_fp32_to_fp16(0.0f);
                }
            }
        }
        ggml_backend_tensor_set(keys, k.data(), 0, k.size());
        ggml_backend_tensor_set(values, v.data(), 0, v.size());
        ggml_backend_tensor_set(mask, seen.data(), 0, ggml_nbytes(mask));

        const std::vector<const int32_t *> lists(N_ROWS, cells.data());
        const std::vector<int64_t>         n_cells(N_ROWS, N_CELLS);
        mtp_mask_cells                     of_mask = { lists.data(), n_cells.data() };
        mask->extra                                = scattered ? &of_mask : nullptr;
        return p.result(marked);
    };
    CHECK(result(true) == result(false));
}

static void attention_does_not_depend_on_where_cells_lie() {
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        check_scattered_cells(type);
    }
}

struct attention_case {
    ggml_type type;
    int64_t   n_key_values, n_values, n_key_heads, n_heads, n_cache, n_streams;
    float     max_bias  = 0.0f;
    float     soft_cap  = 0.0f;
    bool      has_sinks = false;

    // of the largest; products with quantized keys round the queries too
    float tolerance() const { return ggml_is_quantized(type) ? 0.1f : 1e-4f; }
};

// What attention is, in doubles: [n_values, n_heads, n_rows, n_streams]
struct attention_reference {
    const attention_case &     of;
    int64_t                    n_rows;
    const std::vector<float> & queries; // [n_key_values, n_heads, n_rows, n_streams]
    const std::vector<float> & keys;    // [n_key_values, n_key_heads, n_cache, n_streams]
    const std::vector<float> & values;  // likewise
    const std::vector<float> & mask;    // [n_cache, n_rows, n_streams]
    const std::vector<float> & sinks;   // [n_heads]

    std::vector<float> result() const {
        std::vector<float> res;
        for (int64_t stream = 0; stream < of.n_streams; ++stream) {
            for (int64_t row = 0; row < n_rows; ++row) {
                for (int64_t head = 0; head < of.n_heads; ++head) {
                    add(res, stream, row, head);
                }
            }
        }
        return res;
    }

    void add(std::vector<float> & to, int64_t stream, int64_t row, int64_t head) const {
        const int64_t key_head = head / (of.n_heads / of.n_key_heads);
        const float * query    = &queries[((stream * n_rows + row) * of.n_heads + head) * of.n_key_values];
        double        sum      = of.has_sinks ? std::exp(sinks[head]) : 0.0;

        std::vector<double> sums(of.n_values);
        for (int64_t cell = 0; cell < of.n_cache; ++cell) {
            const int64_t at    = (stream * of.n_cache + cell) * of.n_key_heads + key_head;
            double        score = 0.0;
            for (int64_t i = 0; i < of.n_key_values; ++i) {
                score += (double) query[i] * keys[at * of.n_key_values + i] * SCALE;
            }
            if (of.soft_cap != 0.0f) {
                score = of.soft_cap * std::tanh(score / of.soft_cap);
            }
            score += slope(head) * mask[(stream * n_rows + row) * of.n_cache + cell];
            sum += std::exp(score);
            for (int64_t i = 0; i < of.n_values && score > -INFINITY; ++i) {
                sums[i] += std::exp(score) * values[at * of.n_values + i];
            }
        }
        for (const double x : sums) {
            to.push_back(sum > 0.0 ? x / sum : 0.0);
        }
    }

    // ALiBi, of 4 heads
    double slope(int64_t head) const { return of.max_bias > 0.0f ? std::pow(2.0, -of.max_bias / 4 * (head + 1)) : 1.0; }

    static constexpr float SCALE = 0.125f;
};

static std::vector<float> as_floats(ggml_type type, const std::vector<uint8_t> & data) {
    std::vector<float> res(data.size() / ggml_type_size(type) * ggml_blck_size(type));
    if (type == GGML_TYPE_F32) {
        std::copy_n((const float *) data.data(), res.size(), res.data());
    } else {
        ggml_get_type_traits(type)->to_float(data.data(), res.data(), res.size());
    }
    return res;
}

// Rows together are bit for bit rows alone, and both are what attention is.
static void check_attention(const attention_case & of, int64_t n_rows) {
    product        p;
    ggml_context * ctx     = p.ctx.get();
    const auto     n       = of.n_streams;
    ggml_tensor *  queries = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, of.n_key_values, of.n_heads, n_rows, n);
    ggml_tensor *  keys    = ggml_new_tensor_4d(ctx, of.type, of.n_key_values, of.n_key_heads, of.n_cache, n);
    ggml_tensor *  values  = ggml_new_tensor_4d(ctx, of.type, of.n_values, of.n_key_heads, of.n_cache, n);
    ggml_tensor *  mask    = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, of.n_cache, n_rows, 1, n);
    ggml_tensor *  sinks   = of.has_sinks ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, of.n_heads) : nullptr;

    // rows [row, row + n_together) of streams [stream, stream + n_apart)
    const auto attention = [&](int64_t row, int64_t n_together, int64_t stream, int64_t n_apart) {
        const auto part = [&](ggml_tensor * tensor, int64_t n_second, int64_t second) {
            const auto & nb = tensor->nb;
            return ggml_view_4d(ctx, tensor, tensor->ne[0], n_second, tensor->ne[2], n_apart, nb[1], nb[2], nb[3],
                                second * nb[1] + stream * nb[3]);
        };
        ggml_tensor * q    = part(ggml_permute(ctx, queries, 0, 2, 1, 3), n_together, row);
        ggml_tensor * k    = part(ggml_permute(ctx, keys, 0, 2, 1, 3), of.n_cache, 0);
        ggml_tensor * v    = part(ggml_permute(ctx, values, 0, 2, 1, 3), of.n_cache, 0);
        ggml_tensor * node = ggml_flash_attn_ext(ctx, q, k, v, part(mask, n_together, row), attention_reference::SCALE,
                                                 of.max_bias, of.soft_cap);
        ggml_flash_attn_ext_add_sinks(node, sinks);
        node->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        return node;
    };
    ggml_tensor *              together = attention(0, n_rows, 0, n);
    std::vector<ggml_tensor *> single;
    for (int64_t stream = 0; stream < n; ++stream) {
        for (int64_t row = 0; row < n_rows; ++row) {
            single.push_back(attention(row, 1, stream, 1));
        }
    }
    p.alloc();

    auto queries_data = random_values(ggml_nelements(queries));
    for (auto & x : queries_data) {
        x *= 20.0f; // some scores are far above the others
    }
    ggml_backend_tensor_set(queries, queries_data.data(), 0, ggml_nbytes(queries));
    const auto keys_data   = random_quantized(of.type, ggml_nrows(keys), of.n_key_values);
    const auto values_data = random_quantized(of.type, ggml_nrows(values), of.n_values);
    ggml_backend_tensor_set(keys, keys_data.data(), 0, keys_data.size());
    ggml_backend_tensor_set(values, values_data.data(), 0, values_data.size());

    std::vector<float> seen;
    for (int64_t stream = 0; stream < n; ++stream) {
        for (int64_t row = 0; row < n_rows; ++row) {
            for (int64_t cell = 0; cell < of.n_cache; ++cell) {
                seen.push_back(mask_value(row + stream, cell, of.n_cache, n_rows));
                seen.back() += of.max_bias > 0.0f ? (float) -std::abs(row - cell) : 0.0f;
            }
        }
    }
    std::vector<ggml_fp16_t> rounded(seen.size());
    ggml_fp32_to_fp16_row(seen.data(), rounded.data(), seen.size());
    ggml_backend_tensor_set(mask, rounded.data(), 0, ggml_nbytes(mask));
    const auto sinks_data = random_values(of.n_heads);
    if (sinks) {
        ggml_backend_tensor_set(sinks, sinks_data.data(), 0, ggml_nbytes(sinks));
    }

    const auto result = p.result(together);
    CHECK(result == p.results(single));

    const auto k        = as_floats(of.type, keys_data);
    const auto v        = as_floats(of.type, values_data);
    const auto expected = attention_reference{ of, n_rows, queries_data, k, v, seen, sinks_data }.result();
    const auto largest  = *std::max_element(expected.begin(), expected.end());
    CHECK(std::equal(result.begin(), result.end(), expected.begin(), expected.end(),
                     [&](float x, float y) { return std::fabs(x - y) <= of.tolerance() * largest; }));
}

static void attention_of_several_rows_is_that_of_each() {
    const attention_case cases[] = {
        { GGML_TYPE_F16, 64, 64, 2, 8, 300, 1 },
        { GGML_TYPE_F16, 64, 64, 2, 6, 600, 1 },
        { GGML_TYPE_F16, 128, 128, 1, 5, 40, 2 },
        { GGML_TYPE_F16, 192, 128, 1, 1, 129, 1 },
        { GGML_TYPE_F16, 576, 512, 1, 2, 128, 1 },
        { GGML_TYPE_F16, 72, 80, 1, 2, 30, 1 },
        { GGML_TYPE_F16, 36, 38, 1, 2, 70, 1 }, // fills no vectors
        { GGML_TYPE_F32, 64, 64, 2, 4, 70, 1 },
        { GGML_TYPE_BF16, 64, 64, 2, 4, 70, 1 },
        { GGML_TYPE_Q8_0, 64, 96, 2, 8, 300, 1 },
        { GGML_TYPE_Q4_0, 128, 128, 1, 4, 150, 2 },
        { GGML_TYPE_Q5_1, 64, 64, 1, 4, 70, 1 },
        { GGML_TYPE_F16, 64, 64, 2, 4, 70, 1, 8.0f },
        { GGML_TYPE_F16, 64, 64, 2, 4, 70, 1, 0.0f, 10.0f },
        { GGML_TYPE_F16, 64, 64, 2, 4, 70, 1, 0.0f, 0.0f, true },
    };
    for (const auto & of : cases) {
        for (const int64_t n_rows : { 1, 2, 4, 8, 20 }) {
            check_attention(of, n_rows);
        }
    }
    check_attention(cases[0], 100); // a prompt
}

int main() {
    RUN(every_type_has_a_kernel);
    RUN(rows_together_are_rows_one_by_one);
    RUN(halves_have_rows_that_do_not_depend_on_their_number);
    RUN(a_product_is_what_the_dequantized_weights_give);
    RUN(every_instruction_set_gives_the_same_bits);
    RUN(rows_that_share_experts_are_rows_alone);
    RUN(attention_of_several_rows_is_that_of_each);
    RUN(attention_does_not_depend_on_where_cells_lie);
    return g_n_failed > 0;
}
