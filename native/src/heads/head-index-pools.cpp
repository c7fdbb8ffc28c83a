#include "head-index-kind.h"
#include "index-pools.h"
#include "llama-kv-cache-dsa.h"

// An index that scores pools of consecutive positions, of as many as the model says. A pool's key is a mean of those of
// its positions, weighted by their gates. The cache has keys and gates; pools are made of them whenever an index picks,
// which is once for the drafts of a round. So nothing has to be made again as positions come and go.

namespace {

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
        const int64_t n_pooled = graph.hparams.indexer_kpool;

        const auto & pools = *static_cast<index_pools *>(graph.res->add_input(
            std::make_unique<index_pools>(graph, inp->mctx->get_lid(), n_pooled, stored->ne[3],
                                          graph.cparams.fused_lid ? GGML_TYPE_F16 : GGML_TYPE_F32)));

        ggml_tensor * pooled = build_pooled(stored, pools.cells, n_pooled);
        return pools.build_picked(ctx0, build_scores(build_queries(), pooled, pools.mask),
                                  graph.hparams.indexer_top_k / n_pooled);
    }

  private:
    // stored: [2 n_key, 1, n_kv, n_stream] key and gate of each cell; cells: I32 [n_pooled * n_pools, n_stream]
    // returns [n_key, 1, n_pools, n_stream]
    ggml_tensor * build_pooled(ggml_tensor * stored, ggml_tensor * cells, int64_t n_pooled) const {
        const int64_t n_pools  = cells->ne[0] / n_pooled;
        const int64_t n_stream = cells->ne[1];

        ggml_tensor * by_cell =
            ggml_view_3d(ctx0, stored, 2 * n_key, stored->ne[2], n_stream, stored->nb[2], stored->nb[3], 0);
        ggml_tensor * both = ggml_get_rows(ctx0, by_cell, cells);
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
