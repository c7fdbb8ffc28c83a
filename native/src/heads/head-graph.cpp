#include "head-graph.h"

#include "ggml-cpp.h"
#include "mtp-refuse.h"

#include <algorithm>
#include <cstring>

// The trunk's rows are cropped where they meet the output matrix, not in its last layer.
bool head_needs_all_rows(const llm_graph_context & graph) {
    const auto & cparams  = graph.cparams;
    const bool   is_trunk = !graph.res->part && cparams.ctx_type != LLAMA_CONTEXT_TYPE_MTP;
    return is_trunk && head_is_added(graph.hparams, graph.arch) && cparams.embeddings_nextn &&
           !cparams.embeddings_nextn_masked;
}

ggml_tensor * head_states(const llm_graph_context & graph, const ggml_tensor * weight, ggml_tensor * cur) {
    if (!head_needs_all_rows(graph) ||
        (strcmp(weight->name, "output.weight") != 0 && strcmp(weight->name, "token_embd.weight") != 0)) {
        return cur;
    }
    graph.cb(cur, "h_nextn", -1);
    graph.res->t_h_nextn = cur; // also where the architecture has handed out others

    auto   inp = std::make_unique<llm_graph_input_out_ids>(graph.hparams, graph.cparams, graph.n_outputs);
    auto * ids = inp->out_ids = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_outputs);
    ggml_set_input(ids);
    ggml_set_name(ids, "out_ids");
    graph.res->add_input(std::move(inp));
    return ggml_get_rows(graph.ctx0, cur, ids);
}

std::unique_ptr<llm_graph_context> head_graph_build(const llama_model & model, const llm_graph_params & params) {
    if (params.gtype == LLM_GRAPH_TYPE_DECODER_MTP) {
        switch (model.hparams.mtp_generic ? LLM_ARCH_UNKNOWN : model.arch) {
            case LLM_ARCH_DOTS3NOTE:
            case LLM_ARCH_GLM5_NEXT:
                return head_graph_latent(model, params);
            case LLM_ARCH_QWEN4EXP:
                return head_graph_qwen4exp(model, params);
            default:
                if (head_is_added(model.hparams, model.arch)) {
                    return head_graph_block(model, params);
                }
        }
    }
    return model.build_arch_graph(params);
}

head_graph::head_graph(const llama_model & model, const llm_graph_params & params) :
    llm_graph_context(params), model(model), il(hparams.n_layer() + cparams.nextn_layer_offset),
    layer(model.layers[il]) {
    GGML_ASSERT(cparams.nextn_layer_offset >= 0 && cparams.nextn_layer_offset < (int) hparams.n_layer_nextn);
    GGML_ASSERT(layer.nextn.eh_proj && layer.nextn.enorm && layer.nextn.hnorm);
    const auto rows = head_rows_build(*this, model, layer, il);

    ggml_tensor * h_norm = build_norm_if(layer.nextn.hnorm, rows.hidden, "mtp_hnorm");
    ggml_tensor * e_norm = build_norm_if(layer.nextn.enorm, rows.embd, "mtp_enorm");

    inpL = build_lora_mm(layer.nextn.eh_proj, ggml_concat(ctx0, e_norm, h_norm, 0), layer.nextn.eh_proj_s);
    cb(inpL, "mtp_eh_proj", il);

    attn_input  = build_norm_if(layer.attn_norm, inpL, "mtp_attn_norm");
    inp_out_ids = build_inp_out_ids();
}

head_rows head_rows_build(const llm_graph_context & graph, const llama_model & model, const llama_layer & layer,
                          int il) {
    const int64_t n_tokens = graph.n_tokens;
    const int64_t n_hidden = graph.hparams.n_embd_out();

    auto inp = std::make_unique<llm_graph_input_embd_h>(graph.hparams.n_embd_inp(), n_hidden);

    inp->tokens = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n_tokens);
    ggml_set_input(inp->tokens);

    inp->embd = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_F32, graph.hparams.n_embd_inp(), n_tokens);
    ggml_set_input(inp->embd);

    inp->h = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_F32, n_hidden, n_tokens);
    ggml_set_input(inp->h);
    ggml_set_name(inp->h, "mtp_h_input");

    ggml_tensor *   weight = layer.nextn.embed_tokens ? layer.nextn.embed_tokens : model.tok_embd;
    const head_rows rows = { graph.ubatch.token ? ggml_get_rows(graph.ctx0, weight, inp->tokens) : inp->embd, inp->h };
    graph.cb(rows.embd, "mtp_tok_embd", il);

    graph.res->add_input(std::move(inp));
    return rows;
}

ggml_tensor * head_rope(ggml_context * ctx, const llama_hparams & hparams, const llama_cparams & cparams, int il,
                        ggml_tensor * cur, ggml_tensor * inp_pos, ggml_tensor * factors) {
    int sections[4];
    std::copy(std::begin(hparams.rope_sections), std::begin(hparams.rope_sections) + 4, sections);
    cur = ggml_rope_multi(ctx, cur, inp_pos, factors, hparams.n_rot(il), sections, hparams.rope_type,
                          cparams.n_ctx_orig_yarn, cparams.rope_freq_base, cparams.rope_freq_scale,
                          cparams.yarn_ext_factor, cparams.yarn_attn_factor, cparams.yarn_beta_fast,
                          cparams.yarn_beta_slow);
    if (hparams.is_mla()) { // the values, which come first, do not rotate
        ggml_rope_set_offset(cur, hparams.n_embd_head_k(il) - hparams.n_rot(il));
    }
    return cur;
}

