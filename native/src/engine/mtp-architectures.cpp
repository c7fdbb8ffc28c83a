// The architectures whose heads can draft, and on what conditions. pymtp/gguf/architectures.py repeats the list, for
// files that are only read; a test compares the two. Graphs abort on what they do not support, so every condition is
// checked here first. Knows models; no contexts.

#include "llama-model.h"
#include "mtp-heads.h"

#include <algorithm>
#include <cstring>
#include <iterator>

// what the graph of an architecture's heads takes for granted, a bit each
enum {
    NEEDS_LORA_Q = 1, // queries of low rank
    NEEDS_MLA    = 2, // K and V of low rank in tensors of their own
};

static constexpr struct {
    const char * name;        // as in GGUFs
    uint32_t     n_heads_max; // 0: any number
    int32_t      conditions;
} ARCHITECTURES[] = {
    { "bailingmoe2", 1, 0 },
    { "bailingmoe3", 1, 0 },
    { "cohere2moe", 1, 0 },
    { "deepseek2", 1, NEEDS_LORA_Q | NEEDS_MLA },
    { "deepseek32", 1, NEEDS_MLA },
    { "deepseek4", 1, 0 },
    { "dots3note", 1, 0 },
    { "ernie4_5-moe", 1, 0 },
    { "exaone4", 1, 0 },
    { "exaone-moe", 1, 0 },
    { "glm4", 1, 0 },
    { "glm4moe", 1, 0 },
    { "glm5-next", 1, NEEDS_MLA },
    { "glm-dsa", 1, NEEDS_MLA },
    { "hy_v3", 0, 0 },
    { "mimo2", 0, 0 },
    { "nemotron_h_moe", 1, 0 },
    { "qwen35", 1, 0 },
    { "qwen35moe", 1, 0 },
    { "qwen3next", 1, 0 },
    { "qwen4exp", 1, 0 },
    { "step35", 0, 0 },
};

static const char * mtp_obstacle_assistant(const llama_model & model, const llama_model & assistant) {
    const auto & theirs = assistant.hparams;
    const auto & ours   = model.hparams;

    if (model.arch != LLM_ARCH_GEMMA4 || assistant.arch != LLM_ARCH_GEMMA4_ASSISTANT) {
        return "only those of Gemma-4 are known";
    }
    if (assistant.vocab.n_tokens() != model.vocab.n_tokens()) {
        return "its vocabulary is another";
    }
    if (theirs.n_embd_out() != ours.n_embd) {
        return "it reads hidden states of another size";
    }
    // that these two are of both kinds, and which is which, is what llama.cpp takes for granted
    const uint32_t il_full = ours.n_layer() - 1;
    if (ours.n_layer() < 2 || ours.is_swa(il_full) || !ours.is_swa(il_full - 1)) {
        return "it needs a trunk whose last layers are one with a sliding window and one without";
    }
    for (uint32_t il = 0; il < theirs.n_layer_nextn; ++il) {
        const uint32_t il_read = theirs.is_swa(il) ? il_full - 1 : il_full;
        if (theirs.n_embd_head_k(il) != ours.n_embd_head_k(il_read) ||
            theirs.n_head_kv(il) != ours.n_head_kv(il_read)) {
            return "it reads keys of another size";
        }
    }
    return nullptr;
}

// of a head of pymtp's own form
static const char * mtp_obstacle_generic(const llama_hparams & hparams) {
    const uint32_t il = hparams.n_layer();
    if (hparams.n_head_kv(il) == 0 || !hparams.has_kv(il)) {
        return "the trunk's cache keeps no K/V by position that a head could add its own to";
    }
    if (hparams.is_mla() && (hparams.indexer_head_size > 0 || hparams.swa_type != LLAMA_SWA_TYPE_NONE)) {
        return "the trunk has an index of its compressed keys, or windows";
    }
    return hparams.use_alibi ? "the trunk knows positions by ALiBi" : nullptr;
}

// of the layers that are the heads
static const char * mtp_obstacle_tensors(const llama_model & model) {
    for (uint32_t i = 0; i < model.hparams.n_layer_nextn; ++i) {
        const auto & layer = model.layers[model.hparams.n_layer() + i];
        if (!layer.nextn.eh_proj || !layer.nextn.enorm || !layer.nextn.hnorm) {
            return "their tensors are not loaded";
        }
    }
    return nullptr;
}

const char * mtp_obstacle(const llama_model & model, const llama_model * assistant) {
    if (assistant) {
        return mtp_obstacle_assistant(model, *assistant);
    }
    const auto & hparams = model.hparams;
    if (hparams.mtp_generic) {
        return mtp_obstacle_generic(hparams);
    }
    const auto * known = std::find_if(std::begin(ARCHITECTURES), std::end(ARCHITECTURES), [&](const auto & one) {
        return strcmp(one.name, llm_arch_name(model.arch)) == 0;
    });
    if (known == std::end(ARCHITECTURES)) {
        return "it has no graph for them";
    }
    if (known->n_heads_max > 0 && hparams.n_layer_nextn > known->n_heads_max) {
        return "it runs a single head of them";
    }
    if (const char * obstacle = mtp_obstacle_tensors(model)) {
        return obstacle;
    }
    if ((known->conditions & NEEDS_LORA_Q) && hparams.n_lora_q == 0) {
        return "it needs attn_q_a and attn_q_b";
    }
    if ((known->conditions & NEEDS_MLA) && !hparams.is_mla()) {
        return "it needs attn_k_b and attn_v_b";
    }
    return nullptr;
}
