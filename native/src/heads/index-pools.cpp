#include "index-pools.h"

#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"

#include <algorithm>
#include <array>
#include <cmath>

// The part of a memory that keeps the keys of an index.
static const llama_kv_cache_context * cache_of_index(const llama_memory_context_i * mctx) {
    if (auto * dsa = dynamic_cast<const llama_kv_cache_dsa_context *>(mctx)) {
        return dsa->get_lid();
    }
    auto * idx = dynamic_cast<const llama_memory_hybrid_idx_context *>(mctx);
    return idx ? idx->get_idx() : nullptr;
}

// What the mask has for empty pools: no score is as low, and halves can hold it.
static constexpr float EMPTY = -60000.0f;

// At most: the cells of a stream make up so many, sequences that share cells may differ within a pool, and n_best are
// empty.
static int64_t count_pools(const llama_kv_cache_context & mctx, int64_t n_rows, int64_t n_pooled, int64_t n_best) {
    const auto &  cache  = mctx.get_cache();
    const int64_t n_seqs = cache.get_n_stream() > 1 ? 1 : cache.get_n_seq_max();
    return GGML_PAD(mctx.get_n_kv() / n_pooled + std::min(n_rows, n_seqs) + n_best, 64);
}

template <typename T> static void send(ggml_tensor * tensor, const std::vector<T> & data) {
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size() * sizeof(T));
}

index_pools::index_pools(const llm_graph_context & graph, const llama_kv_cache_context * mctx, int64_t n_stream) :
    mctx(mctx), n_pooled(graph.hparams.indexer_kpool), n_stream(n_stream),
    n_best(std::max<int64_t>(1, graph.hparams.indexer_top_k / n_pooled)), n_rows(graph.n_tokens / n_stream),
    n_pools(count_pools(*mctx, n_rows, n_pooled, n_best)) {
    const auto new_input = [&](ggml_type type, std::array<int64_t, 4> shape, const char * name) {
        ggml_tensor * tensor = ggml_new_tensor(graph.ctx0, type, shape.size(), shape.data());
        ggml_set_input(tensor);
        ggml_set_name(tensor, name);
        return tensor;
    };
    cells   = new_input(GGML_TYPE_I32, { n_pooled * n_pools, n_stream, 1, 1 }, "mtp_pool_cells");
    pos     = new_input(GGML_TYPE_I32, { 4 * n_stream * n_pools, 1, 1, 1 }, "mtp_pool_pos");
    mask    = new_input(graph.cparams.fused_lid ? GGML_TYPE_F16 : GGML_TYPE_F32, { n_pools, n_rows, 1, n_stream },
                        "mtp_pool_mask");
    tail    = new_input(GGML_TYPE_F32, { n_pooled - 1, graph.n_tokens, 1, 1 }, "mtp_pool_tail");
    no_tail = new_input(GGML_TYPE_F32, { n_pooled - 1, graph.n_tokens, 1, 1 }, "mtp_pool_no_tail");
}

bool index_pools::can_reuse(const llm_graph_params & params) {
    mctx = cache_of_index(params.mctx);
    return mctx && params.ubatch.n_tokens == n_rows * n_stream &&
           n_stream == (params.cparams.kv_unified ? 1 : params.ubatch.n_seqs_unq) &&
           count_pools(*mctx, n_rows, n_pooled, n_best) == n_pools;
}

ggml_tensor * index_pools::build_picked(ggml_context * ctx0, ggml_tensor * scores) const {
    ggml_tensor * best   = ggml_cont(ctx0, ggml_top_k(ctx0, scores, n_best));
    ggml_tensor * picked = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, cells, n_pooled, n_pools, n_stream),
                                         ggml_reshape_2d(ctx0, best, n_best * n_rows, n_stream));
    picked               = ggml_reshape_2d(ctx0, picked, n_best * n_pooled, n_rows * n_stream);
    picked               = ggml_cast(ctx0, picked, GGML_TYPE_F32);

    // where the tail has no position, one that has been picked comes again
    ggml_tensor * again  = ggml_view_2d(ctx0, picked, 1, picked->ne[1], picked->nb[1], 0);
    ggml_tensor * latest = ggml_add(ctx0, tail, ggml_mul(ctx0, no_tail, again));

    picked = ggml_cast(ctx0, ggml_concat(ctx0, picked, latest, 0), GGML_TYPE_I32);
    return ggml_reshape_4d(ctx0, picked, picked->ne[0], n_rows, 1, n_stream);
}

