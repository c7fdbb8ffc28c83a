#include "head-index-kind.h"
#include "llama-kv-cache-dsa.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

// An index that scores pools of consecutive positions, of as many as the model says. A pool's key is a mean of those of
// its positions, weighted by their gates. The cache has keys and gates; pools are made of them whenever an index picks,
// which is once for the drafts of a round. So nothing has to be made again as positions come and go.

namespace {

// Pools of a stream's rows at most: its cells make up so many, and sequences that share cells may differ within a pool.
int64_t count_pools(int64_t n_kv, int64_t n_rows, int64_t n_pooled) {
    return GGML_PAD(n_kv / n_pooled + n_rows, 64);
}

// which cells make up the pools of the sequences of a pass
class head_index_input_pools : public llm_graph_input_i {
  public:
    head_index_input_pools(const llm_graph_context & graph, const llama_kv_cache_dsa_context * mctx, int64_t n_kv,
                           int64_t n_stream) :
        mctx(mctx), n_pooled(graph.hparams.indexer_kpool), n_stream(n_stream), n_rows(graph.n_tokens / n_stream),
        n_pools(count_pools(n_kv, n_rows, n_pooled)) {
        const auto new_input = [&](ggml_type type, std::array<int64_t, 4> shape, const char * name) {
            ggml_tensor * tensor = ggml_new_tensor(graph.ctx0, type, shape.size(), shape.data());
            ggml_set_input(tensor);
            ggml_set_name(tensor, name);
            return tensor;
        };
        cells   = new_input(GGML_TYPE_I32, { n_pooled, n_pools, n_stream, 1 }, "mtp_pool_cells");
        mask    = new_input(graph.cparams.fused_lid ? GGML_TYPE_F16 : GGML_TYPE_F32, { n_pools, n_rows, 1, n_stream },
                            "mtp_pool_mask");
        tail    = new_input(GGML_TYPE_F32, { n_pooled - 1, graph.n_tokens, 1, 1 }, "mtp_pool_tail");
        no_tail = new_input(GGML_TYPE_F32, { n_pooled - 1, graph.n_tokens, 1, 1 }, "mtp_pool_no_tail");
    }

    void set_input(const llama_ubatch * ubatch) override {
        if (!cells->buffer) {
            return; // the graph stores keys only
        }
        std::vector<int32_t> cell_data(ggml_nelements(cells));
        std::vector<float>   mask_data(ggml_nelements(mask), -INFINITY);
        std::vector<float>   tail_data(ggml_nelements(tail), 0.0f);
        std::vector<float>   no_tail_data(ggml_nelements(no_tail), 1.0f);

        for (int64_t s = 0; s < n_stream; ++s) {
            const auto pools = find_pools(*ubatch, s * n_rows, &cell_data[s * n_pools * n_pooled]);
            for (int64_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
                for (const auto & [end, pool] : pools.at(ubatch->seq_id[i][0])) {
                    mask_data[i * n_pools + pool] = end <= ubatch->pos[i] ? 0.0f : -INFINITY;
                }
                find_tail(ubatch->seq_id[i][0], ubatch->pos[i], &tail_data[i * (n_pooled - 1)],
                          &no_tail_data[i * (n_pooled - 1)]);
            }
        }
        send(cells, cell_data);
        send(tail, tail_data);
        send(no_tail, no_tail_data);
        if (mask->type == GGML_TYPE_F32) {
            send(mask, mask_data);
            return;
        }
        std::vector<ggml_fp16_t> halves(mask_data.size());
        ggml_fp32_to_fp16_row(mask_data.data(), halves.data(), mask_data.size());
        send(mask, halves);
    }

    bool can_reuse(const llm_graph_params & params) override {
        mctx = static_cast<const llama_kv_cache_dsa_context *>(params.mctx);
        return params.ubatch.n_tokens == n_rows * n_stream &&
               count_pools(mctx->get_lid()->get_n_kv(), n_rows, n_pooled) == n_pools;
    }

