#include "head-graph.h"

#include <cmath>

// K-EXAONE. A dense block; layers with a sliding window rotate, those without do not.
class head_graph_of_exaone_moe : public head_graph {
  public:
    head_graph_of_exaone_moe(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        ggml_tensor * inpL     = build_joined();
        auto *        inp_attn = build_attn_inp_kv_iswa();
        inp_out_ids            = build_inp_out_ids();

        ggml_tensor * cur = build_norm(inpL, layer.attn_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "mtp_attn_norm", il);

        auto [Qcur, Kcur, Vcur] = build_qkv(layer, cur, n_embd_head_k, n_head, n_head_kv, il);

        Qcur = build_norm(Qcur, layer.attn_q_norm, nullptr, LLM_NORM_RMS, il);
        Kcur = build_norm(Kcur, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);
        if (hparams.is_swa(il)) { // else nothing reads positions, and an input that is not read has no buffer
            ggml_tensor * inp_pos = build_inp_pos();
            ggml_tensor * factors = model.get_rope_factors(cparams, il);

            Qcur = build_rope(Qcur, inp_pos, factors);
            Kcur = build_rope(Kcur, inp_pos, factors);
        }

        cur = build_attn(inp_attn, layer.wo, nullptr, layer.wo_s, Qcur, Kcur, Vcur, nullptr, nullptr, nullptr,
                         1.0f / sqrtf(float(n_embd_head_k)), il);

        build_rest(cur, inpL, layer.nextn.shared_head_norm);
    }
};

std::unique_ptr<llm_graph_context> head_graph_exaone_moe(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_exaone_moe>(model, params);
}
