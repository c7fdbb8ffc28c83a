#include "head-graph.h"
#include "head-index.h"
#include "index-pools.h"
#include "llama-memory-hybrid-idx.h"
#include "models/models.h"

#include <algorithm>
#include <cmath>

// Qwen3.8-Flash-Next. A layer like those of its trunk that attend: four streams of hidden states, and an index that
// picks blocks of positions. A mixer of its own makes one stream of the four, for the logits alone. llama.cpp's graph of
// it differs in two: it norms each stream by itself, where the published head norms a row of all streams at once; and it
// keeps the keys of blocks, which cells that heads give back would make wrong. Here blocks are made whenever rows pick.
class head_graph_of_qwen4exp : public llama_model_qwen4exp::graph {
  public:
    head_graph_of_qwen4exp(const llama_model & model, const llm_graph_params & params) :
        graph(model, params, no_build{}), il(hparams.n_layer() + cparams.nextn_layer_offset), layer(model.layers[il]) {
        std::copy(std::begin(hparams.rope_sections), std::begin(hparams.rope_sections) + 4, sections);

        // K and V by position, and the keys of the index
        const auto * memory = dynamic_cast<const llama_memory_hybrid_idx_context *>(mctx);

        ggml_tensor * streams     = build_joined();
        ggml_tensor * inp_pos     = build_inp_pos();
        inp_attn                  = build_attn_inp_kv();
        ggml_tensor * inp_out_ids = build_inp_out_ids();
        ggml_tensor * inject      = nullptr;

        ggml_tensor * cur = build_hc_mix(streams, layer.hc_attn_norm, layer.hc_attn_down, layer.hc_attn_up,
                                         layer.hc_attn_inject, &inject, il);
        cur               = build_layer_attn(inp_attn, memory, nullptr, cur, inp_pos, sections, il);
        streams           = build_hc_combine(streams, cur, inject, il);

        cur = build_hc_mix(streams, layer.hc_ffn_norm, layer.hc_ffn_down, layer.hc_ffn_up, layer.hc_ffn_inject, &inject,
                           il);
        streams = build_hc_combine(streams, build_layer_ffn(cur, il), inject, il);
        cb(streams, "h_nextn", -1);
        res->t_h_nextn = streams;

        cur = ggml_get_rows(ctx0, ggml_reshape_2d(ctx0, streams, n_embd * n_streams(), n_tokens), inp_out_ids);
        cur = ggml_reshape_3d(ctx0, cur, n_embd, n_streams(), n_outputs);
        cur = build_hc_mix(cur, layer.nextn.hc_head_norm, layer.nextn.hc_head_down, layer.nextn.hc_head_up, nullptr,
                           nullptr, -1);
        cur = build_lora_mm(model.output, cur, model.output_s);
        cb(cur, "result_output", -1);
        res->t_logits = cur;

        ggml_build_forward_expand(gf, cur);
    }

  protected:
    // Stores the keys of the index. The mask of what it picks: as kq_mask.
    ggml_tensor * build_qsa_sel(const llama_memory_hybrid_idx_context * mctx_hyb,
                                llama_model_qwen4exp::llm_graph_input_kpool *, ggml_tensor * cur, ggml_tensor * inp_pos,
                                ggml_tensor * kq_mask, int *, int) override {
        const auto * keys = mctx_hyb ? mctx_hyb->get_idx() : nullptr;
        if (!keys) {
            return nullptr;
        }
        const int64_t n_key  = hparams.indexer_head_size;
        const int64_t n_head = hparams.indexer_n_head;

        const auto & pools =
            *static_cast<index_pools *>(res->add_input(std::make_unique<index_pools>(*this, keys, kq_mask->ne[3])));

        ggml_tensor * pooled = build_pooled(build_stored(keys, cur), pools);

        ggml_tensor * q = ggml_reshape_3d(ctx0, build_lora_mm(layer.index_q_proj, cur), n_key, n_head, n_tokens);
        q               = build_rotated(build_norm(q, layer.index_q_norm, nullptr, LLM_NORM_RMS, il), inp_pos);
        cb(q, "mtp_indexer_q", il);

        // all heads count alike
        ggml_tensor * weights =
            ggml_fill(ctx0, ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, n_head, n_tokens), 1.0f / sqrtf(float(n_key)));
        ggml_tensor * scores = head_index_scores(*this, q, pooled, weights, pools.mask, il);