    ggml_tensor * cells;   // I32 [n_pooled, n_pools, n_stream]
    ggml_tensor * mask;    // F32 or F16 [n_pools, n_rows, 1, n_stream] pools that end before a row or with it
    ggml_tensor * tail;    // F32 [n_pooled - 1, n_tokens] cells of the latest positions, which fill no pool yet; else 0
    ggml_tensor * no_tail; // F32 [n_pooled - 1, n_tokens] 1 where the tail has no position, else 0

  private:
    const llama_kv_cache_dsa_context * mctx;

    const int64_t n_pooled; // positions of a pool
    const int64_t n_stream;
    const int64_t n_rows;   // of a stream
    const int64_t n_pools;  // of a stream

    // the last position of each, and its number
    using pool_list = std::vector<std::pair<llama_pos, int32_t>>;

    const llama_kv_cache & cache() const { return mctx->get_lid()->get_cache(); }

    const auto & positions_of(llama_seq_id seq) const { return cache().get_cells(seq).seq_pos_get(seq); }

    // Of the sequences of a stream's rows, as far as these are: pools that the cache has all positions of, and that the
    // head has seen. The others have a cell that holds numbers. into: [n_pools, n_pooled] cells
    std::map<llama_seq_id, pool_list> find_pools(const llama_ubatch & ubatch, int64_t first_row, int32_t * into) const {
        std::map<llama_seq_id, llama_pos> last_of;
        for (int64_t i = first_row; i < first_row + n_rows; ++i) {
            const auto [found, is_new] = last_of.try_emplace(ubatch.seq_id[i][0], ubatch.pos[i]);
            found->second              = std::max(found->second, ubatch.pos[i]);
        }
        const auto & [seq_0, pos_0] = *last_of.begin();
        std::fill_n(into, n_pools * n_pooled, (int32_t) positions_of(seq_0).lower_bound({ pos_0, 0 })->second);

        std::map<llama_seq_id, pool_list> res;
        std::map<uint32_t, int32_t>       pool_of; // by the last cell, which is that of one pool
        for (const auto & [seq, last] : last_of) {
            const mtp_seen * seen = cache().mtp.seen ? &(*cache().mtp.seen)[seq] : nullptr;
            auto &           list = res[seq];

            std::vector<uint32_t> members;
            llama_pos             next = 0;
            for (const auto & [pos, cell] : positions_of(seq)) {
                if (pos > last) {
                    break;
                }
                if (seen && seen->hides(pos)) {
                    continue;
                }
                if (pos != next) {
                    members.clear();
                }
                next = pos + 1;
                if (pos % n_pooled == (int64_t) members.size()) {
                    members.push_back(cell);
                }
                if ((int64_t) members.size() < n_pooled) {
                    continue;
                }
                const auto [found, is_new] = pool_of.try_emplace(cell, pool_of.size());
                GGML_ASSERT(found->second < n_pools);
                if (is_new) {
                    std::copy(members.begin(), members.end(), into + found->second * n_pooled);
                }
                list.push_back({ pos, found->second });
                members.clear();
            }
        }
        return res;
    }

    // cells, has_none: [n_pooled - 1]
    void find_tail(llama_seq_id seq, llama_pos pos, float * cells, float * has_none) const {
        const auto & positions = positions_of(seq);
        for (auto it = positions.lower_bound({ llama_pos((pos + 1) / n_pooled * n_pooled), 0 });
             it != positions.end() && it->first <= pos; ++it) {
            *cells++    = it->second;
            *has_none++ = 0.0f;
        }
    }

    template <typename T> static void send(ggml_tensor * tensor, const std::vector<T> & data) {
        ggml_backend_tensor_set(tensor, data.data(), 0, data.size() * sizeof(T));
    }
};

class head_index_with_pools : public head_index {
  public:
    using head_index::head_index;

    void store_keys() const override {
        ggml_tensor * gate = ggml_mul_mat(ctx0, layer.indexer_kpool_gate, rows.input);
        graph.cb(gate, "mtp_indexer_gate", il);

        ggml_tensor * both =
            ggml_reshape_3d(ctx0, ggml_concat(ctx0, build_key(), gate, 0), 2 * n_key, 1, graph.n_tokens);
        ggml_build_forward_expand(graph.gf, inp->mctx->get_lid()->cpy_k(ctx0, both, inp->get_k_idxs_lid(), il));
    }

