// Products of few rows on a GPU: microseconds of our kernels and of llama.cpp's, for each type of weights and number of
// rows.
//
//     cuda_products [SHARED_KIB] [TYPE ...]     SHARED_KIB: of a thread block at most (0: what the GPU has)
//
// Each figure is of a graph of products with matrices of their own, more than the cache holds, all with the same
// activations, as a GPU computes them in passes; the fastest of several runs.

#include "fastest_run.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

struct shape {
    const char * name;
    int64_t      n_values;
    int64_t      n_out;
    int64_t      n_experts; // 0: dense; else each row takes 8 of them
    bool         has_gate;
};

static constexpr shape SHAPES[] = {
    { "gate and up", 4096, 12288, 0, true }, { "down", 12288, 4096, 0, false },    { "queries", 4096, 4096, 0, false },
    { "keys", 4096, 1024, 0, false },        { "output", 4096, 151936, 0, false }, { "experts", 4096, 1408, 32, true },
};

static constexpr ggml_type TYPES[] = { GGML_TYPE_Q8_0,  GGML_TYPE_Q6_K, GGML_TYPE_Q5_K,   GGML_TYPE_Q4_K,
                                       GGML_TYPE_Q5_0,  GGML_TYPE_Q4_0, GGML_TYPE_IQ4_XS, GGML_TYPE_IQ4_NL,
                                       GGML_TYPE_MXFP4, GGML_TYPE_Q3_K };

static constexpr int64_t N_PLACES = 8;

// of a product, in microseconds
static double measure(ggml_backend_t backend, ggml_type type, const shape & shape, int64_t n_rows, bool ours) {
    const int64_t matrix_size =
        ggml_row_size(type, shape.n_values) * shape.n_out * std::max<int64_t>(shape.n_experts, 1);
    const int64_t n_products = std::clamp<int64_t>((400 << 20) / matrix_size, 1, 64);

    ggml_context_ptr weights{ ggml_init({ 1 << 20, nullptr, true }) };
    ggml_context_ptr nodes{ ggml_init({ 4 << 20, nullptr, true }) };
    ggml_cgraph *    gf  = ggml_new_graph_custom(nodes.get(), 1024, false);
    auto *           ctx = nodes.get();

    const auto new_matrix = [&] {
        return shape.n_experts ? ggml_new_tensor_3d(weights.get(), type, shape.n_values, shape.n_out, shape.n_experts) :
                                 ggml_new_tensor_2d(weights.get(), type, shape.n_values, shape.n_out);
    };
    ggml_tensor * rows = shape.n_experts ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, shape.n_values, 1, n_rows) :
                                           ggml_new_tensor_2d(ctx, GGML_TYPE_F32, shape.n_values, n_rows);
    ggml_tensor * ids  = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, N_PLACES, n_rows);
    for (int64_t i = 0; i < n_products; ++i) {
        const auto multiply = [&] {
            return shape.n_experts ? ggml_mul_mat_id(ctx, new_matrix(), rows, ids) :
                                     ggml_mul_mat(ctx, new_matrix(), rows);
        };
        ggml_tensor * out = multiply();
        // a node between products: side by side they would be computed together
        ggml_build_forward_expand(gf, shape.has_gate ? ggml_swiglu_split(ctx, multiply(), out) :
                                                       ggml_reshape_1d(ctx, out, ggml_nelements(out)));
    }
    for (int i = 0; ours && i < ggml_graph_n_nodes(gf); ++i) {
        ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
    ggml_backend_buffer_ptr weights_buf{ ggml_backend_alloc_ctx_tensors(weights.get(), backend) };
    ggml_backend_buffer_ptr nodes_buf{ ggml_backend_alloc_ctx_tensors(nodes.get(), backend) };
    if (!weights_buf || !nodes_buf) {
        return 0.0;
    }
    ggml_backend_buffer_set_usage(weights_buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(weights_buf.get(), 0x35); // small scales in every type

    std::mt19937                          rng(1);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    std::vector<float>                    values(ggml_nelements(rows));
    std::generate(values.begin(), values.end(), [&] { return value(rng); });
    ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));
    std::vector<int32_t> experts;
    for (int64_t i = 0; shape.n_experts && i < n_rows; ++i) {
        std::vector<int32_t> all(shape.n_experts);
        for (size_t k = 0; k < all.size(); ++k) {
            all[k] = (int32_t) k;
        }
        std::shuffle(all.begin(), all.end(), rng);
        experts.insert(experts.end(), all.begin(), all.begin() + N_PLACES);
    }
    if (shape.n_experts) {
        ggml_backend_tensor_set(ids, experts.data(), 0, ggml_nbytes(ids));
    }
    return fastest_run(backend, gf) / (double) n_products;
}

int main(int argc, char ** argv) {
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!device) {
        std::puts("no GPU");
        return 1;
    }
    if (const int shared_kib = argc > 1 ? std::atoi(argv[1]) : 0) {
        const auto limit = (void (*)(size_t)) dlsym(RTLD_DEFAULT, "pymtp_cuda_limit_shared_memory");
        if (!limit) {
            std::puts("the CUDA library has no pymtp_cuda_limit_shared_memory");
            return 1;
        }
        limit((size_t) shared_kib << 10);
    }
    ggml_backend_ptr backend{ ggml_backend_dev_init(device, nullptr) };
    std::printf("%-8s %-12s", "type", "product");
    for (const int n_rows : { 1, 2, 4, 8, 16 }) {
        std::printf("  %4d rows: ours llama GB/s", n_rows);
    }
    std::puts("");
    for (const ggml_type type : TYPES) {
        const auto is_named = [&](const char * arg) {
            return strcmp(arg, ggml_type_name(type)) == 0;
        };
        if (argc > 2 && std::none_of(argv + 2, argv + argc, is_named)) {
            continue;
        }
        for (const shape & shape : SHAPES) {
            std::printf("%-8s %-12s", ggml_type_name(type), shape.name);
            for (const int n_rows : { 1, 2, 4, 8, 16 }) {
                const double ours  = measure(backend.get(), type, shape, n_rows, true);
                const double llama = measure(backend.get(), type, shape, n_rows, false);
                const double bytes = (double) ggml_row_size(type, shape.n_values) * shape.n_out *
                                     (shape.has_gate ? 2 : 1) * (shape.n_experts ? 8 : 1);
                std::printf("  %14.1f %5.1f %4.0f", ours, llama, bytes / ours / 1e3);
            }
            std::puts("");
            std::fflush(stdout);
        }
    }
}
