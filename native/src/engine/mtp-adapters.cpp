#include "mtp-adapters.h"

#include "mtp-graph-check.h"
#include "mtp-refuse.h"

#include <cmath>
#include <cstdio>
#include <cstring>

// a, b, scale, add and two products, as llama_adapter_lora::get_n_nodes counts
static constexpr size_t MTP_NODES_PER_TENSOR = 6;

static constexpr const char * MTP_TOKEN_EMBEDDING = "token_embd.weight";

// whether a tensor belongs to a layer of the heads
static bool mtp_is_of_head(const llama_model & model, const std::string & name) {
    unsigned int layer;
    return sscanf(name.c_str(), "blk.%u.", &layer) == 1 && layer >= model.hparams.n_layer();
}

void mtp_adapter_check(const llama_adapter_lora & adapter) {
    mtp_refuse_if(!adapter.alora_invocation_tokens.empty(),
                  "it is an activated LoRA (aLoRA), which works from certain tokens on; that is not supported");
    const bool is_right = std::abs(adapter.alpha) <= 1e6f; // NaN is not
    mtp_refuse_if(!is_right, "its alpha (adapter.lora.alpha) is not a number, or too large");
    const auto & model = *adapter.model;
    for (const auto & factors : adapter.ab_map) {
        const std::string & name  = factors.first; // a lambda cannot have a structured binding's in C++17
        const ggml_tensor & of    = *model.get_tensor(name.c_str());
        const ggml_tensor & a     = *factors.second.a;
        const ggml_tensor & b     = *factors.second.b;
        const bool          is_in = name == MTP_TOKEN_EMBEDDING; // a is looked up there

        const auto refuse_if = [&](bool is_wrong, const char * why) {
            mtp_refuse_if(is_wrong, "its tensor " + name + " " + why);
        };
        refuse_if(ggml_n_dims(&of) < 2 || name.find("nextn.embed_tokens.") != name.npos,
                  "is for one that llama.cpp applies no adapters to");
        refuse_if(a.ne[is_in ? 0 : 1] != b.ne[0] || a.ne[2] != of.ne[2] || b.ne[2] != of.ne[2] || a.ne[3] != 1 ||
                      b.ne[3] != 1,
                  "has another shape than the model's");
        refuse_if(!mtp_is_factor(a.type) || !mtp_is_factor(b.type), "is of a type that cannot be multiplied");
        refuse_if(
            is_in && model.output && strcmp(ggml_get_name(model.output), MTP_TOKEN_EMBEDDING) == 0,
            "is also the model's output matrix, where llama.cpp cannot apply it; merge the adapter into the model");
    }
}

void mtp_adapters::set(const llama_adapter_loras & adapters) {
    if (active == &adapters) {
        return; // and no graph is built for the same ones
    }
    active  = &adapters;
    n_nodes = 0;
    applied.clear();
    for (const auto & [adapter, scale] : adapters) {
        for (const auto & [name, weight] : adapter->ab_map) {
            n_nodes += name == "output.weight" || mtp_is_of_head(trunk, name) ? MTP_NODES_PER_TENSOR : 0;
        }
    }
}

void mtp_adapters::observe(ggml_cgraph * gf) {
    if (active->empty()) {
        return;
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        applied.insert(ggml_graph_node(gf, i)->src[0]);
    }
}

std::string mtp_adapters::passed_over() const {
    for (const auto & [adapter, scale] : *active) {
        for (const auto & [name, weight] : adapter->ab_map) {
            if (!mtp_is_of_head(trunk, name) && applied.count(weight.a) == 0) {
                return name;
            }
        }
    }
    return "";
}
