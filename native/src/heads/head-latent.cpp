#include "head-graph.h"
#include "head-index.h"

#include <cmath>

// Latent attention as in the trunk's layers of that kind: keys and values are absorbed into queries and outputs, so that
// the cache has one vector a position, of which the last n_rot numbers are rotated.
class head_graph_of_latent : public head_graph {
  protected:
    using head_graph::head_graph;

    ggml_tensor * low_rank; // of the queries
    ggml_tensor * Qcur;
    ggml_tensor * Kcur;
    ggml_tensor * latent; // the values, which the keys begin with

    void build_qkv_latent(int64_t n_head_l, int64_t n_key, int64_t n_rank) {
        low_rank = build_norm(build_lora_mm(layer.wq_a, attn_input), layer.attn_q_a_norm, nullptr, LLM_NORM_RMS, il);

        ggml_tensor * q      = build_lora_mm(layer.wq_b, low_rank);
        ggml_tensor * kv     = build_lora_mm(layer.wkv_a_mqa, attn_input);
        const int64_t n_nope = n_key - n_rot;
        const size_t  row    = ggml_row_size(q->type, n_key);
        const size_t  kv_row = ggml_row_size(kv->type, n_rank + n_rot);
        cb(q, "mtp_q", il);

        Qcur   = ggml_view_3d(ctx0, q, n_nope, n_head_l, n_tokens, row, row * n_head_l, 0);
        Qcur   = ggml_mul_mat(ctx0, layer.wk_b, ggml_permute(ctx0, Qcur, 0, 2, 1, 3)); // {n_rank, n_tokens, n_head}
        Qcur   = ggml_permute(ctx0, Qcur, 0, 2, 1, 3);
        latent = ggml_view_2d(ctx0, kv, n_rank, n_tokens, kv_row, 0);
        latent = build_norm(latent, layer.attn_kv_a_norm, nullptr, LLM_NORM_RMS, il);
        latent = ggml_reshape_3d(ctx0, latent, n_rank, 1, n_tokens);
        Kcur   = latent;
        if (n_rot == 0) {
            return;
        }
        ggml_tensor * inp_pos = build_inp_pos();
        ggml_tensor * q_pe =
            ggml_view_3d(ctx0, q, n_rot, n_head_l, n_tokens, row, row * n_head_l, ggml_row_size(q->type, n_nope));
        ggml_tensor * k_pe =
            ggml_view_3d(ctx0, kv, n_rot, 1, n_tokens, kv_row, kv_row, ggml_row_size(kv->type, n_rank));
        k_pe = build_norm(k_pe, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);
        for (auto ** part : { &q_pe, &k_pe }) {
            *part = ggml_rope_ext(ctx0, *part, inp_pos, nullptr, n_rot, rope_type, n_ctx_orig,
                                  model.get_rope_freq_base(cparams, il), freq_scale, ext_factor, attn_factor, beta_fast,
                                  beta_slow);
        }
        Qcur = ggml_concat(ctx0, Qcur, q_pe, 0);
        Kcur = ggml_concat(ctx0, latent, k_pe, 0);
    }
};

// dots3. A sliding window, a gate for each head of attention, and a dense block.
class head_graph_of_dots3note : public head_graph_of_latent {
  public:
    head_graph_of_dots3note(const llama_model & model, const llm_graph_params & params) :
        head_graph_of_latent(model, params) {
        const int64_t n_head_l = hparams.n_head(il);
        const int64_t n_key    = hparams.n_embd_head_k_mla_swa;
        const int64_t n_value  = hparams.n_embd_head_v_mla_swa;
        build_qkv_latent(n_head_l, n_key, hparams.n_lora_kv_swa);

        ggml_tensor * cur = build_attn(build_attn_inp_k_iswa(), nullptr, nullptr, nullptr, Qcur, Kcur, latent, nullptr,
                                       nullptr, layer.wv_b, 1.0f / sqrtf(float(n_key)), il);
        cb(cur, "mtp_attn_out", il);

        ggml_tensor * gate = ggml_sigmoid(ctx0, build_lora_mm(layer.wqkv_gate, attn_input));

        cur = ggml_mul(ctx0, ggml_reshape_3d(ctx0, cur, n_value, n_head_l, n_tokens),
                       ggml_reshape_3d(ctx0, gate, 1, n_head_l, n_tokens));
        cur = build_lora_mm(layer.wo, ggml_reshape_2d(ctx0, cur, n_value * n_head_l, n_tokens), layer.wo_s);
        build_rest(cur, layer.nextn.shared_head_norm);
    }
};

// GLM-5.3-Flash. No rotation, what an index of pooled keys picks, and experts; hidden states have one stream, where the
// trunk's have several.
class head_graph_of_glm5_next : public head_graph_of_latent {
  public:
    head_graph_of_glm5_next(const llama_model & model, const llm_graph_params & params) :
        head_graph_of_latent(model, params) {
        GGML_ASSERT(n_rot == 0);
        const int64_t n_key = hparams.n_embd_head_k_mla();
        build_qkv_latent(n_head, n_key, hparams.n_lora_kv);

        const head_index_rows rows = { attn_input, low_rank, nullptr };

        ggml_tensor * cur = head_index_attention(*this, layer, rows, LLAMA_ROPE_TYPE_NONE, Qcur, Kcur, latent,
                                                 1.0f / sqrtf(float(n_key)), il);
        cb(cur, "mtp_attn_out", il);
        build_rest(cur, layer.nextn.shared_head_norm);
    }
};

std::unique_ptr<llm_graph_context> head_graph_latent(const llama_model & model, const llm_graph_params & params) {
    if (model.arch == LLM_ARCH_DOTS3NOTE) {
        return std::make_unique<head_graph_of_dots3note>(model, params);
    }
    return std::make_unique<head_graph_of_glm5_next>(model, params);
}
