#include "head-graph.h"

#include <cmath>

// The block that most families have, with the norms that the file has: Ling 2.0, Ring 2.0, ERNIE 4.5, EXAONE-4.5,
// K-EXAONE and GLM-OCR; it is also pymtp's own form, for any trunk. In a model with a sliding window, layers with it
// rotate, and those without do not.
class head_graph_of_block : public head_graph {
  public:
    head_graph_of_block(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        const bool has_windows = hparams.swa_type != LLAMA_SWA_TYPE_NONE;

        auto [Qcur, Kcur, Vcur] = hparams.is_mla() ? build_latent() :
                                                     build_qkv(layer, attn_input, hparams.n_embd_head_k(il),
                                                               hparams.n_head(il), hparams.n_head_kv(il), il);
        const bool rotates =
            hparams.mtp_generic ? rope_type != LLAMA_ROPE_TYPE_NONE : !has_windows || hparams.is_swa(il);

        if (layer.attn_q_norm) {
            Qcur = build_norm(Qcur, layer.attn_q_norm, nullptr, LLM_NORM_RMS, il);
            Kcur = build_norm(Kcur, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);
        }
        if (rotates) { // else nothing reads positions, and an input that is not read has no buffer
            ggml_tensor * inp_pos = build_inp_pos();
            // the layers share one tensor of factors; llama.cpp gives it to those of the trunk
            ggml_tensor * factors = model.get_rope_factors(cparams, 0);

            Qcur = head_rope(ctx0, hparams, cparams, il, Qcur, inp_pos, factors);
            Kcur = head_rope(ctx0, hparams, cparams, il, Kcur, inp_pos, factors);
        }

        const auto attend = [&, Q = Qcur, K = Kcur, V = Vcur](auto * inp) {
            return build_attn(inp, layer.wo, layer.wo_b, layer.wo_s, Q, K, V, nullptr, nullptr, nullptr,
                              1.0f / sqrtf(float(hparams.n_embd_head_k(il))), il);
        };
        ggml_tensor * cur = hparams.is_mla() ? attend(build_attn_inp_k()) :
                            has_windows      ? attend(build_attn_inp_kv_iswa()) :
                                               attend(build_attn_inp_kv());

        build_rest(cur, layer.nextn.shared_head_norm ? layer.nextn.shared_head_norm : layer.layer_out_norm);
    }

  private:
    // Keys as the trunk's cache has them, compressed, of which values are the first part: for as many queries as there are.
    llm_graph_qkv build_latent() const {
        const int64_t n_head_k = hparams.n_embd_head_k(il);
        ggml_tensor * q        = build_lora_mm(layer.wq, attn_input);
        ggml_tensor * k        = build_lora_mm(layer.wk, attn_input);

        q = ggml_reshape_3d(ctx0, q, n_head_k, hparams.n_head(il), n_tokens);
        k = ggml_reshape_3d(ctx0, k, n_head_k, hparams.n_head_kv(il), n_tokens);
        return { q, k, ggml_view_3d(ctx0, k, hparams.n_lora_kv, k->ne[1], n_tokens, k->nb[1], k->nb[2], 0) };
    }
};

std::unique_ptr<llm_graph_context> head_graph_block(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_block>(model, params);
}
