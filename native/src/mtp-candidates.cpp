#include "mtp-candidates.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <vector>

// Logits in groups of N_GROUP. Those of a group lie N_GROUP apart, so that the maxima of N_GROUP groups side by side
// are computed by vector instructions.
static constexpr int64_t N_GROUP = 64;
static constexpr int64_t N_CHUNK = N_GROUP * N_GROUP;

static void mtp_group_maxima(const float * logits, int64_t n_chunks, float * maxima) {
    for (int64_t i = 0; i < n_chunks; ++i) {
        const float * chunk = logits + i * N_CHUNK;

        float highest[N_GROUP];
        std::copy_n(chunk, N_GROUP, highest);
        for (int64_t j = 1; j < N_GROUP; ++j) {
            for (int64_t k = 0; k < N_GROUP; ++k) {
                const float x = chunk[j * N_GROUP + k];
                highest[k]    = highest[k] > x ? highest[k] : x;
            }
        }
        std::copy_n(highest, N_GROUP, maxima + i * N_GROUP);
    }
}

// A value that at least n of the maxima are not below, and few more are. Counts instead of comparing: which of two
// logits is higher cannot be predicted, and a wrong guess costs more than all else here.
static float mtp_threshold(const std::vector<float> & maxima, int32_t n) {
    static constexpr int32_t N_BINS = 512;

    float lowest  = INFINITY;
    float highest = -INFINITY;
    for (const float x : maxima) {
        lowest  = x < lowest ? x : lowest;
        highest = x > highest ? x : highest;
    }
    lowest = std::max(lowest, highest - 64.0f); // of impossible tokens
    if (!(highest > lowest)) {
        return -INFINITY;
    }
    const float scale = (N_BINS - 1) / (highest - lowest);

    int32_t counts[N_BINS] = {};
    for (const float x : maxima) {
        const float above = x - lowest;
        ++counts[above > 0.0f ? (int32_t) (above * scale) : 0]; // also NaN
    }

    int32_t bin     = N_BINS - 1;
    int32_t n_above = counts[bin];
    while (bin > 0 && n_above < n) {
        n_above += counts[--bin];
    }
    // one bin lower: the edges are rounded
    return bin > 1 ? lowest + (bin - 1) / scale : -INFINITY;
}

void mtp_candidates_select(const float * logits, int64_t n_logits, int32_t n, int32_t * ids, float * values) {
    GGML_ASSERT(n <= n_logits);

    // the vectors keep their memory: rows come often
    static thread_local std::vector<float>   maxima;
    static thread_local std::vector<int32_t> found;

    // no logit below the n-th highest maximum is among the n highest, nor below what lies under that
    const int64_t n_chunks  = n_logits / N_CHUNK;
    const int64_t n_groups  = n_chunks * N_GROUP;
    float         threshold = -INFINITY;
    int64_t       n_done    = 0; // logits that are found by their groups

    found.clear();
    if (n < n_groups) {
        maxima.resize(n_groups);
        mtp_group_maxima(logits, n_chunks, maxima.data());
        threshold = mtp_threshold(maxima, n);
        n_done    = n_chunks * N_CHUNK;
    }

    // written so that NaN is found
    const auto consider = [&](int64_t i) {
        if (!(logits[i] < threshold)) {
            found.push_back(i);
        }
    };
    for (int64_t i = 0; i < n_done / N_GROUP; ++i) {
        if (!(maxima[i] < threshold)) {
            for (int64_t j = 0; j < N_GROUP; ++j) {
                consider(i / N_GROUP * N_CHUNK + j * N_GROUP + i % N_GROUP);
            }
        }
    }
    for (int64_t i = n_done; i < n_logits; ++i) {
        consider(i);
    }

    const auto is_higher = [&](int32_t a, int32_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::partial_sort(found.begin(), found.begin() + n, found.end(), is_higher);
    for (int32_t k = 0; k < n; ++k) {
        ids[k]    = found[k];
        values[k] = logits[found[k]];
    }
}

mtp_candidates mtp_candidates::build(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits, int64_t n_logits,
                                     int32_t n) {
    const int64_t n_rows   = logits->ne[1];
    const int64_t n_blocks = n_logits / BLOCK;
    const int64_t n_rest   = n_logits % BLOCK;

    if (n <= 0 || n >= n_blocks) {
        return {};
    }

    mtp_candidates res;
    res.n_blocks = n_blocks;

    ggml_tensor * whole = ggml_view_2d(ctx0, logits, n_blocks * BLOCK, n_rows, logits->nb[1], 0);
    if (n_blocks * BLOCK < logits->ne[0]) {
        whole = ggml_cont(ctx0, whole);
    }
    if (n_rest > 0) {
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

size_t mtp_candidates::fetch(ggml_backend_t backend, mtp_host_memory & memory) {
    const size_t size = ggml_nbytes(blocks) + ggml_nbytes(block_ids) + (rest ? ggml_nbytes(rest) : 0);

    char * end = (char *) memory.get(size, ggml_backend_get_device(backend));

    const auto get = [&](const ggml_tensor * tensor) {
        void * data = end;
        ggml_backend_tensor_get_async(backend, tensor, data, 0, ggml_nbytes(tensor));
        end += ggml_nbytes(tensor);
        return data;
    };
    host_blocks = (const float *) get(blocks);
    host_ids    = (const int32_t *) get(block_ids);
    host_rest   = rest ? (const float *) get(rest) : nullptr;
    ggml_backend_synchronize(backend);
    return size;
}

void mtp_candidates::select(int32_t row, int32_t n, int32_t * ids, float * values) const {
    const int64_t n_kept = blocks->ne[1];
    const int64_t n_rest = rest ? rest->ne[0] : 0;

    // [n_kept * BLOCK], behind them [n_rest]
    std::vector<float> all(n_kept * BLOCK + n_rest);
    std::copy_n(host_blocks + row * n_kept * BLOCK, n_kept * BLOCK, all.data());
    if (rest) {
        std::copy_n(host_rest + row * n_rest, n_rest, all.data() + n_kept * BLOCK);
    }

    mtp_candidates_select(all.data(), all.size(), n, ids, values);
    for (int32_t k = 0; k < n; ++k) {
        const int64_t block = ids[k] / BLOCK;
        ids[k]              = block < n_kept ? host_ids[row * n_kept + block] * BLOCK + ids[k] % BLOCK :
                                               ids[k] + (n_blocks - n_kept) * BLOCK;
    }
}
