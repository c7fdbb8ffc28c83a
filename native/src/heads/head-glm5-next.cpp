#include "head-graph.h"
#include "head-index.h"

#include <cmath>

// GLM-5.3-Flash. Latent attention without rotation to what an index of pooled keys picks, as in the trunk's layers of
// that kind, and experts; hidden states have one stream, where the trunk's have several.
class head_graph_of_glm5_next : public head_graph {
  public:
    head_graph_of_glm5_next(const llama_model & model, const llm_graph_params & params) : head_graph(model, params) {
        build_rest(build_attention(), layer.nextn.shared_head_norm);
    }

  private:
    // keys and values are absorbed into queries and outputs: the cache has one vector a position
    ggml_tensor * build_attention() {
        const int64_t n_key = hparams.n_embd_head_k_mla();
        GGML_ASSERT(n_rot == 0);

        ggml_tensor * low_rank =
            build_norm(build_lora_mm(layer.wq_a, attn_input), layer.attn_q_a_norm, nullptr, LLM_NORM_RMS, il);
        cb(low_rank, "mtp_q", il);

        ggml_tensor * q = ggml_reshape_3d(ctx0, build_lora_mm(layer.wq_b, low_rank), n_key, n_head, n_tokens);
        q = ggml_mul_mat(ctx0, layer.wk_b, ggml_permute(ctx0, q, 0, 2, 1, 3)); // {n_rank, n_tokens, n_head}
        q = ggml_permute(ctx0, q, 0, 2, 1, 3);
        cb(q, "mtp_Qcur", il);

        ggml_tensor * latent =
            build_norm(build_lora_mm(layer.wkv_a_mqa, attn_input), layer.attn_kv_a_norm, nullptr, LLM_NORM_RMS, il);
        latent = ggml_reshape_3d(ctx0, latent, hparams.n_lora_kv, 1, n_tokens);
        cb(latent, "mtp_Kcur", il);

        const head_index_rows rows = { attn_input, low_rank, nullptr };

        ggml_tensor * cur = head_index_attention(*this, layer, rows, LLAMA_ROPE_TYPE_NONE, q, latent, latent,
                                                 1.0f / sqrtf(float(n_key)), il);
        cb(cur, "mtp_attn_out", il);
        return cur;
    }
};

std::unique_ptr<llm_graph_context> head_graph_glm5_next(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_glm5_next>(model, params);
}
