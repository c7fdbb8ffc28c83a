// Grammars in GBNF, which llama.cpp parses and applies.

#pragma once

#include "sampler-chain.h"

// The sampler of a grammar whose rules begin at "root". Without a vocabulary nothing is returned, and tokens that the
// grammar names are not looked up. Throws std::invalid_argument with the reason for what is no grammar, and for grammars
// that llama.cpp would take too long for, or too much of the stack. Writes nothing to stderr.
llama_sampler_ptr sampler_grammar(const llama_vocab * vocab, const char * text);
