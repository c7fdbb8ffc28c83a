#pragma once

// The tokens that a text has so far, as penalties and DRY look at them. Appending and taking back a token costs the
// same however long the text is. Knows token ids; no logits.

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Texts at which a repetition ends. A token may hold such a text, or begin it: its tails say how it continues.
struct sampler_breakers {
    sampler_breakers(const llama_vocab * vocab, const std::vector<std::string> & texts);

    // whether a token is one on its own
    bool is_breaker(llama_token token) const { return kind[token] == WHOLE; }

    // The length of the part after `head` if a breaker begins at tokens[head] and ends at the last token; else -1.
    int32_t match(const std::vector<llama_token> & tokens, int32_t head) const;

    int32_t n_tokens() const { return kind.size(); } // of the vocabulary

    int32_t n_tail_max = 0;                          // the longest tail

  private:
    enum : uint8_t { NONE, HEAD, WHOLE };

    std::vector<uint8_t>                                                   kind;  // [n_vocab]
    std::unordered_map<llama_token, std::vector<std::vector<llama_token>>> tails; // by head

    void add(const llama_vocab * vocab, llama_token token, const std::string & word, const std::string & text);
};

struct sampler_history {
    struct params {
        int32_t n_vocab;
        int32_t n_penalised; // last tokens that penalties count; -1: all
        int32_t n_repeated;  // last tokens in which DRY looks for repetitions; 0: it does not, -1: in all
        int32_t allowed;     // shorter repetitions do not matter
        int32_t longest;     // longer ones matter as much as these
    };

    using repetition = std::pair<llama_token, int32_t>;

    sampler_history(const params & params, const sampler_breakers * breakers);

    void push(llama_token token);
    void pop();

    int32_t size() const { return tokens.size(); }

    // how often a token occurs among the last n_penalised
    int32_t count(llama_token token) const { return counts[token]; }

    // different tokens among the last n_penalised
    int32_t n_counted() const { return n_distinct; }

    // as many as these can become while the text grows by n_more tokens
    int32_t n_counted_max(int32_t n_more) const {
        return p.n_penalised < 0 ? n_distinct + n_more : std::min(n_distinct + n_more, p.n_penalised);
    }

    // The tokens that would continue what was there before, each with the length of what they repeat.
    const std::vector<repetition> & repetitions();

  private:
    struct breaker_end {
        int32_t head   = -1; // where the last breaker begins
        int32_t n_tail = 0;  // tokens of it after its head
    };

    const params                   p;
    const sampler_breakers * const breakers;

    std::vector<llama_token> tokens;

    std::vector<int32_t> counts; // [n_vocab]
    int32_t              n_distinct = 0;

    // by position, for DRY only: the position before that ends with the same tokens (two, or one if repetitions of one
    // matter), -1: none; and the last breaker
    std::vector<int32_t>                  same;
    std::vector<breaker_end>              ends;
    std::unordered_map<uint64_t, int32_t> last_same; // by these tokens

    std::vector<repetition> found;
    std::vector<int32_t>    found_at; // [n_vocab] index in found + 1

    uint64_t key() const;
    void     add_count(llama_token token, int32_t n);
    void     consider(int32_t pos, int32_t first, int32_t cap);
};