    ggml_tensor * build_picked() const override {
        ggml_tensor * stored   = inp->mctx->get_lid()->get_k(ctx0, il);
        const int64_t n_kv     = stored->ne[2];
        const int64_t n_stream = stored->ne[3];
        const int64_t n_pooled = graph.hparams.indexer_kpool;
        const int64_t n_taken  = graph.hparams.indexer_top_k / n_pooled;

        const auto & pools = *static_cast<head_index_input_pools *>(
            graph.res->add_input(std::make_unique<head_index_input_pools>(graph, inp->mctx, n_kv, n_stream)));

        ggml_tensor * scores = build_scores(build_queries(), build_pooled(stored, pools.cells), pools.mask);
        ggml_tensor * taken  = ggml_cont(ctx0, ggml_top_k(ctx0, scores, n_taken));

        ggml_tensor * cells =
            ggml_get_rows(ctx0, pools.cells, ggml_reshape_2d(ctx0, taken, ggml_nelements(taken) / n_stream, n_stream));
        cells = ggml_reshape_2d(ctx0, cells, n_taken * n_pooled, graph.n_tokens);
        cells = ggml_cast(ctx0, cells, GGML_TYPE_F32);

        // where the tail has no position, one that has been picked comes again
        ggml_tensor * again = ggml_view_2d(ctx0, cells, 1, graph.n_tokens, cells->nb[1], 0);
        ggml_tensor * tail  = ggml_add(ctx0, pools.tail, ggml_mul(ctx0, pools.no_tail, again));

        cells = ggml_cast(ctx0, ggml_concat(ctx0, cells, tail, 0), GGML_TYPE_I32);
        return ggml_reshape_4d(ctx0, cells, cells->ne[0], graph.n_tokens / n_stream, 1, n_stream);
    }

  private:
    // stored: [2 n_key, 1, n_kv, n_stream] key and gate of each cell; cells: I32 [n_pooled, n_pools, n_stream]
    // returns [n_key, 1, n_pools, n_stream]
    ggml_tensor * build_pooled(ggml_tensor * stored, ggml_tensor * cells) const {
        const int64_t n_pooled = cells->ne[0];
        const int64_t n_pools  = cells->ne[1];
        const int64_t n_stream = cells->ne[2];

        ggml_tensor * by_cell =
            ggml_view_3d(ctx0, stored, 2 * n_key, stored->ne[2], n_stream, stored->nb[2], stored->nb[3], 0);
        ggml_tensor * both = ggml_get_rows(ctx0, by_cell, ggml_reshape_2d(ctx0, cells, n_pooled * n_pools, n_stream));
        both               = ggml_reshape_3d(ctx0, both, 2 * n_key, n_pooled, n_pools * n_stream);

        const auto part = [&](int64_t i) {
            return ggml_view_3d(ctx0, both, n_key, n_pooled, both->ne[2], both->nb[1], both->nb[2],
                                i * n_key * both->nb[0]);
        };
        const auto by_number = [&](ggml_tensor * cur) { // of keys: {n_pooled, n_key * n_pools * n_stream}
            cur = ggml_cont(ctx0, ggml_permute(ctx0, cur, 1, 0, 2, 3));
            return ggml_reshape_2d(ctx0, cur, n_pooled, n_key * n_pools * n_stream);
        };
        // each number of a key has a gate of its own
        ggml_tensor * gates  = ggml_soft_max(ctx0, by_number(ggml_add(ctx0, part(1), layer.indexer_kpool_ape)));
        ggml_tensor * pooled = ggml_sum_rows(ctx0, ggml_mul(ctx0, gates, by_number(part(0))));
        graph.cb(pooled, "mtp_indexer_pooled", il);
        return ggml_reshape_4d(ctx0, pooled, n_key, 1, n_pools, n_stream);
    }
};

} // namespace

std::unique_ptr<head_index> head_index_of_pools(const llm_graph_context & graph, llm_graph_input_attn_k_dsa * inp,
                                                const llama_layer & layer, const head_index_rows & rows, int il) {
    return std::make_unique<head_index_with_pools>(graph, inp, layer, rows, il);
}
