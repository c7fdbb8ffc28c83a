#include "mtp-outputs.h"

#include "ggml-backend.h"
#include "llama-context.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

// Logits in groups: those with the highest maxima have the highest logits.
static constexpr int64_t N_GROUP = 64;

// Four maxima: compilers make vectors of these, of one alone they do not.
static float mtp_group_maximum(const float * group) {
    float highest[4] = { group[0], group[1], group[2], group[3] };
    for (int64_t i = 4; i < N_GROUP; i += 4) {
        for (int64_t k = 0; k < 4; ++k) {
            highest[k] = std::max(group[i + k], highest[k]);
        }
    }
    return std::max(std::max(highest[0], highest[1]), std::max(highest[2], highest[3]));
}

// Ordered as logits are, the first of equal ones highest. NaN has a place, too: sorting needs an order.
static uint64_t mtp_candidate_key(float logit, int32_t id) {
    uint32_t bits;
    logit += 0.0f; // -0 is 0
    std::memcpy(&bits, &logit, sizeof(bits));
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t) bits << 32 | (uint32_t) ~id;
}

static int32_t mtp_candidate_id(uint64_t key) {
    return (int32_t) ~(uint32_t) key;
}

void mtp_candidates_select(const float * logits, int64_t n_logits, int32_t n, int32_t * ids, float * values) {
    GGML_ASSERT(n <= n_logits);

    const int64_t n_groups  = n_logits / N_GROUP;
    const int64_t n_grouped = n < n_groups ? n_groups * N_GROUP : 0; // logits that are found by their groups

    // the vectors keep their memory: rows come often
    static thread_local std::vector<uint64_t> maxima; // of groups
    static thread_local std::vector<uint64_t> keys;   // of logits
    keys.resize(n_grouped > 0 ? n * N_GROUP + n_logits - n_grouped : n_logits);

    size_t     n_keys = 0;
    uint64_t   least  = 0;                      // no key below it is among the n highest
    const auto add    = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) { // without a branch, which nobody could predict
            keys[n_keys] = mtp_candidate_key(logits[i], i);
            n_keys += keys[n_keys] >= least;
        }
    };
    if (n_grouped > 0) {
        maxima.resize(n_groups);
        for (int64_t i = 0; i < n_groups; ++i) {
            maxima[i] = mtp_candidate_key(mtp_group_maximum(logits + i * N_GROUP), i);
        }
        std::nth_element(maxima.begin(), maxima.begin() + n - 1, maxima.end(), std::greater<>());
        least = maxima[n - 1] >> 32 << 32;
        for (int32_t k = 0; k < n; ++k) {
            const int64_t begin = mtp_candidate_id(maxima[k]) * N_GROUP;
            add(begin, begin + N_GROUP);
        }
    }
    add(n_grouped, n_logits);

    std::partial_sort(keys.begin(), keys.begin() + n, keys.begin() + n_keys, std::greater<>());
    for (int32_t k = 0; k < n; ++k) {
        ids[k]    = mtp_candidate_id(keys[k]);
        values[k] = logits[ids[k]];
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

void mtp_outputs::wait() {
    const int64_t begin = ggml_time_us();
    ctx.synchronize();
    t_us += ggml_time_us() - begin;
}

void mtp_outputs::fetch(float * data) {
    if (held.logits) {
        wait();
        const size_t size = held.n_rows * held.logits->nb[1];
        ggml_backend_tensor_get_async(held.backend, held.logits, data, 0, size);
        ggml_backend_synchronize(held.backend);
        n_bytes += size;
        forget();
    }
}

void mtp_outputs::fetch_reduced() {
    wait();
    const auto tensors = { held.reduced.blocks, held.reduced.block_ids, held.reduced.rest };

    size_t size = 0;
    for (auto * tensor : tensors) {
        size += tensor ? ggml_nbytes(tensor) : 0;
    }
    char * end = (char *) candidates.get(size, ggml_backend_get_device(held.backend));
    for (auto * tensor : tensors) {
        if (tensor) {
            ggml_backend_tensor_get_async(held.backend, tensor, end, 0, ggml_nbytes(tensor));
            end += ggml_nbytes(tensor);
        }
    }
    ggml_backend_synchronize(held.backend);
    n_bytes += size;
    held.is_here = true;
}

bool mtp_outputs::find_highest(int32_t row, int32_t n, int32_t * ids, float * values) {
    constexpr int64_t BLOCK   = mtp_candidates::BLOCK;
    const auto &      reduced = held.reduced;
    if (!held.logits || !reduced.blocks || n > reduced.blocks->ne[1]) {
        return false;
    }
    if (!held.is_here) {
        fetch_reduced();
    }
    const int64_t n_kept = reduced.blocks->ne[1];
    const int64_t n_rest = reduced.rest ? reduced.rest->ne[0] : 0;

    const char * begin  = (const char *) candidates.data();
    const auto * blocks = (const float *) begin + row * n_kept * BLOCK;
    const auto * of     = (const int32_t *) (begin + ggml_nbytes(reduced.blocks)) + row * n_kept;
    const auto * rest =
        (const float *) (begin + ggml_nbytes(reduced.blocks) + ggml_nbytes(reduced.block_ids)) + row * n_rest;

    std::vector<float> all(blocks, blocks + n_kept * BLOCK);
    all.insert(all.end(), rest, rest + n_rest);

    mtp_candidates_select(all.data(), all.size(), n, ids, values);
    for (int32_t k = 0; k < n; ++k) {
        const int64_t block = ids[k] / BLOCK;
        ids[k] = block < n_kept ? of[block] * BLOCK + ids[k] % BLOCK : ids[k] + (reduced.n_blocks - n_kept) * BLOCK;
    }
    return true;
}
