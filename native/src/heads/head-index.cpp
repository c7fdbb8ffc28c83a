#include "head-index.h"

#include "head-part.h"
#include "index-pools.h"
#include "llama-kv-cache-dsa.h"

#include <cmath>

static bool has_index(const llama_layer & layer) {
    return layer.indexer_k_norm && layer.indexer_k_norm_b && layer.indexer_proj && layer.indexer_attn_k &&
           layer.indexer_attn_q_b;
}

bool head_has_index(const llama_model & model) {
    return model.hparams.n_layer_nextn > 0 && has_index(model.layers[model.hparams.n_layer()]);
}

bool head_index_is_shared(const llama_model & model) {
    if (model.arch == LLM_ARCH_GLM5_NEXT) {
        return head_has_index(model);
    }
    for (uint32_t il = 0; il < model.hparams.n_layer(); ++il) {
        if (!model.hparams.is_indexer_full(il)) {
            return model.arch == LLM_ARCH_GLM_DSA && head_has_index(model);
        }
    }
    return false;
}

uint32_t head_index_n_picked(const llama_hparams & hparams) {
    // pools, and the positions that fill none yet
    return hparams.indexer_top_k + (hparams.indexer_kpool > 0 ? hparams.indexer_kpool - 1 : 0);
}

ggml_tensor * head_index_scores(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k,
                                ggml_tensor * weights, ggml_tensor * mask, int il) {
    ggml_context * ctx0     = graph.ctx0;
    const int64_t  n_head   = q->ne[1];
    const int64_t  n_stream = k->ne[3];
    const int64_t  n_rows   = graph.n_tokens / n_stream;

    q       = ggml_reshape_4d(ctx0, q, q->ne[0], n_head, n_rows, n_stream);
    weights = ggml_reshape_4d(ctx0, weights, n_head, n_rows, 1, n_stream);

    if (graph.cparams.fused_lid) {
        ggml_tensor * scores = ggml_lightning_indexer(ctx0, q, k, weights, mask);
        graph.cb(scores, "mtp_indexer_score", il);
        graph.res->add_fused_node({ LLM_FUSED_OP_LIGHTNING_INDEXER, scores, il });
        return scores;
    }
    // where no device has all of it in one operation
    ggml_tensor * kq = ggml_mul_mat(ctx0, ggml_permute(ctx0, k, 0, 2, 1, 3), ggml_permute(ctx0, q, 0, 2, 1, 3));

    ggml_tensor * scores = ggml_relu(ctx0, ggml_cont(ctx0, ggml_permute(ctx0, kq, 2, 1, 0, 3)));
    scores               = ggml_sum_rows(ctx0, ggml_mul(ctx0, scores, weights));
    scores               = ggml_cont(ctx0, ggml_permute(ctx0, scores, 2, 1, 0, 3));
    scores               = ggml_add(ctx0, scores, mask);
    graph.cb(scores, "mtp_indexer_score", il);
    return scores;
}

ggml_tensor * head_index_mask(ggml_context * ctx0, ggml_tensor * hidden, ggml_tensor * picked, ggml_tensor * mask) {
    const int64_t n_kv     = mask->ne[0];
    const int64_t n_rows   = mask->ne[1];
    const int64_t n_stream = mask->ne[3];
    const int64_t n        = picked->ne[0];

    hidden = ggml_reshape_4d(ctx0, hidden, 1, n_rows, 1, n_stream);
    hidden = ggml_cast(ctx0, ggml_repeat_4d(ctx0, hidden, n_kv, n_rows, 1, n_stream), mask->type);
    hidden = ggml_reshape_4d(ctx0, hidden, 1, n_kv, n_rows, n_stream);

    ggml_tensor * zeros = ggml_fill(ctx0, ggml_new_tensor_4d(ctx0, GGML_TYPE_F32, 1, n, n_rows, n_stream), 0.0f);
    hidden              = ggml_set_rows(ctx0, hidden, zeros, ggml_reshape_3d(ctx0, picked, n, n_rows, n_stream));
    return ggml_add(ctx0, ggml_reshape_4d(ctx0, hidden, n_kv, n_rows, 1, n_stream), mask);
}

namespace {

// The index of a head. One without pools keeps the key of each position. With pools of consecutive positions, of as many
// as the model says, a pool's key is a mean of those of its positions, weighted by their gates: the cache has keys and
// gates, and pools are made of them whenever the index picks, which is once for the drafts of a round. So nothing has to
// be made again as positions come and go.
class head_index {
  public:
    head_index(const llm_graph_context & graph, llm_graph_input_attn_k_dsa * inp, const llama_layer & layer,
               const head_index_rows & rows, llama_rope_type rope_type, int il) :
        graph(graph), ctx0(graph.ctx0), inp(inp), layer(layer), rows(rows), rope_type(rope_type), il(il),
        n_head(graph.hparams.indexer_n_head), n_key(graph.hparams.indexer_head_size),
        n_pooled(graph.hparams.indexer_kpool) {}

    void store_keys() const {
        ggml_tensor * k = ggml_mul_mat(ctx0, layer.indexer_attn_k, rows.input);
        k               = graph.build_norm(k, layer.indexer_k_norm, layer.indexer_k_norm_b, LLM_NORM, il);
        graph.cb(k, "mtp_indexer_k", il);
        if (n_pooled > 0) {
            ggml_tensor * gate = ggml_mul_mat(ctx0, layer.indexer_kpool_gate, rows.input);
            graph.cb(gate, "mtp_indexer_gate", il);
            k = ggml_concat(ctx0, k, gate, 0);
        }
        k = ggml_reshape_3d(ctx0, k, k->ne[0], 1, graph.n_tokens);
        k = n_pooled > 0 ? k : build_rotated(k);
        ggml_build_forward_expand(graph.gf, inp->mctx->get_lid()->cpy_k(ctx0, k, inp->get_k_idxs_lid(), il));
    }