        ggml_tensor * picked = pools.build_picked(ctx0, scores);
        ggml_tensor * hidden = ggml_fill(ctx0, ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, 1, n_tokens), -INFINITY);
        return head_index_mask(ctx0, hidden, picked, kq_mask);
    }

  private:
    const int           il; // of the head's block
    const llama_layer & layer;
    int                 sections[4];

    llm_graph_input_attn_kv * inp_attn = nullptr;

    int64_t n_streams() const { return hparams.dsv4_hc_mult; }

    // [n_embd, n_streams, n_tokens] of each stream what eh_proj makes of it and the token
    ggml_tensor * build_joined() {
        const auto rows = head_rows_build(*this, model, layer, il);

        ggml_tensor * h_norm = build_norm(rows.hidden, nullptr, nullptr, LLM_NORM_RMS, il);
        h_norm               = ggml_reshape_3d(ctx0, h_norm, n_embd, n_streams(), n_tokens);
        h_norm               = ggml_mul(ctx0, h_norm, layer.nextn.hnorm);
        cb(h_norm, "mtp_hnorm", il);

        ggml_tensor * e_norm = build_norm(rows.embd, layer.nextn.enorm, nullptr, LLM_NORM_RMS, il);
        cb(e_norm, "mtp_enorm", il);
        e_norm =
            ggml_repeat_4d(ctx0, ggml_reshape_3d(ctx0, e_norm, n_embd, 1, n_tokens), n_embd, n_streams(), n_tokens, 1);

        ggml_tensor * cur =
            build_lora_mm(layer.nextn.eh_proj, ggml_concat(ctx0, e_norm, h_norm, 0), layer.nextn.eh_proj_s);
        cb(cur, "mtp_eh_proj", il);
        return cur;
    }

    // Stores the keys of the rows, without norm and rotation, in the cells that K is in: in the first half of each, as the
    // other is for the keys of blocks. Returns [n_key, n_kv, n_stream].
    ggml_tensor * build_stored(const llama_kv_cache_context * keys, ggml_tensor * cur) {
        const int64_t n_key = hparams.indexer_head_size;

        ggml_tensor * key = build_lora_mm(layer.index_k_proj, cur);
        cb(key, "mtp_indexer_k", il);
        ggml_tensor * cells = keys->get_k(ctx0, il);
        key                 = ggml_pad(ctx0, key, cells->ne[0] - n_key, 0, 0, 0);
        ggml_build_forward_expand(
            gf, keys->cpy_k(ctx0, ggml_reshape_3d(ctx0, key, key->ne[0], 1, n_tokens), inp_attn->get_k_idxs(), il));
        return ggml_view_3d(ctx0, cells, n_key, cells->ne[2], cells->ne[3], cells->nb[2], cells->nb[3], 0);
    }

    // The mean of each pool's keys, with norm, and rotated as its first position: [n_key, 1, n_pools, n_stream].
    ggml_tensor * build_pooled(ggml_tensor * stored, const index_pools & pools) {
        const int64_t n_key    = stored->ne[0];
        const int64_t n_pooled = hparams.indexer_kpool;
        const int64_t n        = pools.mask->ne[0] * stored->ne[2]; // of all streams

        ggml_tensor * members = ggml_get_rows(ctx0, stored, pools.cells);
        members               = ggml_reshape_3d(ctx0, members, n_key, n_pooled, n);
        members               = ggml_cont(ctx0, ggml_permute(ctx0, members, 1, 0, 2, 3));

        ggml_tensor * pooled = ggml_scale(ctx0, ggml_sum_rows(ctx0, members), 1.0f / n_pooled);
        pooled               = ggml_reshape_3d(ctx0, pooled, n_key, 1, n);
        pooled = build_rotated(build_norm(pooled, layer.index_k_norm, nullptr, LLM_NORM_RMS, il), pools.pos);
        cb(pooled, "mtp_indexer_pooled", il);
        return ggml_reshape_4d(ctx0, pooled, n_key, 1, pools.mask->ne[0], stored->ne[2]);
    }

    ggml_tensor * build_rotated(ggml_tensor * cur, ggml_tensor * pos) {
        return ggml_rope_multi(ctx0, cur, pos, nullptr, n_rot, sections, rope_type, n_ctx_orig, freq_base, freq_scale,
                               ext_factor, attn_factor, beta_fast, beta_slow);
    }
};

std::unique_ptr<llm_graph_context> head_graph_qwen4exp(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_qwen4exp>(model, params);
}
