#include "mtp-outputs.h"

#include "ggml-backend.h"
#include "llama-context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

// Logits in groups. Nothing below chooses by comparing: which of two logits is higher cannot be predicted, and a wrong
// guess costs more than all else here.
static constexpr int64_t N_GROUP = 64;

#ifdef __GNUC__

// without the order of the values known, compilers do not make vectors of a maximum
typedef float mtp_lanes __attribute__((vector_size(16), aligned(4), may_alias));

static float mtp_group_maximum(const float * group) {
    const auto * lanes = (const mtp_lanes *) group;

    mtp_lanes even = lanes[0];
    mtp_lanes odd  = lanes[1];
    for (int64_t i = 2; i < N_GROUP / 4; i += 2) {
        even = even > lanes[i] ? even : lanes[i];
        odd  = odd > lanes[i + 1] ? odd : lanes[i + 1];
    }
    even = even > odd ? even : odd;

    const float left  = even[0] > even[1] ? even[0] : even[1];
    const float right = even[2] > even[3] ? even[2] : even[3];
    return left > right ? left : right;
}

#else

static float mtp_group_maximum(const float * group) {
    float highest = group[0];
    for (int64_t i = 1; i < N_GROUP; ++i) {
        highest = highest > group[i] ? highest : group[i];
    }
    return highest;
}

#endif

// A value that at least n of the maxima are not below, and few more are. bins: memory.
static float mtp_threshold(const std::vector<float> & maxima, int32_t n, std::vector<int32_t> & bins) {
    static constexpr int32_t N_BINS  = 512;
    static constexpr size_t  N_LANES = 16;
    static constexpr int32_t N_FEW   = 8;

    if (n <= N_FEW) { // that one is among them is seldom, which can be predicted
        float found[N_FEW + 1];
        std::fill_n(found, N_FEW + 1, -INFINITY);
        for (const float x : maxima) {
            for (int32_t i = n - 1; i >= 0 && x > found[i]; --i) {
                found[i + 1] = found[i];
                found[i]     = x;
            }
        }
        return found[n - 1];
    }
    float lows[N_LANES];
    float highs[N_LANES];
    std::fill_n(lows, N_LANES, maxima[0]);
    std::fill_n(highs, N_LANES, maxima[0]);
    for (size_t i = 0; i + N_LANES <= maxima.size(); i += N_LANES) {
        for (size_t k = 0; k < N_LANES; ++k) {
            const float x = maxima[i + k];
            lows[k]       = x < lows[k] ? x : lows[k];
            highs[k]      = x > highs[k] ? x : highs[k];
        }
    }
    // The few left over are in the highest or in the lowest bin if they are beyond.
    const float highest = *std::max_element(highs, highs + N_LANES);
    const float lowest  = std::max(*std::min_element(lows, lows + N_LANES), highest - 64.0f); // of impossible tokens
    if (!(highest > lowest)) {
        return -INFINITY;
    }
    const float scale = (N_BINS - 1) / (highest - lowest);

    bins.resize(maxima.size());
    for (size_t i = 0; i < maxima.size(); ++i) {
        const float x = maxima[i] < highest ? maxima[i] : highest;
        bins[i]       = (int32_t) ((x > lowest ? x - lowest : 0.0f) * scale); // also NaN
    }
    int32_t counts[N_BINS] = {};
    for (const int32_t bin : bins) {
        ++counts[bin];
    }

    int32_t bin     = N_BINS - 1;
    int32_t n_above = counts[bin];
    while (bin > 0 && n_above < n) {
        n_above += counts[--bin];
    }
    // one bin lower: the edges are rounded
    return bin > 1 ? lowest + (bin - 1) / scale : -INFINITY;
}

// The places of those that are not below, NaN among them, in front.
static size_t mtp_not_below(const float * values, size_t n, float threshold, int32_t first, int32_t * places) {
    size_t n_found = 0;
    for (size_t i = 0; i < n; ++i) {
        places[n_found] = first + i;
        n_found += !(values[i] < threshold);
    }
    return n_found;
}

// ordered as logits are, the first of equal ones highest
static uint64_t mtp_candidate_key(float logit, int32_t id) {
    uint32_t bits;
    logit += 0.0f; // -0 is 0
    std::memcpy(&bits, &logit, sizeof(bits));
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t) bits << 32 | (uint32_t) ~id;
}

void mtp_candidates_select(const float * logits, int64_t n_logits, int32_t n, int32_t * ids, float * values) {
    GGML_ASSERT(n <= n_logits);

    // the vectors keep their memory: rows come often
    static thread_local std::vector<float>    maxima;
    static thread_local std::vector<int32_t>  bins;
    static thread_local std::vector<int32_t>  places;
    static thread_local std::vector<uint64_t> keys;

    // no logit below the n-th highest maximum is among the n highest, nor is one below that
    const int64_t n_groups  = n_logits / N_GROUP;
    const int64_t n_grouped = n < n_groups ? n_groups * N_GROUP : 0; // logits that are found by their groups
    float         threshold = -INFINITY;
    size_t        n_high    = 0;                                     // groups that have some

    keys.clear();
    places.resize(std::max(n_groups, n_logits - n_grouped) + N_GROUP);
    if (n_grouped > 0) {
        maxima.resize(n_groups);
        for (int64_t i = 0; i < n_groups; ++i) {
            maxima[i] = mtp_group_maximum(logits + i * N_GROUP);
        }
        threshold = mtp_threshold(maxima, n, bins);
        n_high    = mtp_not_below(maxima.data(), n_groups, threshold, 0, places.data());
    }

    const auto add = [&](int64_t begin, int64_t end, int32_t * memory) {
        const size_t n_found = mtp_not_below(logits + begin, end - begin, threshold, begin, memory);
        for (size_t i = 0; i < n_found; ++i) {
            keys.push_back(mtp_candidate_key(logits[memory[i]], memory[i]));
        }
    };
    for (size_t i = 0; i < n_high; ++i) {
        int32_t found[N_GROUP];
        add(places[i] * N_GROUP, (places[i] + 1) * N_GROUP, found);
    }
    add(n_grouped, n_logits, places.data());

    std::partial_sort(keys.begin(), keys.begin() + n, keys.end(), std::greater<>());
    for (int32_t k = 0; k < n; ++k) {
        ids[k]    = (int32_t) ~(uint32_t) keys[k];
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

    // [n_kept * BLOCK], then [n_rest]
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

void mtp_outputs::hold(ggml_tensor * logits, size_t n_rows, const mtp_candidates & reduced, ggml_backend_t backend) {
    held.logits  = logits;
    held.n_rows  = n_rows;
    held.reduced = reduced;
    held.backend = backend;
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

bool mtp_outputs::find_highest(int32_t row, int32_t n, int32_t * ids, float * values) {
    auto & reduced = held.reduced;
    if (!held.logits || !reduced.blocks || n > reduced.blocks->ne[1]) {
        return false;
    }
    if (!reduced.is_fetched()) {
        wait();
        n_bytes += reduced.fetch(held.backend, candidates);
    }
    reduced.select(row, n, ids, values);
    return true;
}
