#pragma once

// From a row of logits to the distribution that a token is drawn from: llama.cpp's samplers in the user's order.
//
// Most chains keep few tokens, whatever the vocabulary is. The first sampler that cuts the vocabulary down says how
// many: all that comes before it leaves the order of the logits as it is, but for tokens that penalties, DRY and biases
// lower. So it is enough to look at as many of the highest logits as it keeps, and one more for each of those tokens.
// Where this does not hold (a sampler before it needs all probabilities, a token may rise, more are lowered than there is
// room for, nothing cuts) the chain is applied to the whole vocabulary.
//
// What is left, and its order, is what llama.cpp's chain leaves, except where that computes with probabilities of 0:
// typical sampling does not look at tokens that cannot be, XTC always leaves one that can, and logits that a low
// temperature makes infinite leave the most likely token.

#include "llama-cpp.h"
#include "pymtp-text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

// Sets the logits of tokens that may not follow to -inf; each sampler may be missing.
struct sampler_filter {
    llama_sampler * thinking = nullptr;
    llama_sampler * grammar  = nullptr;

    explicit operator bool() const { return thinking || grammar; }

    void apply(llama_token_data_array & array) const {
        for (llama_sampler * sampler : { thinking, grammar }) {
            if (sampler) {
                llama_sampler_apply(sampler, &array);
            }
        }
    }
};

// a row of logits, wherever it is
struct sampler_row {
    int32_t             n_tokens;          // that have a logit
    const llama_token * tokens;            // their ids, [n_tokens]; nullptr: the first ones

    std::function<const float *()> logits; // [n_tokens]

    // the n highest, highest first; n <= n_tokens. ids, values: [n]
    std::function<void(int32_t n, int32_t * ids, float * values)> highest;
};

struct sampler_chain {
    sampler_chain(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params);

    // whether what it leaves is a distribution that tokens are drawn from; else the chain itself picks
    bool is_drawn() const { return !picker; }

    // Applies it, after the filter. The result: see left(). False, and no result, if the logits that it looks at are not
    // finite; below the highest ones it may not look at any.
    bool apply(const sampler_row & row, llama_sampler * memory, std::mt19937 & xtc_rng, const sampler_filter & filter);

    // What its stages that remember a text, penalties and DRY, know of an empty one: a chain of llama.cpp's samplers of
    // these, which accepts tokens. A copy follows a text that may not come true.
    // dry: for its stage of that kind; nullptr: one is made, which looks for its breakers in the whole vocabulary.
    llama_sampler_ptr make_memory(llama_sampler_ptr dry) const;

    // whether DRY is all its stages
    bool remembers_by_dry() const { return stages.size() == 1 && stages[0].kind == PYMTP_STAGE_DRY; }

    // whether no token of the row that it was applied to can be
    bool is_blocked() const { return blocked; }

    // What the chain has left, with probabilities. Never empty: one that cannot be if all cannot.
    llama_token_data_array & left() { return cur; }

    // whether it draws from the generator of XTC
    bool uses_xtc() const {
        return std::any_of(stages.begin(), stages.end(), [](const stage & one) { return one.kind == PYMTP_STAGE_XTC; });
    }

    // Candidates that are looked at; 0: the whole row.
    int32_t n_candidates() const;

    // a pick was taken into the text
    void accept(llama_token token);

  private:
    struct stage {
        int32_t           kind;    // a pymtp_stage
        llama_sampler_ptr sampler; // nullptr: penalties and DRY are in a memory, XTC is our own
    };

    const int32_t              n_vocab;
    const llama_vocab *        vocab;
    const pymtp_sampler_params params;

    std::vector<stage> stages; // without those that do nothing
    llama_sampler_ptr  picker; // mirostat, adaptive-p

    std::vector<float> biases; // [n_vocab], or none
    bool               raises; // tokens may rise before the cut

    // the stage that cuts the vocabulary down to what candidates are enough for; stages.size(): there is none
    size_t  i_cut;
    int32_t n_cut; // tokens that it keeps; 0: it keeps those above a threshold

    std::vector<llama_token_data> buffer;
    llama_token_data_array        cur     = {};
    bool                          blocked = false;

    void find_cut();
    void init_stage(int32_t i);
    void add_bias();
    void exclude_top(std::mt19937 & rng);
    bool take(const llama_token * ids, const float * logits, int32_t n, bool sorted);
    bool run(llama_sampler * memory, std::mt19937 & xtc_rng, const sampler_filter & filter, bool is_pruned);

    int32_t n_lowered_max() const;
};

inline bool sampler_cannot_be(const llama_token_data & one) {
    return one.logit == -INFINITY;
}

// Draws an index from an array with probabilities.
size_t sampler_draw(const llama_token_data_array & array, std::mt19937 & rng);