// --- what is in the cache

// Places are positions; where an image's rows share them they are counted, row by row.
index_pools::sequence index_pools::find_cells(llama_seq_id seq) const {
    const auto & cells     = mctx->get_cache().get_cells(seq);
    const auto & positions = cells.seq_pos_get(seq);

    sequence res;
    res.in = &cells;
    res.cells.assign(positions.begin(), positions.end());
    for (size_t i = 1; i < res.cells.size(); ++i) {
        res.has_2d = res.has_2d || res.cells[i - 1].first == res.cells[i].first;
    }
    if (!res.has_2d) {
        return res;
    }
    std::sort(res.cells.begin(), res.cells.end(), [&](const auto & a, const auto & b) {
        const auto & of_a = cells.ext_get(a.second);
        return a.first != b.first ? a.first < b.first : cells.ext_get(b.second).is_2d_gt(of_a.x, of_a.y);
    });
    for (size_t i = 0; i < res.cells.size(); ++i) {
        res.cells[i].first = i;
    }
    return res;
}

// The place of a row, which has its cell.
int64_t index_pools::find_place(const sequence & of, const llama_ubatch & ubatch, int64_t row) const {
    if (!of.has_2d) {
        return ubatch.pos[row];
    }
    const auto after = std::upper_bound(of.cells.begin(), of.cells.end(), row, [&](int64_t row, const auto & placed) {
        const llama_pos pos = of.in->pos_get(placed.second);
        if (ubatch.pos[row] != pos || !ubatch.is_pos_2d()) {
            return ubatch.pos[row] < pos;
        }
        const auto & ext = of.in->ext_get(placed.second);
        return ext.is_2d_gt(ubatch.pos[row + ubatch.n_tokens * 2], ubatch.pos[row + ubatch.n_tokens]);
    });
    return after - of.cells.begin() - 1;
}

// Pools that end at a place or before, that the cache has all positions of, and that the head has seen.
// pool_of: by the last cell, which is that of one pool; into: [n_pools, n_pooled] cells
void index_pools::find_pools(sequence & of, const mtp_seen * seen, int64_t last, std::map<uint32_t, int32_t> & pool_of,
                             int32_t * into) const {
    std::vector<uint32_t> members;
    int64_t               next = 0;
    for (const auto & [place, cell] : of.cells) {
        if (place > last) {
            break;
        }
        if (seen && seen->hides(of.in->pos_get(cell))) {
            continue;
        }
        if (place != next) {
            members.clear();
        }
        next = place + 1;
        if (place % n_pooled == (int64_t) members.size()) {
            members.push_back(cell);
        }
        if ((int64_t) members.size() < n_pooled) {
            continue;
        }
        const auto [found, is_new] = pool_of.try_emplace(cell, pool_of.size());
        GGML_ASSERT(found->second < n_pools - n_best);
        if (is_new) {
            std::copy(members.begin(), members.end(), into + found->second * n_pooled);
        }
        of.pools.push_back({ place, found->second });
        members.clear();
    }
}

// cells, has_none: [n_pooled - 1]
void index_pools::find_tail(const sequence & of, int64_t place, float * cells, float * has_none) const {
    const int64_t begin = (place + 1) / n_pooled * n_pooled;
    for (auto it = of.from(begin); it != of.cells.end() && it->first <= place; ++it) {
        *cells++    = it->second;
        *has_none++ = 0.0f;
    }
    // a row sees itself, also where the rest of its pool has not been seen
    const auto own = std::lower_bound(of.pools.begin(), of.pools.end(), std::make_pair(place, int32_t(0)));
    if (begin > place && (own == of.pools.end() || own->first != place)) {
        *cells    = of.from(place)->second;
        *has_none = 0.0f;
    }
}

