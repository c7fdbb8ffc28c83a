#pragma once

// What can follow in a text, in addition to what its logits say: a grammar, from the start or from a trigger on, and a
// limit of its thinking, after which the thinking is closed token by token. llama.cpp's samplers of both, in the order
// in which its programs apply them. A copy follows a text that may not come true.

#include "pymtp-text.h"
#include "sampler-chain.h"

struct sampler_rules {
    sampler_rules() = default;
    sampler_rules(const llama_vocab * vocab, const pymtp_answer_rules & rules); // throws

    sampler_rules clone() const;

    // From here on only texts of this grammar.
    void constrain(llama_sampler_ptr parsed) {
        grammar = std::move(parsed);
        is_lazy = false;
    }

    // Refuses what cannot follow whatever the grammar says: none but one token, where the thinking is being closed.
    sampler_filter closing() const;

    // Refuses what cannot follow.
    sampler_filter all() const { return { closing().thinking, applies_grammar() ? grammar.get() : nullptr }; }

    bool applies_grammar() const;
    bool allows(llama_token token) const; // by the grammar
    void accept(llama_token token);

  private:
    llama_sampler_ptr grammar;  // nullptr: none
    llama_sampler_ptr thinking; // nullptr: it has no limit, and no grammar waits for its end
    bool              is_lazy = false;
};

// The sampler of a grammar whose rules begin at "root". Throws grammar_error with the reason for what is no grammar, and
// for grammars that llama.cpp would take too long for, or too much of the stack.
llama_sampler_ptr sampler_grammar(const llama_vocab * vocab, const char * text);

// Throws, too; tokens that the grammar names are not looked up.
void sampler_grammar_check(const char * text);