    // The positions' cells: I32 [n_picked, n_tokens of a stream, 1, n_stream]
    ggml_tensor * build_picked() const {
        const auto *  keys   = inp->mctx->get_lid();
        ggml_tensor * stored = keys->get_k(ctx0, il);
        if (n_pooled == 0) {
            ggml_tensor * scores = build_scores(build_rotated(build_queries()), stored, inp->get_kq_mask_lid());
            return ggml_cont(ctx0, ggml_top_k(ctx0, scores, graph.hparams.indexer_top_k));
        }
        const auto & pools = *static_cast<index_pools *>(
            graph.res->add_input(std::make_unique<index_pools>(graph, keys, stored->ne[3])));

        ggml_tensor * scores = build_scores(build_queries(), build_pooled(stored, pools.cells), pools.mask);
        return pools.build_picked(ctx0, scores);
    }

  private:
    const llm_graph_context &    graph;
    ggml_context *               ctx0;
    llm_graph_input_attn_k_dsa * inp;
    const llama_layer &          layer;
    const head_index_rows &      rows;
    const llama_rope_type        rope_type;
    const int                    il;
    const int64_t                n_head;
    const int64_t                n_key;
    const int64_t                n_pooled; // 0: no pools

    // [n_key, n_head, n_tokens]
    ggml_tensor * build_queries() const {
        ggml_tensor * q = ggml_mul_mat(ctx0, layer.indexer_attn_q_b, rows.queries);
        graph.cb(q, "mtp_indexer_q", il);
        return ggml_reshape_3d(ctx0, q, n_key, n_head, graph.n_tokens);
    }

    // by positions, then by a Hadamard matrix, which makes values of like size of them, for a cache of few bits
    ggml_tensor * build_rotated(ggml_tensor * cur) const {
        cur = ggml_rope_ext(ctx0, cur, rows.pos, nullptr, graph.n_rot, rope_type, graph.n_ctx_orig, graph.freq_base,
                            graph.freq_scale, graph.ext_factor, graph.attn_factor, graph.beta_fast, graph.beta_slow);
        return ggml_mul_mat(ctx0, inp->self_k_rot_lid, cur);
    }

    ggml_tensor * build_scores(ggml_tensor * q, ggml_tensor * k, ggml_tensor * mask) const {
        // scaled before they meet the scores, of which there are many more
        ggml_tensor * weights = ggml_mul_mat(ctx0, layer.indexer_proj, rows.input);
        weights               = ggml_scale(ctx0, weights, 1.0f / sqrtf(float(n_key * n_head)));
        graph.cb(weights, "mtp_indexer_weights", il);
        return head_index_scores(graph, q, k, weights, mask, il);
    }

    // stored: [2 n_key, 1, n_kv, n_stream] key and gate of each cell; cells: I32 [n_pooled * n_pools, n_stream]
    // returns [n_key, 1, n_pools, n_stream]
    ggml_tensor * build_pooled(ggml_tensor * stored, ggml_tensor * cells) const {
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

ggml_tensor * head_index_attention(const llm_graph_context & graph, const llama_layer & layer,
                                   const head_index_rows & rows, llama_rope_type rope_type, ggml_tensor * q,
                                   ggml_tensor * k, ggml_tensor * v, float kq_scale, int il) {
    if (!has_index(layer)) {
        return graph.build_attn(graph.build_attn_inp_k(), layer.wo, nullptr, layer.wo_s, q, k, v, nullptr, nullptr,
                                layer.wv_b, kq_scale, il);
    }
    auto * const     inp = graph.build_attn_inp_k_dsa();
    const head_index index(graph, inp, layer, rows, rope_type, il);
    index.store_keys();

    const int64_t n_kv     = inp->mctx->get_mla()->get_n_kv();
    const int64_t n_picked = head_index_n_picked(graph.hparams);
    head_picked * picked   = graph.res->part ? graph.res->part->picked : nullptr;
    const bool    is_later = picked && picked->sees_all; // of a round's drafts

    if (n_kv > n_picked && !is_later) {
        ggml_tensor * top_k = index.build_picked();
        if (picked) {
            picked->made = ggml_reshape_2d(graph.ctx0, top_k, n_picked, graph.n_tokens);
        }
        return graph.build_attn(inp, layer.wo, nullptr, layer.wo_s, q, k, v, nullptr, nullptr, layer.wv_b, top_k,
                                kq_scale, il);
    }
    llm_graph_input_attn_k seen(graph.hparams, graph.cparams, inp->mctx->get_mla());
    seen.self_k_idxs      = inp->get_k_idxs_mla();
    seen.self_kq_mask_cnv = inp->get_kq_mask_mla();
    if (n_kv > n_picked && picked->taken) {
        picked->made          = picked->taken;
        seen.self_kq_mask_cnv = head_index_mask(graph.ctx0, picked->sees_all, picked->taken, seen.self_kq_mask_cnv);
    }
    return graph.build_attn(&seen, layer.wo, nullptr, layer.wo_s, q, k, v, nullptr, nullptr, layer.wv_b, kq_scale, il);
}
