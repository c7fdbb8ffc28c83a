#pragma once

// Logits of a part of the vocabulary that the head itself chooses, as Gemma-4's assistants of E2B and E4B do: tokens are
// sorted into groups of equal size, and only those of the groups whose centroids are closest to the hidden state get
// logits. Knows tensors; no models.

#include "ggml.h"

#include <cstdint>

struct head_chosen_vocab {
    ggml_tensor * centroids = nullptr; // [n_embd, n_groups]; nullptr: all tokens get logits
    ggml_tensor * ordering  = nullptr; // I32 [n_vocab], the tokens group by group
    uint32_t      n_chosen  = 32;      // groups
};

// Throws where the file has other shapes, or only one of the two tensors.
void head_chosen_vocab_check(const head_chosen_vocab & chosen, int64_t n_vocab);

// logits [n_vocab, n_rows] of hidden [n_embd, n_rows], with -INFINITY in the place of those that are not chosen
ggml_tensor * head_chosen_vocab_build(ggml_context * ctx0, const head_chosen_vocab & chosen, ggml_tensor * hidden,
                                      ggml_tensor * logits);
