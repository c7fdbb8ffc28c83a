#pragma once

// What a head's part of a graph is tied to while it is built: the tensors that it reads in the place of inputs from the
// host, and what its index picks. The result of the graph points to it (llm_graph_result::part), and whoever builds the
// part fills it in. Plain data.

#include <cstddef>
#include <cstdint>

struct ggml_tensor;

// What an index picks for a round's first draft, if the others take it over.
struct head_picked {
    ggml_tensor * taken    = nullptr; // I32 [n_picked, n_tokens] cells; nullptr: to be picked
    ggml_tensor * sees_all = nullptr; // F32 [1, n_tokens] 0 for rows that see everything, else -INFINITY; nullptr: no
                                      // draft before this one has picked
    ggml_tensor * made     = nullptr; // I32 [n_picked, n_tokens] what was picked, if anything was
};

struct head_part {
    size_t        stage;      // of the pass
    int32_t       head;
    ggml_tensor * tokens;     // I32 [n_tokens]
    ggml_tensor * hidden;     // F32 [n_embd, n_tokens]
    head_picked * picked;     // nullptr: the head's index picks for itself, and nobody takes that over
    int32_t       n_tied = 0; // inputs of the part that were tied to tokens and hidden
};
