#pragma once

// What penalties and DRY remember of a text: llama.cpp's samplers of both, which a chain applies. A copy follows a text
// that may not come true. Knows token ids; no logits.

#include "llama-cpp.h"
#include "pymtp-text.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

// Texts at which DRY's repetitions end. llama.cpp looks for them in every token of the vocabulary, so that the latest of
// its samplers are kept to be copied.
class sampler_breakers {
  public:
    // the vocabulary must outlive it
    sampler_breakers(const llama_vocab * vocab, std::vector<std::string> texts) :
        vocab(vocab), texts(std::move(texts)) {}

    llama_sampler_ptr make_dry(const pymtp_sampler_params & params) const;

    int32_t n_tokens() const { return llama_vocab_n_tokens(vocab); } // of the vocabulary

  private:
    using dry_params = std::tuple<float, float, int32_t, int32_t>;

    const llama_vocab *                             vocab;
    const std::vector<std::string>                  texts;
    mutable std::mutex                              mutex;
    mutable std::map<dry_params, llama_sampler_ptr> made;
};

struct sampler_memory {
    llama_sampler_ptr penalties; // nullptr: the chain has none
    llama_sampler_ptr dry;       // likewise

    void           accept(llama_token token);
    sampler_memory clone() const;
};

llama_sampler_ptr sampler_make_penalties(int32_t n_vocab, const pymtp_sampler_params & params);

// breakers: nullptr for none
llama_sampler_ptr sampler_make_dry(const pymtp_sampler_params & params, const sampler_breakers * breakers);
