// The architectures whose heads can draft, and on what conditions. Graphs abort on what they do not support, so every
// condition is checked here first. Knows models, and what the metadata of files says; no contexts.

#include "llama-model.h"
#include "mtp-heads.h"

#include <algorithm>
#include <string_view>

// names as in GGUFs
static constexpr std::string_view WITH_ONE_HEAD[]   = { "bailingmoe2", "bailingmoe3",  "cohere2moe",     "deepseek4",
                                                        "dots3note",   "ernie4_5-moe", "exaone4",        "exaone-moe",
                                                        "glm4",        "glm4moe",      "nemotron_h_moe", "qwen35",
                                                        "qwen35moe",   "qwen3next",    "qwen4exp" };
static constexpr std::string_view WITH_ANY_NUMBER[] = { "hy_v3", "mimo2", "step35" };

// one head, whose graph takes for granted that K and V of low rank are in tensors of their own
static constexpr std::string_view WITH_MLA[] = { "deepseek2", "deepseek32", "glm5-next", "glm-dsa" };

template <size_t N> static bool mtp_is_one_of(const std::string_view (&names)[N], std::string_view name) {
    return std::find(names, names + N, name) != names + N;
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

const char * mtp_obstacle_metadata(std::string_view name, int32_t n_heads, bool has_lora_q, bool has_mla) {
    const bool needs_mla = mtp_is_one_of(WITH_MLA, name);
    const bool is_many   = mtp_is_one_of(WITH_ANY_NUMBER, name);
    if (!needs_mla && !is_many && !mtp_is_one_of(WITH_ONE_HEAD, name)) {
        return "it has no graph for them";
    }
    if (!is_many && n_heads > 1) {
        return "it runs a single head of them";
    }
    if (name == "deepseek2" && !has_lora_q) {
        return "it needs attn_q_a and attn_q_b";
    }
    return needs_mla && !has_mla ? "it needs attn_k_b and attn_v_b" : nullptr;
}

const char * mtp_obstacle(const llama_model & model, const llama_model * assistant) {
    if (assistant) {
        return mtp_obstacle_assistant(model, *assistant);
    }
    const auto & hparams = model.hparams;
    if (hparams.mtp_generic) {
        return mtp_obstacle_generic(hparams);
    }
    const char * obstacle = mtp_obstacle_metadata(llm_arch_name(model.arch), (int32_t) hparams.n_layer_nextn,
                                                  hparams.n_lora_q > 0, hparams.is_mla());
    return obstacle ? obstacle : mtp_obstacle_tensors(model);
}
