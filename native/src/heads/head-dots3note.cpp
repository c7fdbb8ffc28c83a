#include "head-graph.h"

#include <cmath>

// dots3. Gated latent attention with a sliding window, as in the trunk's layers of that kind; a dense block.
class head_graph_of_dots3note : public head_graph {
  public:
    head_graph_of_dots3note(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        build_rest(build_attention(), layer.nextn.shared_head_norm);
    }

  private:
    // keys and values are absorbed into queries and outputs: the cache has one vector a position, its last part rotated
    ggml_tensor * build_attention() {
        const int64_t n_head_l = hparams.n_head(il);
        const int64_t n_rank   = hparams.n_lora_kv_swa;
        const int64_t n_key    = hparams.n_embd_head_k_mla_swa;
        const int64_t n_value  = hparams.n_embd_head_v_mla_swa;
        const int64_t n_nope   = n_key - n_rot;
        ggml_tensor * inp_pos  = build_inp_pos();

        ggml_tensor * q =
            build_norm(build_lora_mm(layer.wq_a, attn_input), layer.attn_q_a_norm, nullptr, LLM_NORM_RMS, il);
        q = build_lora_mm(layer.wq_b, q);
        cb(q, "mtp_q", il);

        const size_t  row    = ggml_row_size(q->type, n_key);
        ggml_tensor * q_nope = ggml_view_3d(ctx0, q, n_nope, n_head_l, n_tokens, row, row * n_head_l, 0);
        ggml_tensor * q_pe =
            ggml_view_3d(ctx0, q, n_rot, n_head_l, n_tokens, row, row * n_head_l, ggml_row_size(q->type, n_nope));

        ggml_tensor * kv     = build_lora_mm(layer.wkv_a_mqa, attn_input);
        const size_t  kv_row = ggml_row_size(kv->type, n_rank + n_rot);
        ggml_tensor * latent = ggml_view_2d(ctx0, kv, n_rank, n_tokens, kv_row, 0);
        ggml_tensor * k_pe =
            ggml_view_3d(ctx0, kv, n_rot, 1, n_tokens, kv_row, kv_row, ggml_row_size(kv->type, n_rank));

        latent = build_norm(latent, layer.attn_kv_a_norm, nullptr, LLM_NORM_RMS, il);
        k_pe   = build_norm(k_pe, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);

        for (auto ** part : { &q_pe, &k_pe }) {
            *part = ggml_rope_ext(ctx0, *part, inp_pos, nullptr, n_rot, rope_type, n_ctx_orig,
                                  model.get_rope_freq_base(cparams, il), freq_scale, ext_factor, attn_factor, beta_fast,
                                  beta_slow);
        }

        q_nope = ggml_mul_mat(ctx0, layer.wk_b, ggml_permute(ctx0, q_nope, 0, 2, 1, 3)); // {n_rank, n_tokens, n_head}
        q_nope = ggml_permute(ctx0, q_nope, 0, 2, 1, 3);
        latent = ggml_reshape_3d(ctx0, latent, n_rank, 1, n_tokens);

        ggml_tensor * Qcur = ggml_concat(ctx0, q_nope, q_pe, 0);
        ggml_tensor * Kcur = ggml_concat(ctx0, latent, k_pe, 0);

        ggml_tensor * cur = build_attn(build_attn_inp_k_iswa(), nullptr, nullptr, nullptr, Qcur, Kcur, latent, nullptr,
                                       nullptr, layer.wv_b, 1.0f / sqrtf(float(n_key)), il);
        cb(cur, "mtp_attn_out", il);

        ggml_tensor * gate = ggml_sigmoid(ctx0, build_lora_mm(layer.wqkv_gate, attn_input)); // one a head

        cur = ggml_mul(ctx0, ggml_reshape_3d(ctx0, cur, n_value, n_head_l, n_tokens),
                       ggml_reshape_3d(ctx0, gate, 1, n_head_l, n_tokens));
        return build_lora_mm(layer.wo, ggml_reshape_2d(ctx0, cur, n_value * n_head_l, n_tokens), layer.wo_s);
    }
};

std::unique_ptr<llm_graph_context> head_graph_dots3note(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_dots3note>(model, params);
}
