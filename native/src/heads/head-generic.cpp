#include "head-graph.h"
#include "llama-model-loader.h"

#include <algorithm>
#include <cstring>

// A head of pymtp's own form, which drafts for any trunk whose cache keeps K/V by position: the block of head-block.cpp,
// with the attention of the trunk's last layer that sees all positions. Its file says so, since the architecture's own
// code knows nothing of it: while that runs, the layer is hidden.
static constexpr const char * KV_GENERIC = "pymtp.head.trunk";

head_generic_hidden::head_generic_hidden(llama_hparams & hparams) : hparams(hparams) {
    hparams.n_layer_all -= hparams.mtp_generic;
    hparams.n_layer_nextn -= hparams.mtp_generic;
}

head_generic_hidden::~head_generic_hidden() {
    hparams.n_layer_all += hparams.mtp_generic;
    hparams.n_layer_nextn += hparams.mtp_generic;
}

void head_generic_find(const llama_model_loader & ml, llama_hparams & hparams) {
    if (gguf_find_key(ml.metadata, KV_GENERIC) >= 0 && hparams.n_layer_nextn == 1 && hparams.n_layer_all > 1) {
        hparams.mtp_generic   = true;
        hparams.n_layer_nextn = 0;
        hparams.n_layer_all -= 1;
    }
}

void head_generic_load_hparams(llama_hparams & hparams) {
    if (!hparams.mtp_generic) {
        return;
    }
    const uint32_t il   = hparams.n_layer_all;
    uint32_t       like = il - 1;
    while (like > 0 && (hparams.is_recr(like) || hparams.is_swa(like) || hparams.n_head_kv(like) == 0)) {
        --like; // down to the first if all have windows
    }
    hparams.n_layer_all   = il + 1;
    hparams.n_layer_nextn = 1;

    hparams.n_head_arr[il]    = hparams.n_head_arr[like];
    hparams.n_head_kv_arr[il] = hparams.n_head_kv_arr[like];
    hparams.is_swa_impl[il]   = false;
    hparams.is_recr_impl[il]  = false;
    if (!(hparams.f_norm_rms_eps > 0.0f)) {
        hparams.f_norm_rms_eps = 1e-5f; // the trunk has norms of another kind
    }
}

void llama_model_base::load_generic_head(llama_model_loader & ml) {
    if (!hparams.mtp_generic) {
        return;
    }
    const int     il       = hparams.n_layer();
    const int     flags    = head_tensor_flags(ml, il);
    const int     maybe    = flags | TENSOR_NOT_REQUIRED;
    auto &        layer    = layers[il];
    const auto *  up       = ml.get_tensor_meta(tn(LLM_TENSOR_FFN_UP, "weight", il).str().c_str());
    const int64_t n_embd   = hparams.n_embd;
    const int64_t n_ff     = up ? up->ne[1] : 0;
    const int64_t n_head_k = hparams.n_embd_head_k(il);
    const int64_t n_out    = hparams.n_embd_head_v(il) * hparams.n_head(il);

    const auto create = [&](llm_tensor tensor, const std::initializer_list<int64_t> & ne, int flags) {
        return create_tensor(tn(tensor, "weight", il), ne, flags);
    };
    layer.nextn.eh_proj          = create(LLM_TENSOR_NEXTN_EH_PROJ, { 2 * n_embd, n_embd }, flags);
    layer.nextn.enorm            = create(LLM_TENSOR_NEXTN_ENORM, { n_embd }, flags);
    layer.nextn.hnorm            = create(LLM_TENSOR_NEXTN_HNORM, { n_embd }, flags);
    layer.nextn.shared_head_norm = create(LLM_TENSOR_NEXTN_SHARED_HEAD_NORM, { n_embd }, flags);
    layer.nextn.shared_head_head =
        create(LLM_TENSOR_NEXTN_SHARED_HEAD_HEAD, { n_embd, (int64_t) vocab.n_tokens() }, maybe);

    layer.attn_norm = create(LLM_TENSOR_ATTN_NORM, { n_embd }, flags);
    create_tensor_qkv(layer, il, n_embd, n_head_k * hparams.n_head(il), hparams.n_embd_k_gqa(il),
                      hparams.n_embd_v_gqa(il), flags);
    layer.attn_q_norm = create(LLM_TENSOR_ATTN_Q_NORM, { n_head_k }, maybe);
    layer.attn_k_norm = create(LLM_TENSOR_ATTN_K_NORM, { n_head_k }, maybe);
    layer.wo          = create(LLM_TENSOR_ATTN_OUT, { n_out, n_embd }, flags);
    layer.ffn_norm    = create(LLM_TENSOR_FFN_NORM, { n_embd }, flags);
    layer.ffn_gate    = create(LLM_TENSOR_FFN_GATE, { n_embd, n_ff }, flags);
    layer.ffn_up      = create(LLM_TENSOR_FFN_UP, { n_embd, n_ff }, flags);
    layer.ffn_down    = create(LLM_TENSOR_FFN_DOWN, { n_ff, n_embd }, flags);

    layer.rope_freqs = layers[0].rope_freqs;
    layer.rope_long  = layers[0].rope_long;
    layer.rope_short = layers[0].rope_short;
    output           = output ? output : tok_embd; // architectures may multiply with the embedding itself
}

// The trunk's rows are cropped where they meet the output matrix, not in its last layer.
bool head_generic_needs_all_rows(const llm_graph_context & graph) {
    return graph.hparams.mtp_generic && graph.gtype != LLM_GRAPH_TYPE_DECODER_MTP && graph.cparams.embeddings_nextn &&
           !graph.cparams.embeddings_nextn_masked;
}

ggml_tensor * head_generic_states(const llm_graph_context & graph, const ggml_tensor * weight, ggml_tensor * cur) {
    if (!head_generic_needs_all_rows(graph) ||
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
