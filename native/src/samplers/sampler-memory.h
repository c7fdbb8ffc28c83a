#pragma once

// What penalties and DRY remember of a text: llama.cpp's samplers of both, which a chain applies. A copy follows a text
// that may not come true. Knows token ids; no logits.

#include "llama-cpp.h"
#include "pymtp-text.h"

struct sampler_memory {
    llama_sampler_ptr penalties; // nullptr: the chain has none
    llama_sampler_ptr dry;       // likewise

    void           accept(llama_token token);
    sampler_memory clone() const;
};

llama_sampler_ptr sampler_make_penalties(int32_t n_vocab, const pymtp_sampler_params & params);

// vocab: nullptr if there are no texts at which repetitions end
llama_sampler_ptr sampler_make_dry(const llama_vocab * vocab, const pymtp_sampler_params & params);
