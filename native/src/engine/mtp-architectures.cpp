#include "mtp-architectures.h"

#include "llama-model.h"
#include "pymtp.h"

#include <algorithm>

const std::vector<mtp_architecture> & mtp_architectures() {
    static const std::vector<mtp_architecture> architectures = {
        { LLM_ARCH_BAILINGMOE2, 1, 0 },
        { LLM_ARCH_BAILINGMOE3, 1, 0 },
        { LLM_ARCH_COHERE2MOE, 1, 0 },
        { LLM_ARCH_DEEPSEEK2, 1, PYMTP_NEEDS_LORA_Q | PYMTP_NEEDS_MLA },
        { LLM_ARCH_DEEPSEEK32, 1, PYMTP_NEEDS_MLA },
        { LLM_ARCH_DEEPSEEK4, 1, 0 },
        { LLM_ARCH_DOTS3NOTE, 1, 0 },
        { LLM_ARCH_ERNIE4_5_MOE, 1, 0 },
        { LLM_ARCH_EXAONE4, 1, 0 },
        { LLM_ARCH_EXAONE_MOE, 1, 0 },
        { LLM_ARCH_GLM4, 1, 0 },
        { LLM_ARCH_GLM4_MOE, 1, 0 },
        { LLM_ARCH_GLM5_NEXT, 1, PYMTP_NEEDS_MLA },
        { LLM_ARCH_GLM_DSA, 1, PYMTP_NEEDS_MLA },
        { LLM_ARCH_HY_V3, 0, 0 },
        { LLM_ARCH_MIMO2, 0, 0 },
        { LLM_ARCH_NEMOTRON_H_MOE, 1, 0 },
        { LLM_ARCH_QWEN35, 1, 0 },
        { LLM_ARCH_QWEN35MOE, 1, 0 },
        { LLM_ARCH_QWEN3NEXT, 1, 0 },
        { LLM_ARCH_QWEN4EXP, 1, 0 },
        { LLM_ARCH_STEP35, 0, 0 },
    };
    return architectures;
}

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
    const auto & all     = mtp_architectures();
    const auto & hparams = model.hparams;
    const auto   known = std::find_if(all.begin(), all.end(), [&](const auto & one) { return one.arch == model.arch; });

    if (known == all.end()) {
        return "it has no graph for them";
    }
    if (known->n_heads_max > 0 && hparams.n_layer_nextn > (uint32_t) known->n_heads_max) {
        return "it runs a single head of them";
    }
    if (const char * obstacle = mtp_obstacle_tensors(model)) {
        return obstacle;
    }
    if ((known->conditions & PYMTP_NEEDS_LORA_Q) && hparams.n_lora_q == 0) {
        return "it needs attn_q_a and attn_q_b";
    }
    if ((known->conditions & PYMTP_NEEDS_MLA) && !hparams.is_mla()) {
        return "it needs attn_k_b and attn_v_b";
    }
    return nullptr;
}
