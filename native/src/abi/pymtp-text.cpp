// From texts to tokens and back, with llama.cpp's functions.

#include "pymtp-text.h"

#include "guard.h"
#include "llama.h"

#include <cstdlib>

static constexpr int32_t N_BYTES_MAX = 1 << 30;

// llama.cpp returns -n where n did not fit
static int32_t count(int32_t found) {
    pymtp_refuse_if(found == INT32_MIN, "a text of more tokens than can be counted");
    return std::abs(found);
}

int32_t pymtp_tokenize(const llama_vocab * vocab, const char * text, int32_t n_bytes, int32_t is_start,
                       int32_t parse_special, int32_t n_max, int32_t * token, int32_t * n_tokens) {
    return pymtp_guard([&] {
        pymtp_need(n_tokens, "the number of tokens") = 0;
        pymtp_need(vocab, "the vocabulary");
        pymtp_need_array(text, n_bytes, N_BYTES_MAX, "bytes");
        pymtp_need_array(token, n_max, N_BYTES_MAX, "tokens");
        int32_t found = 0;
        pymtp_fails_as(PYMTP_FAILED, "the model's vocabulary has no tokens for the text (%s); download it again",
                       [&] { found = llama_tokenize(vocab, text, n_bytes, token, n_max, is_start, parse_special); });
        *n_tokens = count(found);
    });
}

int32_t pymtp_token_bytes(const llama_vocab * vocab, int32_t token, int32_t special, int32_t n_max, char * bytes,
                          int32_t * n_bytes) {
    return pymtp_guard([&] {
        pymtp_need(n_bytes, "the number of bytes") = 0;
        pymtp_need(vocab, "the vocabulary");
        pymtp_need_array(bytes, n_max, N_BYTES_MAX, "bytes");
        pymtp_need_tokens(&token, 1, llama_vocab_n_tokens(vocab));
        *n_bytes = count(llama_token_to_piece(vocab, token, bytes, n_max, 0, special));
    });
}
