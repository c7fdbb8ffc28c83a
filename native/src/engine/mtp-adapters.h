#pragma once

// What the engine adds to llama.cpp's LoRA adapters: they never reach an assistant, and one that a graph passes over is
// named. The adapters are llama.cpp's.

#include "llama-adapter.h"
#include "llama-model.h"

#include <string>
#include <unordered_set>

// Refuses, by throwing, an adapter whose tensors cannot be multiplied with those of its model, or that is of a kind that
// llama.cpp's graphs do not apply.
void mtp_adapter_check(const llama_adapter_lora & adapter);

class mtp_adapters {
  public:
    mtp_adapters(const llama_model & trunk, const llama_adapter_loras & active) : trunk(trunk), active(&active) {}

    // the context has others from now on
    void set(const llama_adapter_loras & adapters);

    // nodes that they add to a head's graph, at most
    size_t n_nodes_of_head() const { return n_nodes; }

    // a graph of the trunk is built
    void observe(ggml_cgraph * gf);

    // a tensor of the trunk that has an adapter, which no graph was seen to apply; "": there is none
    std::string passed_over() const;

  private:
    const llama_model &                     trunk;
    const llama_adapter_loras *             active;
    size_t                                  n_nodes = 0;
    std::unordered_set<const ggml_tensor *> applied;
};
