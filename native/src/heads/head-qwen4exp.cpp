#include "head-graph.h"
#include "llama-memory-hybrid-idx.h"
#include "models/models.h"

#include <algorithm>

// Qwen3.8-Flash-Next. A layer like those of its trunk that attend: four streams of hidden states, and an index that
// picks blocks of positions. A mixer of its own makes one stream of the four, for the logits alone.
class head_graph_of_qwen4exp : public llama_model_qwen4exp::graph {
  public:
    head_graph_of_qwen4exp(const llama_model & model, const llm_graph_params & params) :
        graph(model, params, of_head{}), il(hparams.n_layer() + cparams.nextn_layer_offset), layer(model.layers[il]) {
        int sections[4];
        std::copy(std::begin(hparams.rope_sections), std::begin(hparams.rope_sections) + 4, sections);

        ggml_tensor * streams     = build_joined();
        ggml_tensor * inp_pos     = build_inp_pos();
        auto *        inp_attn    = build_attn_inp_kv();
        ggml_tensor * inp_out_ids = build_inp_out_ids();
        ggml_tensor * inject      = nullptr;

        ggml_tensor * cur = build_hc_mix(streams, layer.hc_attn_norm, layer.hc_attn_down, layer.hc_attn_up,
                                         layer.hc_attn_inject, &inject, il);
        cur               = build_layer_attn(inp_attn, memory(), cur, inp_pos, sections, il);
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

  private:
    const int           il; // of the head's block
    const llama_layer & layer;

    int64_t n_streams() const { return hparams.dsv4_hc_mult; }

    // K and V by position, and the keys of the index. nullptr in a context of llama.cpp's own type MTP, where heads have
    // no index and attend to everything
    const llama_memory_hybrid_idx_context * memory() const {
        return dynamic_cast<const llama_memory_hybrid_idx_context *>(mctx);
    }

    // [n_embd, n_streams, n_tokens] of each stream what eh_proj makes of it and the token. One norm for all of a row's
    // streams.
    ggml_tensor * build_joined() {
        const auto rows = head_rows_build(*this, model, layer, il);

        ggml_tensor * h_norm = build_norm(rows.hidden, layer.nextn.hnorm, nullptr, LLM_NORM_RMS, il);
        cb(h_norm, "mtp_hnorm", il);
        h_norm = ggml_reshape_3d(ctx0, h_norm, n_embd, n_streams(), n_tokens);

        ggml_tensor * e_norm = build_norm(rows.embd, layer.nextn.enorm, nullptr, LLM_NORM_RMS, il);
        cb(e_norm, "mtp_enorm", il);
        e_norm =
            ggml_repeat_4d(ctx0, ggml_reshape_3d(ctx0, e_norm, n_embd, 1, n_tokens), n_embd, n_streams(), n_tokens, 1);

        ggml_tensor * cur =
            build_lora_mm(layer.nextn.eh_proj, ggml_concat(ctx0, e_norm, h_norm, 0), layer.nextn.eh_proj_s);
        cb(cur, "mtp_eh_proj", il);
        return cur;
    }
};

std::unique_ptr<llm_graph_context> head_graph_qwen4exp(const llama_model & model, const llm_graph_params & params) {
    return std::make_unique<head_graph_of_qwen4exp>(model, params);
}