// The sequences of a stream's rows, with their pools as far as the rows go; places: of the rows
std::map<llama_seq_id, index_pools::sequence> index_pools::find_sequences(const llama_ubatch & ubatch, int64_t stream,
                                                                          std::vector<int64_t> & places,
                                                                          int32_t *              into) const {
    std::map<llama_seq_id, sequence> res;
    std::map<llama_seq_id, int64_t>  last_of;
    for (int64_t i = stream * n_rows; i < (stream + 1) * n_rows; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        if (!res.count(seq)) {
            res[seq] = find_cells(seq);
        }
        places.push_back(find_place(res[seq], ubatch, i));
        last_of[seq] = std::max(last_of[seq], places.back());
    }
    // pools that there are not have a cell that holds numbers, and that no row before it sees
    const auto & [first, of_first] = *res.begin();
    std::fill_n(into, n_pools * n_pooled, (int32_t) of_first.from(last_of[first])->second);

    std::map<uint32_t, int32_t> pool_of;
    const auto *                seen = mctx->get_cache().mtp.seen;
    for (auto & [seq, of] : res) {
        find_pools(of, seen ? &(*seen)[seq] : nullptr, last_of[seq], pool_of, into);
    }
    return res;
}

void index_pools::set_input(const llama_ubatch * ubatch) {
    if (!cells->buffer) {
        return; // the graph stores keys only
    }
    std::vector<int32_t> cell_data(ggml_nelements(cells));
    std::vector<int32_t> pos_data(ggml_nelements(pos));
    std::vector<float>   mask_data(ggml_nelements(mask), -INFINITY);
    std::vector<float>   tail_data(ggml_nelements(tail), 0.0f);
    std::vector<float>   no_tail_data(ggml_nelements(no_tail), 1.0f);

    for (int64_t s = 0; s < n_stream; ++s) {
        std::vector<int64_t> places;
        int32_t *            into = &cell_data[s * n_pools * n_pooled];
        const auto           seqs = find_sequences(*ubatch, s, places, into);

        for (const auto & [seq, of] : seqs) {
            for (const auto & [end, pool] : of.pools) {
                const int32_t   cell    = into[pool * n_pooled];
                const llama_pos first   = of.in->pos_get(cell);
                const auto &    ext     = of.in->ext_get(cell);
                const llama_pos axes[4] = { first, of.has_2d ? ext.y : first, of.has_2d ? ext.x : first, first };
                for (int64_t axis = 0; axis < 4; ++axis) {
                    pos_data[(axis * n_stream + s) * n_pools + pool] = axes[axis];
                }
            }
        }
        for (int64_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
            const auto &  of    = seqs.at(ubatch->seq_id[i][0]);
            const int64_t place = places[i - s * n_rows];
            std::fill_n(&mask_data[(i + 1) * n_pools - n_best], n_best, EMPTY);
            for (const auto & [end, pool] : of.pools) {
                mask_data[i * n_pools + pool] = end <= place ? 0.0f : -INFINITY;
            }
            find_tail(of, place, &tail_data[i * (n_pooled - 1)], &no_tail_data[i * (n_pooled - 1)]);
        }
    }
    send(cells, cell_data);
    send(tail, tail_data);
    send(no_tail, no_tail_data);
    if (pos->buffer) {
        send(pos, pos_data);
    }
    if (mask->type == GGML_TYPE_F32) {
        send(mask, mask_data);
        return;
    }
    std::vector<ggml_fp16_t> halves(mask_data.size());
    ggml_fp32_to_fp16_row(mask_data.data(), halves.data(), mask_data.size());
    send(mask, halves);
}
