#include "head-graph.h"

#include <cmath>

// EXAONE-4.5. Norms after attention and feed-forward, not before them. The 33B model has layers with a sliding window,
// which rotate, and layers without, which do not; in a model without windows all layers rotate.
template <bool iswa> class head_graph_of_exaone4 : public head_graph {
  public:
    head_graph_of_exaone4(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        using input = std::conditional_t<iswa, llm_graph_input_attn_kv_iswa, llm_graph_input_attn_kv>;

        ggml_tensor * inpL     = build_joined();
        input *       inp_attn = nullptr;
        if constexpr (iswa) {
            inp_attn = build_attn_inp_kv_iswa();
        } else {
            inp_attn = build_attn_inp_kv();
        }
        inp_out_ids = build_inp_out_ids();

        auto [Qcur, Kcur, Vcur] = build_qkv(layer, inpL, n_embd_head_k, n_head, n_head_kv, il);

        Qcur = build_norm(Qcur, layer.attn_q_norm, nullptr, LLM_NORM_RMS, il);
        Kcur = build_norm(Kcur, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);
        if (!iswa || hparams.is_swa(il)) { // else nothing reads positions, and an input that is not read has no buffer
            ggml_tensor * inp_pos = build_inp_pos();
            // the layers share one tensor of factors; llama.cpp gives it to those of the trunk
            ggml_tensor * factors = model.get_rope_factors(cparams, 0);

            Qcur = build_rope(Qcur, inp_pos, factors);
            Kcur = build_rope(Kcur, inp_pos, factors);
        }

        ggml_tensor * cur = build_attn(inp_attn, layer.wo, nullptr, layer.wo_s, Qcur, Kcur, Vcur, nullptr, nullptr,
                                       nullptr, 1.0f / sqrtf(float(n_embd_head_k)), il);

        cur = build_norm(cur, layer.attn_post_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "mtp_attn_post_norm", il);

        ggml_tensor * ffn_inp = ggml_add(ctx0, cur, inpL);
        cb(ffn_inp, "mtp_ffn_inp", il);

        cur = build_norm(build_feed_forward(ffn_inp), layer.ffn_post_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "mtp_ffn_post_norm", il);

        build_outputs(ggml_add(ctx0, cur, ffn_inp), layer.nextn.shared_head_norm);
    }
};

std::unique_ptr<llm_graph_context> head_graph_exaone4(const llama_model & model, const llm_graph_params & params) {
    if (model.hparams.swa_type == LLAMA_SWA_TYPE_NONE) {
        return std::make_unique<head_graph_of_exaone4<false>>(model, params);
    }
    return std::make_unique<head_graph_of_exaone4<true>>(model, params);
}
