#include "head-graph.h"

#include <cmath>

// ERNIE 4.5. A dense block; the last norm is the trunk's.
class head_graph_of_ernie4_5_moe : public head_graph {
  public:
    head_graph_of_ernie4_5_moe(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        ggml_tensor * inpL     = build_joined();
        ggml_tensor * inp_pos  = build_inp_pos();
        auto *        inp_attn = build_attn_inp_kv();
        inp_out_ids            = build_inp_out_ids();

        ggml_tensor * cur = build_norm(inpL, layer.attn_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "mtp_attn_norm", il);

        auto [Qcur, Kcur, Vcur] = build_qkv(layer, cur, n_embd_head_k, n_head, n_head_kv, il);

        Qcur = build_rope(Qcur, inp_pos);
        Kcur = build_rope(Kcur, inp_pos);

        cur = build_attn(inp_attn, layer.wo, nullptr, layer.wo_s, Qcur, Kcur, Vcur, nullptr, nullptr, nullptr,
                         1.0f / sqrtf(float(n_embd_head_k)), il);

        build_rest(cur, inpL, layer.nextn.shared_head_norm);
    }
};

std::unique_ptr<llm_graph_context> head_graph_ernie4_5_moe(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_ernie4_5_moe>(model, params);
}
