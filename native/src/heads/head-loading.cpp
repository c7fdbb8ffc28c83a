#include "head-graph.h"
#include "llama-model-loader.h"

#include <algorithm>
#include <array>
#include <string>

// Loading of heads that llama.cpp's own code skips, or does not see: those of the form of head-block.cpp among them.

bool head_is_added(const llama_hparams & hparams, llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_BAILINGMOE2:
        case LLM_ARCH_DOTS3NOTE:
        case LLM_ARCH_ERNIE4_5_MOE:
        case LLM_ARCH_EXAONE4:
        case LLM_ARCH_EXAONE_MOE:
        case LLM_ARCH_GLM4:
            return true;
        default:
            return hparams.mtp_generic;
    }
}

// Heads attend as the trunk's first layers do, with a window or without, unless the metadata says so for each of them.
static void load_windows(llama_model_loader & ml, llama_hparams & hparams) {
    std::array<uint32_t, LLAMA_MAX_LAYERS> given;
    given.fill(UINT32_MAX);
    if (ml.get_arr(LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN, given, false) && given[hparams.n_layer()] != UINT32_MAX) {
        return;
    }
    for (uint32_t i = 0; i < hparams.n_layer_nextn; ++i) {
        hparams.is_swa_impl[hparams.n_layer() + i] = hparams.is_swa_impl[i];
    }
}

void head_load_hparams(llama_model_loader & ml, llm_arch arch, llama_hparams & hparams) {
    if (arch == LLM_ARCH_DOTS3NOTE) {
        std::fill_n(hparams.is_swa_impl.begin() + hparams.n_layer(), hparams.n_layer_nextn, true);
    } else if ((arch == LLM_ARCH_EXAONE4 || arch == LLM_ARCH_EXAONE_MOE) && hparams.n_layer_nextn > 0 &&
               hparams.swa_type != LLAMA_SWA_TYPE_NONE) {
        load_windows(ml, hparams);
    }
    head_generic_load_hparams(ml, hparams);
}

// Flags for the tensors of a model's heads: none, or to skip them, if the caller does not want them or the file has none.
static int tensor_flags(const llama_model_loader & ml, const llama_hparams & hparams) {
    const std::string probe = "blk." + std::to_string(hparams.n_layer()) + ".nextn.eh_proj.weight";
    return ml.load_mtp && ml.get_weight(probe.c_str()) ? 0 : llama_model_loader::TENSOR_SKIP;
}

// The tensors of a block of head-block.cpp with a dense feed-forward.
static void load_block(llama_model_loader & ml, llama_model_base & model, int il) {
    const auto &  hparams  = model.hparams;
    const int     flags    = tensor_flags(ml, hparams);
    const int     maybe    = flags | llama_model_loader::TENSOR_NOT_REQUIRED;
    auto &        layer    = model.layers[il];
    const auto *  up       = ml.get_tensor_meta(model.tn(LLM_TENSOR_FFN_UP, "weight", il).str().c_str());
    const int64_t n_embd   = hparams.n_embd;
    const int64_t n_ff     = up ? up->ne[1] : 0;
    const int64_t n_head_k = hparams.n_embd_head_k(il);
    const int64_t n_head_v = hparams.is_mla() ? hparams.n_lora_kv : hparams.n_embd_head_v(il);
    const int64_t n_q      = n_head_k * hparams.n_head(il);

    const auto create = [&](llm_tensor tensor, const std::initializer_list<int64_t> & ne, int flags) {
        return model.create_tensor(model.tn(tensor, "weight", il), ne, flags);
    };
    layer.nextn.eh_proj = create(LLM_TENSOR_NEXTN_EH_PROJ, { 2 * n_embd, n_embd }, flags);
    layer.nextn.enorm   = create(LLM_TENSOR_NEXTN_ENORM, { n_embd }, flags);
    layer.nextn.hnorm   = create(LLM_TENSOR_NEXTN_HNORM, { n_embd }, flags);
    layer.nextn.shared_head_norm =
        create(LLM_TENSOR_NEXTN_SHARED_HEAD_NORM, { n_embd }, hparams.mtp_generic ? flags : maybe);
    layer.nextn.shared_head_head =
        create(LLM_TENSOR_NEXTN_SHARED_HEAD_HEAD, { n_embd, (int64_t) model.vocab.n_tokens() }, maybe);

    layer.attn_norm = create(LLM_TENSOR_ATTN_NORM, { n_embd }, flags);
    if (hparams.is_mla()) { // keys hold the values
        layer.wq = create(LLM_TENSOR_ATTN_Q, { n_embd, n_q }, flags);
        layer.wk = create(LLM_TENSOR_ATTN_K, { n_embd, hparams.n_embd_k_gqa(il) }, flags);
    } else {
        model.create_tensor_qkv(layer, il, n_embd, n_q, hparams.n_embd_k_gqa(il), hparams.n_embd_v_gqa(il), flags);
    }
    layer.attn_q_norm = create(LLM_TENSOR_ATTN_Q_NORM, { n_head_k }, maybe);
    layer.attn_k_norm = create(LLM_TENSOR_ATTN_K_NORM, { n_head_k }, maybe);
    layer.wo          = create(LLM_TENSOR_ATTN_OUT, { n_head_v * hparams.n_head(il), n_embd }, flags);
    layer.ffn_norm    = create(LLM_TENSOR_FFN_NORM, { n_embd }, flags);
    layer.ffn_gate    = create(LLM_TENSOR_FFN_GATE, { n_embd, n_ff }, flags);
    layer.ffn_up      = create(LLM_TENSOR_FFN_UP, { n_embd, n_ff }, flags);
    layer.ffn_down    = create(LLM_TENSOR_FFN_DOWN, { n_ff, n_embd }, flags);

    layer.rope_freqs = model.layers[0].rope_freqs;
    layer.rope_long  = model.layers[0].rope_long;
    layer.rope_short = model.layers[0].rope_short;
    if (!model.output) {
        model.output = model.tok_embd; // architectures may multiply with the embedding itself
    }
}

void head_load_tensors(llama_model_loader & ml, llama_model_base & model) {
    auto & hparams = model.hparams;
    if (!hparams.mtp_generic && head_is_added(hparams, model.arch)) {
        model.TENSOR_SKIP = tensor_flags(ml, hparams);
    }
    hparams.n_layer_all -= hparams.mtp_generic; // hides the layer
    hparams.n_layer_nextn -= hparams.mtp_generic;
    model.load_arch_tensors(ml);
    hparams.n_layer_all += hparams.mtp_generic;
    hparams.n_layer_nextn += hparams.mtp_generic;

    if (hparams.mtp_generic || model.arch == LLM_ARCH_ERNIE4_5 || model.arch == LLM_ARCH_ERNIE4_5_MOE) {
        for (uint32_t il = hparams.n_layer(); il < hparams.n_layer_all; ++il) {
            load_block(ml, model, il);
        }
    }
}