void head_generic_rotate(const llama_model & model, const llama_cparams & cparams, llama_pos pos,
                         std::vector<float> & rows) {
    const auto & hparams  = model.hparams;
    const int    il       = hparams.n_layer_all - 1;
    const auto   n_head_k = hparams.n_embd_head_k(il);
    if (hparams.rope_type == LLAMA_ROPE_TYPE_NONE) {
        return;
    }
    const ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    const ggml_context_ptr ctx(ggml_init({ 1 << 16, nullptr, true }));
    const int64_t          n_rows   = rows.size() / n_head_k;
    ggml_tensor *          of_model = model.get_rope_factors(cparams, 0);
    ggml_tensor *          factors  = of_model ? ggml_dup_tensor(ctx.get(), of_model) : nullptr;
    ggml_tensor *          cur      = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, n_head_k, n_rows, 1);
    ggml_tensor *          inp_pos  = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, hparams.n_pos_per_embd());
    ggml_tensor *          res      = head_rope(ctx.get(), hparams, cparams, il, cur, inp_pos, factors);
    ggml_cgraph *          graph    = ggml_new_graph_custom(ctx.get(), 16, false);
    ggml_build_forward_expand(graph, res);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
    if (!buffer) {
        throw std::bad_alloc();
    }
    const std::vector<llama_pos> positions = { pos, pos, pos, 0 }; // of text, where a model has several
    ggml_backend_tensor_set(inp_pos, positions.data(), 0, ggml_nbytes(inp_pos));
    ggml_backend_tensor_set(cur, rows.data(), 0, ggml_nbytes(cur));
    if (factors) {
        ggml_backend_tensor_copy(of_model, factors);
    }
    mtp_refuse_if(ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS, "the CPU failed");
    ggml_backend_tensor_get(res, rows.data(), 0, ggml_nbytes(res));
}

ggml_tensor * head_graph::build_norm_if(ggml_tensor * norm, ggml_tensor * cur, const char * name) const {
    if (!norm) {
        return cur;
    }
    cur = build_norm(cur, norm, nullptr, LLM_NORM_RMS, il);
    cb(cur, name, il);
    return cur;
}

ggml_tensor * head_graph::build_feed_forward(ggml_tensor * cur) const {
    if (!layer.ffn_gate_inp) {
        const bool has_gate = layer.ffn_gate;
        return build_ffn(cur, layer.ffn_up, nullptr, nullptr, layer.ffn_gate, nullptr, nullptr, layer.ffn_down, nullptr,
                         nullptr, nullptr, has_gate ? LLM_FFN_SILU : LLM_FFN_SWIGLU,
                         has_gate ? LLM_FFN_PAR : LLM_FFN_SEQ, il);
    }
    ggml_tensor * routed =
        build_moe_ffn(cur, layer.ffn_gate_inp, layer.ffn_up_exps, layer.ffn_gate_exps, layer.ffn_down_exps,
                      layer.ffn_exp_probs_b, n_expert, n_expert_used, LLM_FFN_SILU, hparams.expert_weights_norm,
                      hparams.expert_weights_scale, (llama_expert_gating_func_type) hparams.expert_gating_func, il);
    cb(routed, "mtp_ffn_moe_out", il);

    ggml_tensor * shared = build_ffn(cur, layer.ffn_up_shexp, nullptr, nullptr, layer.ffn_gate_shexp, nullptr, nullptr,
                                     layer.ffn_down_shexp, nullptr, nullptr, nullptr, LLM_FFN_SILU, LLM_FFN_PAR, il);
    cb(shared, "mtp_ffn_shexp_out", il);
    return ggml_add(ctx0, routed, shared);
}

void head_graph::build_rest(ggml_tensor * cur, ggml_tensor * norm) {
    ggml_tensor * ffn_inp = ggml_add(ctx0, build_norm_if(layer.attn_post_norm, cur, "mtp_attn_post_norm"), inpL);
    cb(ffn_inp, "mtp_ffn_inp", il);

    cur = build_feed_forward(build_norm_if(layer.ffn_norm, ffn_inp, "mtp_ffn_norm"));
    cur = build_norm_if(layer.ffn_post_norm, cur, "mtp_ffn_post_norm");
    cur = build_norm(ggml_add(ctx0, cur, ffn_inp), norm ? norm : model.output_norm, nullptr, LLM_NORM_RMS, -1);
    cb(cur, "h_nextn", -1);
    res->t_h_nextn = cur;

    cur = ggml_get_rows(ctx0, cur, inp_out_ids);
    cb(cur, "mtp_shared_head_norm", -1);

    const bool is_own = layer.nextn.shared_head_head;
    cur               = build_lora_mm(is_own ? layer.nextn.shared_head_head : model.output, cur,
                                      is_own ? layer.nextn.shared_head_head_s : model.output_s);
    cb(cur, "result_output", -1);
    res->t_logits = cur;

    ggml_build_forward_expand(gf, cur);
}
