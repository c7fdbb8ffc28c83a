#pragma once

// What one sequence needs to get from logits to tokens: a chain, what it remembers of the text, its random generators,
// and what may follow in its text. Tokens are accepted for good, or assumed for the rows of drafts and forgotten again.
// Knows rows of logits; neither sessions nor where rows are.

#include "sampler-chain.h"
#include "sampler-rules.h"

#include <deque>
#include <random>
#include <stdexcept>
#include <vector>

// Different tokens and their probabilities, which is what a chain leaves of a vocabulary.
struct pymtp_distribution {
    static constexpr const char * what = "distribution";

    std::vector<int32_t> tokens;
    std::vector<double>  probs;
};

// No token can be drawn: PYMTP_NOT_FINITE or PYMTP_BLOCKED.
struct sampler_failure : std::runtime_error {
    sampler_failure(pymtp_status status, const char * why) : std::runtime_error(why), status(status) {}

    pymtp_status status;
};

struct pymtp_sampler {
    static constexpr const char * what = "sampler";

    const int32_t       n_vocab;
    const llama_vocab * vocab; // nullptr: no grammars

    // dry: of a vocabulary's, with the same parameters; nullptr: one is made
    pymtp_sampler(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params,
                  llama_sampler_ptr dry);

    // nullptr unless DRY alone remembers a text
    llama_sampler_ptr copy_dry() const;

    // From here on only texts of this grammar (sampler_grammar), or answers by these rules (throws), can follow; tentative
    // tokens are forgotten.
    void constrain(llama_sampler_ptr grammar);
    void follow(const pymtp_answer_rules & answer);

    // The text has a token, after the tentative ones were forgotten; or may get it. False: the grammar does not allow
    // it.
    bool accept(llama_token token);
    bool assume(llama_token token);
    void forget();

    // Leaves a result. Throws sampler_failure where the target's logits are not finite, or nothing can follow.
    void apply_draft(const sampler_row & row);
    void apply_target(const sampler_row & row);

    llama_token sample(const sampler_row & row); // throws, too

    sampler_chain      chain;
    pymtp_distribution result;

  private:
    int32_t           n_assumed = 0; // tokens that are tentative
    llama_sampler_ptr memory;        // of the chain
    llama_sampler_ptr memory_ahead;  // after the tentative tokens

    std::mt19937 rng;

    // XTC's: for the row after the text, and as it is after each row of the target that was applied since. What a row
    // draws depends on its place in the text only, so rows that are not accepted leave no trace
    std::mt19937             xtc_rng;
    std::deque<std::mt19937> xtc_rng_after;
    std::mt19937             xtc_rng_ahead; // of drafts, which see what the target is going to draw

    sampler_rules rules;
    sampler_rules rules_ahead;           // after the tentative tokens

    std::vector<llama_token_data> mixed; // see apply_target

    sampler_rules & rules_now() { return n_assumed > 0 ? rules_ahead : rules; }

    llama_sampler * memory_now() const { return n_assumed > 0 ? memory_ahead.get() : memory.get(); }

    std::mt19937 & xtc_rng_of_row();
    void           apply_finite(const sampler_row & row, std::mt19937 & row_rng, const sampler_filter & filter);
    void           set_result(const llama_token_data * data, size_t n);
};
