// Attention of few rows on a GPU: microseconds of llama.cpp's flash attention for each type of cache, depth and number
// of rows, and how fast it reads the cache.
//
//     cuda_attention [DEPTH ...]     cells of the cache (default: 1024/1/8 1024 8192 32768 131072 16384/16)
//     cuda_attention 4096/16         ... that belong to 16 sequences, as rows do; each row sees its sequence's cells
//     cuda_attention 1024/1/8        ... of which an eighth is used
//
// The shape of a layer of bench/synth_gguf.py's dense model: 32 heads of 128 values that share 8 of keys and values. The
// fastest of several runs, each of as many layers as there is room for, so that no layer finds its cache in the GPU's.

#include "../native/src/cuda/attention-sequences.h"
#include "fastest_run.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static constexpr int64_t HEAD_SIZE = 128;
static constexpr int64_t N_HEAD    = 32;
static constexpr int64_t N_HEAD_KV = 8;

static constexpr int N_ROWS[] = { 1, 2, 4, 8, 16, 32, 64, 128 };

static constexpr ggml_type TYPES[] = { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 };

// cells, sequences that they belong to, and of how many cells one is used
struct cache_shape {
    int64_t depth;
    int64_t n_sequences = 1;
    int64_t n_for_used  = 1;
};

static std::vector<ggml_fp16_t> make_mask(const cache_shape & shape, int64_t n_rows) {
    std::vector<ggml_fp16_t> mask(shape.depth * n_rows, ggml_fp32_to_fp16(-INFINITY));
    const int64_t            n_own = shape.depth / shape.n_sequences / shape.n_for_used; // cells of a sequence
    for (int64_t row = 0; row < n_rows; ++row) {
        const int64_t first = row * shape.n_sequences / n_rows * n_own;
        std::fill_n(mask.begin() + row * shape.depth + first, n_own, ggml_fp32_to_fp16(0.0f));
    }
    return mask;
}

static double measure(ggml_backend_t backend, ggml_type type, const cache_shape & shape, int64_t n_rows,
                      size_t cache_size) {
    const int64_t depth    = shape.depth;
    const int64_t n_layers = std::clamp<int64_t>((400 << 20) / (int64_t) cache_size, 1, 32);

    ggml_context_ptr nodes{ ggml_init({ 4 << 20, nullptr, true }) };
    ggml_cgraph *    gf  = ggml_new_graph_custom(nodes.get(), 256, false);
    auto *           ctx = nodes.get();

    ggml_tensor * q    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, HEAD_SIZE, n_rows, N_HEAD);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, depth, n_rows);
    for (int64_t i = 0; i < n_layers; ++i) {
        ggml_tensor * k   = ggml_new_tensor_3d(ctx, type, HEAD_SIZE, depth, N_HEAD_KV);
        ggml_tensor * v   = ggml_new_tensor_3d(ctx, type, HEAD_SIZE, depth, N_HEAD_KV);
        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f / std::sqrt((float) HEAD_SIZE), 0.0f, 0.0f);
        out->op_params[MTP_PARAM_SEQUENCES] = (int32_t) std::min(shape.n_sequences, n_rows);
        ggml_build_forward_expand(gf, out);
    }
    if (!ggml_backend_supports_op(backend, ggml_graph_node(gf, 0))) {
        return 0.0;
    }
    ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors(ctx, backend) };
    if (!buf) {
        return 0.0;
    }
    ggml_backend_buffer_clear(buf.get(), 0);
    const auto hidden = make_mask(shape, n_rows);
    ggml_backend_tensor_set(mask, hidden.data(), 0, hidden.size() * sizeof(hidden[0]));
    return fastest_run(backend, gf) / (double) n_layers;
}

int main(int argc, char ** argv) {
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!device) {
        std::puts("no GPU");
        return 1;
    }
    ggml_backend_ptr         backend{ ggml_backend_dev_init(device, nullptr) };
    std::vector<cache_shape> shapes;
    for (int i = 1; i < argc; ++i) {
        cache_shape shape{};
        std::sscanf(argv[i], "%" SCNd64 "/%" SCNd64 "/%" SCNd64, &shape.depth, &shape.n_sequences, &shape.n_for_used);
        shapes.push_back(shape);
    }
    if (shapes.empty()) {
        shapes = { { 1024, 1, 8 }, { 1024 }, { 8192 }, { 32768 }, { 131072 }, { 16384, 16 } };
    }
    std::printf("%-5s %11s", "cache", "depth");
    for (const int n_rows : N_ROWS) {
        std::printf("  %2d rows: us GB/s", n_rows);
    }
    std::puts("");
    for (const ggml_type type : TYPES) {
        for (const auto & shape : shapes) {
            const size_t cache_size = 2 * ggml_row_size(type, HEAD_SIZE) * shape.depth * N_HEAD_KV;
            std::printf("%-5s %7lld/%-3lld", ggml_type_name(type), (long long) shape.depth,
                        (long long) shape.n_sequences);
            for (const int n_rows : N_ROWS) {
                const double us = measure(backend.get(), type, shape, n_rows, cache_size);
                std::printf("  %11.1f %4.0f", us, us > 0.0 ? (double) cache_size / us / 1e3 : 0.0);
            }
            std::puts("");
            std::fflush(stdout);
        }
    }
}
