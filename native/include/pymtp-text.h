// pymtp: the C interface from texts to tokens and back. llama.cpp's own functions for it throw where a vocabulary lacks
// what it should have, or for a token that it has not; these do not.
//
// For failures and threads see pymtp.h.

#ifndef PYMTP_TEXT_H
#define PYMTP_TEXT_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

// The tokens of a text of n_bytes bytes, UTF-8. token: [n_max]. *n_tokens: how many there are; if they are more than
// n_max, none is written. is_start: the text begins a sequence. parse_special: special tokens in it are recognised.
// PYMTP_FAILED if the vocabulary has no tokens for it.
int32_t pymtp_tokenize(const struct llama_vocab * vocab, const char * text, int32_t n_bytes, int32_t is_start,
                       int32_t parse_special, int32_t n_max, int32_t * token, int32_t * n_tokens);

// The bytes that a token adds to a text. bytes: [n_max]. *n_bytes: as above. special: also those of special tokens.
// PYMTP_INVALID for a token that the vocabulary has not.
int32_t pymtp_token_bytes(const struct llama_vocab * vocab, int32_t token, int32_t special, int32_t n_max, char * bytes,
                          int32_t * n_bytes);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
