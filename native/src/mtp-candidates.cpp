#include "mtp-candidates.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

void mtp_candidates_select(const float * logits, int64_t n_logits, int32_t n, int32_t * ids, float * values) {
    GGML_ASSERT(n <= n_logits);

    using candidate = std::pair<float, int32_t>;

    const auto is_higher = [](const candidate & a, const candidate & b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };

    // a heap whose front is the lowest of the highest so far
    std::vector<candidate> heap;
    heap.reserve(n);
    for (int32_t i = 0; i < n; ++i) {
        heap.emplace_back(logits[i], i);
    }
    std::make_heap(heap.begin(), heap.end(), is_higher);

    const auto consider = [&](int64_t i) {
        if (logits[i] > heap.front().first) {
            std::pop_heap(heap.begin(), heap.end(), is_higher);
            heap.back() = { logits[i], (int32_t) i };
            std::push_heap(heap.begin(), heap.end(), is_higher);
        }
    };

    // most of a vocabulary is below: look at groups of logits first, in lanes that the compiler can compute at once
    constexpr int64_t N_LANES = 16;
    constexpr int64_t N_GROUP = 4 * N_LANES;

    int64_t i = n;
    for (; i + N_GROUP <= n_logits; i += N_GROUP) {
        float lanes[N_LANES];
        std::copy_n(logits + i, N_LANES, lanes);
        for (int64_t j = N_LANES; j < N_GROUP; j += N_LANES) {
            for (int64_t k = 0; k < N_LANES; ++k) {
                const float x = logits[i + j + k];
                lanes[k]      = lanes[k] > x ? lanes[k] : x;
            }
        }
        const float threshold = heap.front().first;
        bool        any       = false;
        for (int64_t k = 0; k < N_LANES; ++k) {
            any |= lanes[k] > threshold;
        }
        if (any) {
            for (int64_t j = i; j < i + N_GROUP; ++j) {
                consider(j);
            }
        }
    }
    for (; i < n_logits; ++i) {
        consider(i);
    }

    std::sort(heap.begin(), heap.end(), is_higher);
    for (int32_t k = 0; k < n; ++k) {
        values[k] = heap[k].first;
        ids[k]    = heap[k].second;
    }
}

mtp_candidates mtp_candidates::build(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits, int32_t n) {
    const int64_t n_vocab  = logits->ne[0];
    const int64_t n_rows   = logits->ne[1];
    const int64_t n_blocks = n_vocab / BLOCK;
    const int64_t n_rest   = n_vocab % BLOCK;

    if (n <= 0 || n >= n_blocks) {
        return {};
    }

    mtp_candidates res;
    res.n_blocks = n_blocks;

    ggml_tensor * whole = ggml_view_2d(ctx0, logits, n_blocks * BLOCK, n_rows, logits->nb[1], 0);
    if (n_rest > 0) {
        whole    = ggml_cont(ctx0, whole);
        res.rest = ggml_cont(
            ctx0, ggml_view_2d(ctx0, logits, n_rest, n_rows, logits->nb[1], n_blocks * BLOCK * logits->nb[0]));
    }

    // the highest of each block
    ggml_tensor * highest = ggml_argmax(ctx0, ggml_reshape_2d(ctx0, whole, BLOCK, n_blocks * n_rows));
    ggml_tensor * maxima  = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, whole, 1, BLOCK, n_blocks * n_rows),
                                          ggml_reshape_2d(ctx0, highest, 1, n_blocks * n_rows));

    res.block_ids = ggml_cont(ctx0, ggml_top_k(ctx0, ggml_reshape_2d(ctx0, maxima, n_blocks, n_rows), n));
    res.blocks    = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, whole, BLOCK, n_blocks, n_rows), res.block_ids);

    for (auto * tensor : { res.blocks, res.block_ids, res.rest }) {
        if (tensor) {
            ggml_set_output(tensor);
            ggml_build_forward_expand(gf, tensor);
        }
    }
    return res;
}

size_t mtp_candidates::fetch(ggml_backend_t backend, int32_t n, int32_t * ids, float * values) const {
    const int64_t n_kept = blocks->ne[1];
    const int64_t n_rows = blocks->ne[2];
    const int64_t n_rest = rest ? rest->ne[0] : 0;

    std::vector<float>   all(n_rows * (n_kept * BLOCK + n_rest));
    std::vector<int32_t> block_of(n_kept * n_rows);

    // [n_rows][n_kept * BLOCK], behind them [n_rows][n_rest]
    float * all_rest = all.data() + n_rows * n_kept * BLOCK;
    ggml_backend_tensor_get_async(backend, blocks, all.data(), 0, ggml_nbytes(blocks));
    ggml_backend_tensor_get_async(backend, block_ids, block_of.data(), 0, ggml_nbytes(block_ids));
    if (rest) {
        ggml_backend_tensor_get_async(backend, rest, all_rest, 0, ggml_nbytes(rest));
    }
    ggml_backend_synchronize(backend);

    std::vector<float> row(n_kept * BLOCK + n_rest);
    for (int64_t r = 0; r < n_rows; ++r) {
        std::copy_n(all.data() + r * n_kept * BLOCK, n_kept * BLOCK, row.data());
        std::copy_n(all_rest + r * n_rest, n_rest, row.data() + n_kept * BLOCK);

        mtp_candidates_select(row.data(), row.size(), n, ids + r * n, values + r * n);
        for (int32_t k = 0; k < n; ++k) {
            int32_t &     id    = ids[r * n + k];
            const int64_t block = id / BLOCK;
            id = block < n_kept ? block_of[r * n_kept + block] * BLOCK + id % BLOCK : id + (n_blocks - n_kept) * BLOCK;
        }
    }
    return ggml_nbytes(blocks) + ggml_nbytes(block_ids) + (rest ? ggml_nbytes(rest) : 0);
}
